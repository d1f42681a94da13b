"""A step's time on a machine: max(FLOPs / peak, bytes / bandwidth) + communication + overhead.

FLOPs: 2 for each body parameter and token, 2 for each output-embedding parameter and sampled token, and attention over
(query, context) pairs (Kaplan et al. 2020). Bytes, on each accelerator: the weights once, of experts those that are
chosen at all; the KV of every context once; the new tokens' KV (Pope et al. 2022); and with naive attention the score
matrix four times: written, read by the softmax, written as probabilities, read for the values (Dao et al. 2022,
algorithm 0). Activations between layers are left out: they are small beside the weights.

Tensor parallelism divides both and adds two all-reduces a layer; expert-parallel groups share out sequences and experts
and send every token to its experts and back; pipeline stages divide the memory, and a step passes one after the other.
"""

from __future__ import annotations

from .machine import Machine
from .work import Work

ACTIVATION_BYTES = 2  # activations travel as bf16
SCORE_PASSES = 4
REDUCES_A_LAYER = 2  # after attention and after the feed-forward part
EXCHANGES_A_LAYER = 2  # to the experts and back


class Roofline:
    """The costs of one machine; see `milliseconds`."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        model, on = machine.model, machine.on
        self._body, self._head = 2.0 * model.body_parameters, 2.0 * model.head_parameters
        self._pair = model.attention_layers * model.attention_flops
        experts = model.expert_weight_bytes()
        self._shared = (model.weight_bytes() - experts) / on.tensor_parallel
        self._experts = experts / (on.tensor_parallel * on.expert_parallel)
        self._kv = model.kv_bytes_per_token(on.kv_bytes, on.tensor_parallel) / on.expert_parallel
        self._state = model.state_elements * model.state_bytes / (on.tensor_parallel * on.expert_parallel)
        cell = SCORE_PASSES * ACTIVATION_BYTES * model.attention_layers * model.heads
        self._cell = 0.0 if machine.tiled_attention else cell / (on.tensor_parallel * on.expert_parallel)
        self._peak, self._bandwidth = machine.peak_flops, machine.bandwidth
        self._each_s, self._token_s = _exchanges(machine)

    def flops(self, work: Work) -> float:
        """Of all accelerators together."""
        tokens = work.decode_tokens + work.prefilled
        pairs = work.decode_context * _queries(work) + work.prefill_pairs
        return self._body * tokens + self._head * (work.decode_tokens + work.prompts_done) + self._pair * pairs

    def bytes(self, work: Work) -> float:
        """Moved by one accelerator."""
        tokens = work.decode_tokens + work.prefilled
        moved = self._shared + self._kv * (work.decode_context + work.prefill_context + tokens)
        if self._experts:
            moved += self._experts * self.machine.model.experts_touched(tokens)
        if self._state:
            moved += self._state * work.decoding
        if self._cell:
            moved += self._cell * (work.prefill_cells + work.decode_context * _queries(work))
        return moved

    def communication_ms(self, tokens: int) -> float:
        """What `tokens` tokens wait for between accelerators; 0 on one."""
        return (self._each_s + self._token_s * tokens) * 1e3

    def milliseconds(self, work: Work) -> float:
        busy_s = max(self.flops(work) / self._peak, self.bytes(work) / self._bandwidth)
        communication_ms = self.communication_ms(work.decode_tokens + work.prefilled)
        return busy_s * 1e3 + communication_ms + self.machine.overhead_ms


def _queries(work: Work) -> int:
    """Tokens that each decoding sequence computes."""
    return work.decode_tokens // work.decoding if work.decoding else 0


def _exchanges(machine: Machine) -> tuple[float, float]:
    """Seconds of a step's exchanges: their latency, and what each token adds. A ring's all-reduce over n moves
    2 (n - 1) / n of the activations over each link."""
    model, on = machine.model, machine.on
    tp, pp, ep = on.tensor_parallel, on.pipeline_parallel, on.expert_parallel
    reduces = REDUCES_A_LAYER * model.layers if tp > 1 else 0
    exchanges = EXCHANGES_A_LAYER * model.layers if ep > 1 else 0
    vectors = reduces * 2 * (tp - 1) / tp / ep + exchanges * (ep - 1) / ep * max(1, model.experts_per_token) / (tp * ep)
    vectors += (pp - 1) / (tp * ep)
    token_s = vectors * model.hidden * ACTIVATION_BYTES / on.gpu.link if on.gpus > 1 else 0.0
    return (reduces + exchanges + pp - 1) * machine.link_latency_us / 1e6, token_s
