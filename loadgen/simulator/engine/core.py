"""The step loop: one pool of sequences over one KV memory. Pure and seeded; time is given in seconds.

A step of continuous batching with chunked prefill:
1. what the last step finished leaves, and its blocks are free;
2. every sequence whose prompt is computed decodes: one token, or with speculation 1 + those accepted. If KV blocks run
   out, the sequence that came last goes back to the head of the queue and loses its KV (preemption by recompute);
3. the prompts' budget goes, in order of arrival, to the prompt left half done and then to waiting requests, as long as
   there is a place in the batch and KV memory for a whole prompt. After a preemption nobody is admitted in that step;
4. a prompt that the step completes emits its first token with it.
Without chunking, prompts are computed whole and in steps of their own, and decoding waits. A static batch is admitted
when the one before has left, computes all its prompts in one step, and keeps its size until its last sequence ends.

Running sequences are the columns of one array, in order of arrival: so the one that came last is the last column, and
only the last column can hold a prompt half done. Work for each token is array work; Python's own loops run only over
sequences that begin, end or are preempted.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import UNLIMITED, EngineConfig
from .memory import memory_for
from .roofline import Roofline
from .sequence import Sequence
from .speculation import Speculation
from .truth import EngineTruth
from .variation import Variation
from .work import Affine, Cost, Sight, Work

Ints = NDArray[np.int64]

# The rows of the array: prompt tokens still to compute, tokens with KV, tokens its blocks hold, tokens that will ever
# have KV, output tokens left, and whose column it is.
LEFT, KV, ROOM, LIMIT, OUT, HANDLE = range(6)


@dataclass(frozen=True, slots=True)
class Step:
    """One step: when it begins and how long it takes, and what it emits at its end: `counts[i]` tokens of the sequence
    `handles[i]`; `ended` are the sequences that this finishes."""

    start_s: float
    duration_s: float
    handles: Ints
    counts: Ints
    ended: tuple[Sequence, ...]
    prefilled_tokens: int


class Core:
    """The state between steps. Drive it with `step(now)`; when that is None, come back at `next_ready()`."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.memory = memory_for(config)
        self._cost: Cost = Roofline(config.machine) if config.machine else Affine(config)
        self._sight = Sight(config.machine.model) if config.machine else None
        self._reads = config.context_us > 0  # without a machine
        self._variation = Variation(config)
        self._speculation = Speculation(config) if config.speculate else None
        self._static = config.batching == "static"
        self._waiting: OrderedDict[int, Sequence] = OrderedDict()
        self._running: dict[int, Sequence] = {}
        self._rows: Ints = np.zeros((6, min(config.max_batch, 64)), np.int64)
        self._ones: Ints = np.ones_like(self._rows[0])  # what most steps count: never written to
        self._ones.flags.writeable = False
        self.kept: dict[int, Sequence | None] = {}  # these keep their memory when they leave, until they are let go
        self._n = 0  # columns in use
        self._over = 0  # of these, finished and still to leave
        self._steps = self._prompt_tokens = self._generated = self._preemptions = 0
        self._busy_s = 0.0

    @property
    def running(self) -> int:
        """Sequences in the batch; those that the last step finished are still counted until the next step."""
        return self._n

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, sequence: Sequence) -> None:
        """Queue it. `ready_s` must not decrease from call to call. ValueError if it can never run."""
        if not self.memory.fits(sequence.prompt + sequence.output - 1):
            raise ValueError(f"{sequence.prompt} + {sequence.output} tokens exceed the KV memory")
        self._waiting[sequence.handle] = sequence

    def cancel(self, handle: int) -> bool:
        """Drop a sequence wherever it is; False if it is not here (finished, or never was)."""
        if self._waiting.pop(handle, None) is not None:
            return True
        if handle not in self._running:
            return False
        column = int(np.flatnonzero(self._rows[HANDLE, : self._n] == handle)[0])
        if not self._rows[OUT, column]:
            return False  # it leaves with the next step
        keep = np.ones(self._n, np.bool_)
        keep[column] = False
        self._leave(keep)
        return True

    def next_ready(self) -> float | None:
        """The earliest time at which `step` has work, None while there is none to come."""
        if self._n > self._over:
            return -math.inf
        return next(iter(self._waiting.values())).ready_s if self._waiting else None

    def step(self, now: float, until: float = math.inf) -> Step | None:
        """Run one step from `now`; None if there is nothing to run yet. `until` is for engines of several pools."""
        if self._over and (not self._static or self._over == self._n):
            self._leave(self._rows[OUT, : self._n] > 0)
            self._over = 0
        work = Work()
        first, decoding = 0, self._whole()
        if self._static or not self.config.chunked_prefill:
            self._admit_whole(now, work)
            if self._n > decoding:
                first = decoding  # decoding waits
            else:
                self._decode_room(decoding)
                decoding = self._n
        else:
            preempted = self._decode_room(decoding)
            decoding = min(decoding, self._n)
            budget = self._prompt_budget(decoding)
            if self._n > decoding:
                budget -= self._compute(decoding, budget, work)
            if not preempted:
                self._admit(now, budget, work)
        if first == 0:
            self._count_decoding(decoding, work)
        if not work.decoding and not work.prefilled:
            return None
        last = self._whole()  # columns first … decoding decode, decoding … last have their prompts completed
        work.prompts_done = last - decoding
        duration = self._variation.seconds(self._milliseconds(work), now)
        handles, counts = self._emit(first, decoding, last)
        self._steps += 1
        self._busy_s += duration
        self._prompt_tokens += work.prefilled
        return Step(now, duration, handles, counts, self._settle(decoding, last, now + duration), work.prefilled)

    def _whole(self) -> int:
        """Columns whose prompt is computed: all, or all but the last."""
        return self._n - int(self._n > 0 and self._rows[LEFT, self._n - 1] > 0)

    def _milliseconds(self, work: Work) -> float:
        drafting = self.config.draft_ms * self.config.speculate if work.decoding else 0.0
        return self._cost.milliseconds(work) + drafting

    # What decodes.

    def _decode_room(self, decoding: int) -> bool:
        """See that the first `decoding` columns have blocks for what this step adds, by preempting from the end.
        Returns whether it had to."""
        rows, size = self._rows, self.memory.block_tokens
        ahead = 1 + self.config.speculate
        preempted = False
        while True:
            decoding = min(decoding, self._n)
            room = rows[ROOM, :decoding]
            missing = np.minimum(rows[KV, :decoding] + ahead, rows[LIMIT, :decoding]) - room
            short = missing > 0
            if not short.any():
                return preempted
            blocks = -(-missing[short] // size)
            need = int(blocks.sum())
            if need <= self.memory.available:
                room[short] += blocks * size
                self.memory.grow(need)
                return preempted
            self._preempt_last()
            preempted = True

    def _preempt_last(self) -> None:
        self._n -= 1
        sequence = self._give_back(self._n)
        out = int(self._rows[OUT, self._n])
        if not out:  # the padding of a static batch
            self._over -= 1
            return
        sequence.emitted = sequence.output - out
        sequence.kv_given = 0
        sequence.preemptions += 1
        self._preemptions += 1
        self._waiting[sequence.handle] = sequence
        self._waiting.move_to_end(sequence.handle, last=False)

    def _count_decoding(self, decoding: int, work: Work) -> None:
        work.decoding = decoding
        work.decode_tokens = decoding * (1 + self.config.speculate)
        if self._sight and decoding:
            work.decode_context = self._sight.decoding(self._rows[KV, :decoding])
        elif self._reads and decoding:
            work.decode_context = float(self._rows[KV, :decoding].sum()) + decoding

    # What is prefilled.

    def _prompt_budget(self, decoding: int) -> int:
        budget = self.config.max_prefill_tokens
        if self.config.max_batched_tokens:
            budget = min(budget, self.config.max_batched_tokens - decoding * (1 + self.config.speculate))
        return budget

    def _admit(self, now: float, budget: int, work: Work) -> None:
        while budget > 0:
            sequence = self._next(now)
            if sequence is None or not self._enter(sequence, now):
                return
            budget -= self._compute(self._n - 1, budget, work)

    def _admit_whole(self, now: float, work: Work) -> None:
        """Whole prompts up to the budget, the first whatever its length; a static batch knows no budget."""
        if self._static and self._n:
            return
        budget: float = math.inf if self._static else self._prompt_budget(0)
        while (sequence := self._next(now)) is not None:
            if work.prefilled and sequence.known - self.memory.found(sequence) > budget:
                return
            if not self._enter(sequence, now):
                return
            budget -= self._compute(self._n - 1, sequence.known, work)

    def _next(self, now: float) -> Sequence | None:
        """The request whose turn it is, if it is ready and the batch has a place."""
        if self._n >= self.config.max_batch or not self._waiting:
            return None
        sequence = next(iter(self._waiting.values()))
        return sequence if sequence.ready_s <= now else None

    def _enter(self, sequence: Sequence, now: float) -> bool:
        """Move it into the batch; False where KV memory is short, and then it stays first in the queue."""
        cached = self.memory.admit(sequence)
        if cached is None:
            return False
        if math.isnan(sequence.scheduled_s):
            sequence.scheduled_s, sequence.cached = now, cached
        del self._waiting[sequence.handle]
        self._running[sequence.handle] = sequence
        if self._n == self._rows.shape[1]:
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)], axis=1)
            self._ones = np.ones_like(self._rows[0])
            self._ones.flags.writeable = False
        cached = max(cached, sequence.kv_given)
        self._rows[:, self._n] = (
            sequence.known - cached,
            cached,
            self.memory.room(sequence),
            sequence.prompt + sequence.output - 1,
            sequence.output - sequence.emitted,
            sequence.handle,
        )
        self._n += 1
        return True

    def _compute(self, column: int, budget: int, work: Work) -> int:
        """Prefill up to `budget` tokens of a column's prompt; returns how many."""
        left, before = int(self._rows[LEFT, column]), int(self._rows[KV, column])
        share = min(left, budget)
        self._rows[LEFT, column] = left - share
        self._rows[KV, column] = before + share
        work.prefilled += share
        if self._sight:
            self._sight.prefill(work, before, share)
        sequence = self._running[int(self._rows[HANDLE, column])]
        if sequence.blocks:
            self.memory.computed(sequence, before + share)
        return share

    # What a step leaves behind.

    def _emit(self, first: int, decoding: int, last: int) -> tuple[Ints, Ints]:
        """Count the tokens of columns first…last; those before `decoding` decoded. Returns handles and counts."""
        out = self._rows[OUT, first:last]
        counts = self._ones[first:last]
        if first < decoding:
            if self._speculation is not None or self._static:
                counts = counts.copy()
                if self._speculation is not None:
                    counts[:decoding] += self._speculation.accepted(decoding)
                np.minimum(counts, out, out=counts)
            self._rows[KV, :decoding] += counts[:decoding]
        out -= counts
        self._generated += int(counts.sum())
        handles = self._rows[HANDLE, first:last]
        if self._static and self._over:
            emits = counts > 0
            return handles[emits], counts[emits]
        return handles.copy(), counts

    def _settle(self, decoding: int, last: int, end: float) -> tuple[Sequence, ...]:
        """Stamp the sequences whose first or last token this step brought; returns the latter."""
        for handle in self._rows[HANDLE, decoding:last].tolist():
            sequence = self._running[handle]
            if math.isnan(sequence.first_s):
                sequence.first_s = end
        over = self._rows[OUT, : self._n] == 0
        if np.count_nonzero(over) == self._over:
            return ()
        self._over = int(np.count_nonzero(over))
        ended = []
        for handle in self._rows[HANDLE, : self._n][over].tolist():
            sequence = self._running[handle]
            if math.isnan(sequence.done_s):
                sequence.done_s, sequence.emitted = end, sequence.output
                ended.append(sequence)
        return tuple(ended)

    def _leave(self, keep: NDArray[np.bool_]) -> None:
        """Take the other columns out of the batch, and their KV out of the memory."""
        for column in np.flatnonzero(~keep).tolist():
            self._give_back(column)
        kept = int(np.count_nonzero(keep))
        self._rows[:, :kept] = self._rows[:, : self._n][:, keep]
        self._n = kept

    def _give_back(self, column: int) -> Sequence:
        sequence = self._running.pop(int(self._rows[HANDLE, column]))
        sequence.held = int(self._rows[ROOM, column]) // self.memory.block_tokens
        if sequence.blocks:
            self.memory.computed(sequence, int(self._rows[KV, column]))
        if self.kept and sequence.handle in self.kept:
            self.kept[sequence.handle] = sequence
        else:
            self.memory.release(sequence)
        return sequence

    def let_go(self, handle: int) -> None:
        """Free the memory of one that was kept, or see that it will be when it leaves."""
        sequence = self.kept.pop(handle, None)
        if sequence is not None:
            self.memory.release(sequence)

    def truth(self) -> EngineTruth:
        """What is so between two steps, and the counts since the start."""
        memory, n = self.memory, self._n
        tokens, room = int(self._rows[KV, :n].sum()), int(self._rows[ROOM, :n].sum())
        speculation = self._speculation
        return EngineTruth(
            running=n,
            waiting=len(self._waiting),
            kv_blocks=memory.total if memory.total < UNLIMITED else None,
            kv_blocks_used=memory.used,
            kv_tokens=tokens,
            kv_waste=1 - tokens / room if room else 0.0,
            steps=self._steps,
            busy_s=self._busy_s,
            prompt_tokens=self._prompt_tokens,
            generation_tokens=self._generated,
            preemptions=self._preemptions,
            prefix_queries=memory.queries,
            prefix_hits=memory.hits,
            drafts=speculation.drafts if speculation else 0,
            draft_tokens=speculation.drafted if speculation else 0,
            accepted_tokens=speculation.accepted_tokens if speculation else 0,
        )
