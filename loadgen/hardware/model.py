"""The shape of a model, as far as memory and time follow from it.

    weights    parameters × bytes each, and the scales that a quantisation keeps beside them
    KV cache   2 × layers × KV heads × head dimension × bytes a token; latent attention (MLA) keeps layers × (latent
               rank + rope dimension) instead, once; a layer with a sliding window keeps no more than the window; a
               recurrent layer keeps a state of fixed size per sequence
    FLOPs      2 × body parameters a token, 2 × parameters of the output embedding a sampled token (the input's is
               looked up), and 4 × heads × head dimension × context for each attention layer

Sizes are in bytes, GB are 10^9 and GiB 2^30 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

GB = 10**9
GIB = 2**30
KIB = 2**10


@dataclass(frozen=True, slots=True)
class Quantisation:
    """How weights are stored: `bits` each, and for each group of `group_size` of them (0: none) `group_bits` of scales
    and zero points. Parameters that are not quantised take `rest_bits`. `experts_only` leaves all but experts alone."""

    bits: float = 16.0
    group_size: int = 0
    group_bits: float = 0.0
    rest_bits: float = 16.0
    experts_only: bool = False
    name: str = "16 bit"

    @property
    def bits_each(self) -> float:
        """Bits of a quantised parameter with its share of the group's metadata."""
        return self.bits + (self.group_bits / self.group_size if self.group_size else 0.0)


