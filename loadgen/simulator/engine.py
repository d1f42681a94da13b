"""A step model of a continuous-batching inference engine. Pure and seeded: no I/O, no clock; time is given in seconds.

Each step, as in an engine with chunked prefill:
1. every running sequence whose prompt is done decodes one token;
2. prompts are prefilled in order of arrival, at most `max_prefill_tokens` tokens a step over all sequences; waiting
   requests are admitted (first come, first served) while a slot and part of that budget is free;
3. a sequence whose prompt is completed by the step also emits its first token with it.
The step lasts `step_ms + decode_ms x (decoding sequences) + prefill_ms x (prompt tokens)`, times lognormal noise of
mean 1. Its tokens appear at its end. A slot freed by a step is refilled by the next one.
"""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from dataclasses import dataclass, fields

from ..errors import UsageError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """The knobs of the model. The defaults saturate at about 900 output tokens/s with 64 tokens in and 32 out, and give
    an idle TTFT of about 40 ms there."""

    step_ms: float = 12.0  # of every step
    decode_ms: float = 0.2  # for each sequence decoding in a step
    prefill_ms: float = 0.085  # for each prompt token
    overhead_ms: float = 22.0  # from arrival until the scheduler sees a request; costs no engine time
    max_batch: int = 16  # running sequences
    max_prefill_tokens: int = 2048  # prompt tokens a step
    noise_sigma: float = 0.03  # of the log of a step's duration
    seed: int = 0
    context_length: int = 32768  # prompt and output together

    def __post_init__(self) -> None:
        for field in fields(self):
            value, lowest = getattr(self, field.name), _LOWEST[field.name]
            if not math.isfinite(value) or value < lowest:
                raise UsageError(f"{field.name} must be at least {lowest}, not {value}", "give a larger value")
        if self.step_ms + min(self.decode_ms, self.prefill_ms) <= 0:
            raise UsageError("step_ms, decode_ms and prefill_ms leave steps that take no time", "give step_ms a value")


_LOWEST = {
    "step_ms": 0,
    "decode_ms": 0,
    "prefill_ms": 0,
    "overhead_ms": 0,
    "max_batch": 1,
    "max_prefill_tokens": 1,
    "noise_sigma": 0,
    "seed": 0,
    "context_length": 2,
}


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: how long it takes, what it emits at its end, and which requests that ends."""

    duration_s: float
    tokens: dict[str, int]  # request id → tokens emitted
    finished: tuple[str, ...]
    prefilled_tokens: int  # prompt tokens processed


@dataclass(slots=True)
class _Sequence:
    prompt_left: int
    output_left: int
    ready_s: float


class Engine:
    """The engine's state between steps. Drive it with `step(now)`; when that is None, come back at `next_ready()`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._random = random.Random(config.seed)
        self._waiting: OrderedDict[str, _Sequence] = OrderedDict()
        self._running: dict[str, _Sequence] = {}

    @property
    def running(self) -> int:
        """Sequences in the batch; those that the last step finished are still counted until the next step."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, request_id: str, prompt_tokens: int, output_tokens: int, now: float) -> None:
        """Queue a request at time `now`. `now` must not decrease from call to call. ValueError if it can never run."""
        if request_id in self._waiting or request_id in self._running:
            raise ValueError(f"request {request_id} is already in the engine")
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(
                f"a request needs at least 1 prompt and 1 output token, not {prompt_tokens}, {output_tokens}"
            )
        if prompt_tokens + output_tokens > self.config.context_length:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens exceed the context")
        ready_s = now + self.config.overhead_ms / 1e3
        self._waiting[request_id] = _Sequence(prompt_tokens, output_tokens, ready_s)

    def cancel(self, request_id: str) -> bool:
        """Drop a request wherever it is; False if it is not here (finished, or never was)."""
        sequence = self._waiting.pop(request_id, None) or self._running.pop(request_id, None)
        return sequence is not None and sequence.output_left > 0

    def next_ready(self) -> float | None:
        """The earliest time at which `step` has work, None while the engine is empty."""
        if any(sequence.output_left for sequence in self._running.values()):
            return -math.inf
        return next(iter(self._waiting.values())).ready_s if self._waiting else None

    def step(self, now: float) -> StepResult | None:
        """Run one step from `now`; None if there is nothing to run yet."""
        for request_id in [key for key, sequence in self._running.items() if not sequence.output_left]:
            del self._running[request_id]
        emitting = [key for key, sequence in self._running.items() if not sequence.prompt_left]
        decoding = len(emitting)
        prefilled = self._prefill(now, emitting)
        if not decoding and not prefilled:
            return None
        finished = []
        for request_id in emitting:
            sequence = self._running[request_id]
            sequence.output_left -= 1
            if not sequence.output_left:
                finished.append(request_id)
        return StepResult(self._duration(decoding, prefilled), dict.fromkeys(emitting, 1), tuple(finished), prefilled)

    def _prefill(self, now: float, emitting: list[str]) -> int:
        """Spend the step's prefill budget, admitting as it lasts; appends the requests whose prompt it completes."""
        budget = self.config.max_prefill_tokens
        # In order of arrival, at most one prompt is ever left half done.
        unfinished = next(((key, sequence) for key, sequence in self._running.items() if sequence.prompt_left), None)
        while budget:
            chosen, unfinished = unfinished or self._admit(now), None
            if chosen is None:
                break
            request_id, sequence = chosen
            share = min(budget, sequence.prompt_left)
            sequence.prompt_left -= share
            budget -= share
            if not sequence.prompt_left:
                emitting.append(request_id)
        return self.config.max_prefill_tokens - budget

    def _admit(self, now: float) -> tuple[str, _Sequence] | None:
        if len(self._running) >= self.config.max_batch or not self._waiting:
            return None
        request_id, sequence = next(iter(self._waiting.items()))
        if sequence.ready_s > now:
            return None
        del self._waiting[request_id]
        self._running[request_id] = sequence
        return request_id, sequence

    def _duration(self, decoding: int, prefilled: int) -> float:
        config = self.config
        mean_ms = config.step_ms + config.decode_ms * decoding + config.prefill_ms * prefilled
        sigma = config.noise_sigma
        return mean_ms / 1e3 * math.exp(sigma * self._random.gauss(0, 1) - sigma * sigma / 2)
