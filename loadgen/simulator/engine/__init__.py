"""A step model of an inference engine: pure, seeded, in virtual time. `core.py` says what a step does.

    engine = Engine(EngineConfig(max_batch=64))
    engine.submit("a", prompt_tokens=512, output_tokens=128, now=0.0)
    result = engine.step(0.0)  # .duration_s, .tokens, .finished

`virtual.simulate` runs whole workloads through the same loop, and `../oracle.py` makes truths of that.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .config import EngineConfig, config_of
from .disaggregated import core_for
from .machine import Machine
from .sequence import Sequence
from .truth import EngineTruth

__all__ = ["Engine", "EngineConfig", "EngineTruth", "Machine", "StepResult", "config_of"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step: how long it takes, what it emits at its end, and which requests that ends."""

    duration_s: float
    tokens: dict[str, int]  # request id → tokens emitted
    finished: tuple[str, ...]
    prefilled_tokens: int  # prompt tokens processed
    ended: tuple[Sequence, ...] = field(compare=False)  # with their times, in the order of `finished`


class Engine:
    """The engine under names, for one who drives it step by step: `step(now)`, and when that is None, again at
    `next_ready()`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._core = core_for(config)
        self._names: dict[int, str] = {}
        self._handles: dict[str, int] = {}
        self._next = 0

    @property
    def running(self) -> int:
        """Sequences in the batch; those that the last step finished are still counted until the next step."""
        return self._core.running

    @property
    def waiting(self) -> int:
        return self._core.waiting

    def submit(
        self, request_id: str, prompt_tokens: int, output_tokens: int, now: float, blocks: tuple[int, ...] = ()
    ) -> None:
        """Queue a request at time `now`. `now` must not decrease from call to call. `blocks` are the chained hashes of
        its text (`prefix.chain`), for a prefix cache. ValueError if it can never run."""
        if request_id in self._handles:
            raise ValueError(f"request {request_id} is already in the engine")
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(
                f"a request needs at least 1 prompt and 1 output token, not {prompt_tokens}, {output_tokens}"
            )
        if prompt_tokens + output_tokens > self.config.context_length:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens exceed the context")
        ready_s = now + self.config.overhead_ms / 1e3
        self._core.submit(Sequence(self._next, prompt_tokens, output_tokens, now, ready_s, blocks))
        self._names[self._next], self._handles[request_id] = request_id, self._next
        self._next += 1

    def cancel(self, request_id: str) -> bool:
        """Drop a request wherever it is; False if it is not here (finished, or never was)."""
        handle = self._handles.pop(request_id, None)
        if handle is None:
            return False
        del self._names[handle]
        return self._core.cancel(handle)

    def next_ready(self) -> float | None:
        """The earliest time at which `step` has work, None while the engine is empty."""
        return self._core.next_ready()

    def step(self, now: float) -> StepResult | None:
        """Run one step from `now`; None if there is nothing to run yet."""
        step = self._core.step(now)
        if step is None:
            return None
        names = self._names
        tokens = {
            names[handle]: count
            for handle, count in zip(step.handles.tolist(), step.counts.tolist(), strict=True)
            if handle in names  # one cancelled while its step was on the way
        }
        finished = []
        ended = tuple(sequence for sequence in step.ended if sequence.handle in names)
        for sequence in ended:
            name = names.pop(sequence.handle)
            del self._handles[name]
            finished.append(name)
        return StepResult(step.duration_s, tokens, tuple(finished), step.prefilled_tokens, ended)

    def truth(self) -> EngineTruth:
        """What is so between two steps, and the counts since the start."""
        return self._core.truth()