@dataclass(frozen=True, slots=True)
class AttentionLayers:
    """So many layers whose attention sees the whole context, or the last `window` tokens of it."""

    count: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """`parameters` counts all, `active_parameters` those that one token uses; `expert_parameters` are the routed
    experts' part of all, `plain_parameters` the part that quantisation leaves alone (embeddings, output head, norms,
    routers).

    `latent_rank` > 0 means latent attention (MLA), with `rope_dim` kept beside the latent. `state_elements` is what the
    recurrent layers keep of one sequence, in elements of `state_bytes`. `tied`: input and output embedding are one
    matrix. `notes` say what could not be told from the source.
    """

    name: str
    parameters: float
    active_parameters: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    attention: tuple[AttentionLayers, ...]
    vocabulary: int = 0
    tied: bool = False
    latent_rank: int = 0
    rope_dim: int = 0
    experts: int = 0
    experts_per_token: int = 0
    expert_parameters: float = 0.0
    plain_parameters: float = 0.0
    state_elements: float = 0.0
    state_bytes: float = 2.0
    max_context: int | None = None
    quantisation: Quantisation = Quantisation()
    source: str = ""
    notes: tuple[str, ...] = ()

    def quantised(self, quantisation: Quantisation) -> Model:
        return replace(self, quantisation=quantisation)

    @property
    def attention_layers(self) -> int:
        return sum(group.count for group in self.attention)

    # --- weights ----------------------------------------------------------------------------------------------------

    def weight_bytes(self) -> float:
        return self._stored(self.parameters - self.expert_parameters, 0.0) + self._stored(0.0, self.expert_parameters)

    def expert_weight_bytes(self) -> float:
        """The routed experts' part of `weight_bytes`."""
        return self._stored(0.0, self.expert_parameters)

    def experts_touched(self, tokens: float) -> float:
        """The expected share of the experts that a step of so many tokens reads: 1 − (1 − k/E)^tokens, as each token
        picks k of E, taken as independent and even."""
        if not self.experts:
            return 0.0
        return 1.0 - math.pow(1.0 - self.experts_per_token / self.experts, tokens)

    def _stored(self, shared: float, experts: float) -> float:
        """Bytes of these parameters. What is not quantised counts among the shared ones."""
        q = self.quantisation
        plain = min(shared, shared if q.experts_only else self.plain_parameters)
        quantised = shared - plain + experts
        return (plain * (q.rest_bits if q.bits < q.rest_bits else q.bits) + quantised * q.bits_each) / 8

    # --- KV cache ---------------------------------------------------------------------------------------------------

    def kv_elements_per_layer(self, tensor_parallel: int = 1) -> int:
        """Elements that one token adds in one attention layer, on each of `tensor_parallel` GPUs. KV heads that do not
        divide are replicated; a latent is on every GPU, whole."""
        if self.latent_rank:
            return self.latent_rank + self.rope_dim
        return 2 * math.ceil(self.kv_heads / tensor_parallel) * self.head_dim

    def kv_bytes_per_token(self, kv_bytes: float = 2.0, tensor_parallel: int = 1) -> float:
        """What one more token takes while no window is full, on each GPU of the tensor-parallel group."""
        return self.attention_layers * self.kv_elements_per_layer(tensor_parallel) * kv_bytes

    def sequence_bytes(self, tokens: int, kv_bytes: float = 2.0, tensor_parallel: int = 1, block: int = 1) -> float:
        """KV cache and state of one sequence of so many tokens, in whole blocks of `block` tokens, on each GPU."""
        each = self.kv_elements_per_layer(tensor_parallel) * kv_bytes
        cached = sum(
            g.count * _blocks(tokens if g.window is None else min(tokens, g.window), block) for g in self.attention
        )
        return cached * each + self.state_elements * self.state_bytes / tensor_parallel

    def kv_read_bytes(self, context: float, kv_bytes: float = 2.0, tensor_parallel: int = 1) -> float:
        """What one decoded token reads of the cache at this context, on each GPU."""
        each = self.kv_elements_per_layer(tensor_parallel) * kv_bytes
        seen = sum(g.count * (context if g.window is None else min(context, g.window)) for g in self.attention)
        return seen * each + self.state_elements * self.state_bytes / tensor_parallel

    # --- work -------------------------------------------------------------------------------------------------------

    @property
    def head_parameters(self) -> int:
        """Of the output embedding: used for the tokens that are sampled, and not for those of a prompt before."""
        return self.vocabulary * self.hidden

    @property
    def body_parameters(self) -> float:
        """What every token is multiplied with: the active ones without embeddings, of which the input is looked up."""
        # Not below zero where a person names fewer active ones than the embeddings have.
        return max(0.0, self.active_parameters - self.head_parameters * (1 if self.tied else 2))

    @property
    def attention_flops(self) -> float:
        """FLOPs of one query on one token of context in one layer: its score and its share of the weighted sum."""
        return self._attention_flops(1.0)

    def decode_flops(self, context: float) -> float:
        """FLOPs of one token at this context: 2 × (body + output embedding), and its scores and weighted sum in each
        layer."""
        return 2 * (self.body_parameters + self.head_parameters) + sum(
            g.count * self._attention_flops(context if g.window is None else min(context, g.window))
            for g in self.attention
        )

    def prefill_flops(self, tokens: float, cached: float = 0.0) -> float:
        """FLOPs of a prompt of so many tokens of which the first `cached` are in the cache already; the output
        embedding is for its last token alone."""
        total = 2 * self.body_parameters * (tokens - cached) + 2 * self.head_parameters
        for group in self.attention:
            total += group.count * self._attention_flops(1.0) * _pairs(cached, tokens, group.window)
        return total

    def _attention_flops(self, seen: float) -> float:
        # Latent attention in its absorbed form works on the latent instead of each head's keys and values.
        width = (2 * self.latent_rank + self.rope_dim) / 2 if self.latent_rank else self.head_dim
        return 4 * self.heads * width * seen


def _blocks(tokens: int, block: int) -> int:
    return math.ceil(tokens / block) * block


def _pairs(first: float, last: float, window: int | None) -> float:
    """Σ of the tokens seen by each position from `first` to `last` (causal)."""
    if window is None or last <= window:
        return (last * last - first * first) / 2
    rising = _pairs(min(first, window), window, None)
    return rising + (last - max(first, window)) * window
