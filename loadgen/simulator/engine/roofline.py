"""A step's time on a machine: max(FLOPs / peak, bytes / bandwidth) + communication + overhead.

FLOPs: 2 for each body parameter and token, 2 for each output-embedding parameter and sampled token, and attention over
(query, context) pairs. Bytes: the weights once, the KV of every context once, the new tokens' KV, and with naive
attention the score matrix four times: written, read by the softmax, written as probabilities, read for the values
(Dao et al. 2022, algorithm 0). Activations between layers are left out: they are small beside the weights.
"""

from __future__ import annotations

from .hardware import ACTIVATION_BYTES, Machine
from .work import Work

SCORE_PASSES = 4
REDUCES_A_LAYER = 2  # after attention and after the feed-forward part


class Roofline:
    """The costs of one machine; see `milliseconds`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def flops(self, work: Work) -> float:
        model = self.machine.model
        tokens = work.decode_tokens + work.prefilled
        each = work.decode_tokens // work.decoding if work.decoding else 0
        pairs = work.decode_context * each + work.prefill_pairs
        sampled = work.decode_tokens + work.prompts_done
        return 2 * model.body_params * tokens + 2.0 * model.head_params * sampled + model.attention_flops * pairs

    def bytes(self, work: Work) -> float:
        machine, model = self.machine, self.machine.model
        tokens = work.decode_tokens + work.prefilled
        kv_tokens = work.decode_context + work.prefill_context + tokens
        total = model.weights_read(tokens) * machine.weight_bytes
        total += kv_tokens * machine.kv_token_bytes * machine.kv_copies
        if not machine.tiled_attention:
            each = work.decode_tokens // work.decoding if work.decoding else 0
            cells = work.prefill_cells + work.decode_context * each
            total += SCORE_PASSES * ACTIVATION_BYTES * model.layers * model.heads * cells
        return total

    def communication_ms(self, tokens: int) -> float:
        """Two all-reduces a layer over the activations of `tokens` tokens, as a ring: each moves 2 (n - 1) / n of them
        over a link and waits for its latency. 0 on one accelerator."""
        machine = self.machine
        n = machine.tensor_parallel
        if n == 1:
            return 0.0
        moved = 2 * (n - 1) / n * tokens * machine.model.hidden * ACTIVATION_BYTES
        each_s = moved / (machine.gpu.link_gb_s * 1e9) + machine.allreduce_latency_us / 1e6
        return REDUCES_A_LAYER * machine.model.layers * each_s * 1e3

    def milliseconds(self, work: Work) -> float:
        machine = self.machine
        busy_s = max(self.flops(work) / machine.peak_flops, self.bytes(work) / machine.bandwidth)
        return busy_s * 1e3 + self.communication_ms(work.decode_tokens + work.prefilled) + machine.overhead_ms
