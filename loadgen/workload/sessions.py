"""Conversations of several turns: each prompt holds what was said before, and waits for it. Pure and seeded.

    first turn ──► answer ──► think time ──► [first turn, answer, next message] ──► answer ──► …

Rules:
1. The first turn is a prompt of the stream as it is. How many turns follow, how long each message and answer is, and
   how long a user thinks follow from the seed, the number of the session and the turn alone.
2. What is sent back as history is what the server answered (`history` "server") or made text of the length asked for
   ("made"), which does not depend on the server.
3. A turn that fails ends its session. One that might not fit the server's context is not sent: the session ends before
   it, and its last record is flagged `context_cut`.
4. A session is one object, in one process, and gone with its last turn: so is its history.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Literal, get_args

import numpy as np

from ..errors import UsageError
from ..records import Prompt, Record
from .lengths import Distribution, Fixed, Uniform
from .prompts import Calibration, parse_length

History = Literal["server", "made"]
HISTORIES: tuple[str, ...] = get_args(History)
MOST_TURNS = 100_000
MOST_DRAWN = 100_000_000  # tokens or ms of one draw: a distribution without an end is cut there
# A text that was generated may have more tokens when it is read again: by so much, and at most one for each byte.
READ_AGAIN = 1.25
SLACK_TOKENS = 16  # around a turn, beside what the chat template was seen to put around the first


@dataclass(frozen=True, slots=True)
class Sessions:
    """`turns` of a conversation; `message` tokens that each after the first adds, and `output` tokens of its answer
    (None: as many as the first turn's); `think_ms` from an answer's end until the next turn is sent."""

    turns: Distribution
    message: Distribution
    output: Distribution | None = None
    think_ms: Distribution | None = None
    history: History = "server"

    def turns_of(self, seed: int, session: int) -> int:
        return min(MOST_TURNS, max(1, _draw(self.turns, seed, session, 0, "turns")))

    @property
    def mean_turns(self) -> float:
        return max(1.0, _mean(self.turns, MOST_TURNS))

    @property
    def pause_s(self) -> float:
        """The think time after a request, in the mean; the last turn of a conversation has none."""
        turns = self.mean_turns
        return 0.0 if self.think_ms is None else max(0.0, _mean(self.think_ms)) / 1e3 * (turns - 1) / turns

    def __str__(self) -> str:
        parts = [f"sessions of {self.turns} turns", f"{self.message} more in"]
        if self.output is not None:
            parts.append(f"{self.output} out")
        if self.think_ms is not None:
            parts.append(f"think {self.think_ms} ms")
        return f"{', '.join(parts)}, history {'as answered' if self.history == 'server' else 'made'}"

    def as_object(self) -> dict[str, Any]:
        """For the manifest: each distribution in words."""
        return {k: v if isinstance(v, str) else None if v is None else str(v) for k, v in _fields(self).items()}


@dataclass(frozen=True, slots=True)
class Conversations:
    """All sessions of a stream. Texts open with a hash of `key`, which is fresh in each run; `context` is the server's,
    in tokens."""

    sessions: Sessions
    seed: int
    key: str
    calibration: Calibration
    context: int | None = None


class Conversation:
    """One session, from its first prompt on (`records.Then`)."""

    def __init__(self, of: Conversations, number: int) -> None:
        self._of, self._number = of, number
        self._turns = of.sessions.turns_of(of.seed, number)
        self._prompt = Prompt()
        self._answer = ""
        self.keeps = of.sessions.history == "server"
        self.cut = False

    def open(self, prompt: Prompt) -> Prompt:
        """The first turn: a prompt of the stream, with its place."""
        shared = prompt.shared or (0, self._of.calibration.around)
        then = self if self._turns > 1 else None
        self._prompt = replace(prompt, session=self._number, turn=1, then=then, shared=shared)
        return self._prompt

    @property
    def more(self) -> bool:
        return (self._prompt.turn or 1) < self._turns

    def heard(self, text: str) -> None:
        """The answer to the turn that was sent last, as the server gave it."""
        self._answer = text

    def next(self, record: Record) -> tuple[int, Prompt] | None:
        """The turn after the one of this record, and its think time in ns; None where the session is over."""
        last, of, sessions = self._prompt, self._of, self._of.sessions
        turn = (last.turn or 1) + 1
        if record.outcome != "ok" or turn > self._turns:
            return None
        seed, number = of.seed, self._number
        message = max(1, _draw(sessions.message, seed, number, turn, "message"))
        output = last.output_tokens
        if sessions.output is not None:
            output = max(1, _draw(sessions.output, seed, number, turn, "output"))
        spoken = record.output_tokens.count or record.output_tokens.asked or 0
        if self.keeps:
            answer = self._answer
            spoken = min(math.ceil(spoken * READ_AGAIN), len(answer.encode("utf-8", "replace")))
        else:
            spoken = last.output_tokens or spoken
            answer = f" {self._text(spoken, turn, 'answer')}"
        before = record.input_tokens.server or last.input_tokens or 0
        around = of.calibration.around
        needed = before + spoken + message + (output or 0) + around + SLACK_TOKENS
        if of.context is not None and needed > of.context:
            self.cut = True
            return None
        # The template may stand on either side of the text, and the last word may run into what follows it.
        shared = max(0, before - around - 1), before + (record.output_tokens.count or 0 if self.keeps else 0)
        self._answer = ""
        self._prompt = replace(
            last,
            text=self._text(message, turn, "message"),
            input_tokens=None,
            local_tokens=None,
            output_tokens=output,
            history=(*last.history, last.text, answer),
            turn=turn,
            shared=shared if before else None,
            then=self if turn < self._turns else None,
        )
        think = 0 if sessions.think_ms is None else _draw(sessions.think_ms, seed, number, turn, "think")
        return max(0, think) * 1_000_000, self._prompt

    def _text(self, tokens: int, turn: int, what: str) -> str:
        nonce = f"{self._of.key} {self._number} {what} {turn}"
        return self._of.calibration.text(tokens, nonce, 31 * self._number + turn)


def with_sessions(prompts: Iterator[Prompt], of: Conversations, worker: int = 0, workers: int = 1) -> Iterator[Prompt]:
    """The prompts of a worker's part of a stream, each the first turn of a session, whose number is the prompt's place
    in the stream."""
    for number, prompt in zip(count(worker, workers), prompts, strict=False):
        yield Conversation(of, number).open(prompt)


def parse_sessions(
    turns: str | None, message: str | None, think_s: float | None, history: str | None
) -> Sessions | None:
    """The values of `--turns`, `--turn-input-len`, `--think-time` (seconds) and `--history`; None without any. Raises
    UsageError."""
    if turns is None:
        given = {"--turn-input-len": message, "--think-time": think_s, "--history": history}
        flag = next((name for name, value in given.items() if value is not None), None)
        if flag is not None:
            raise UsageError(f"{flag} is of conversations, but --turns is not given", "add --turns 4, or --turns 2-8")
        return None
    n = parse_length(turns, "--turns")
    if n.high > MOST_TURNS:
        raise UsageError(f"--turns is {turns}", f"give at most {MOST_TURNS:,}")
    added = parse_length(message if message is not None else "64", "--turn-input-len")
    return Sessions(
        n.distribution,
        added.distribution,
        think_ms=Fixed(round(1000 * think_s)) if think_s else None,
        history="made" if history == "made" else "server",
    )


def sessions_object(sessions: Sessions | None) -> dict[str, Any] | None:
    """Sessions of whole numbers, fixed or uniform, as JSON has them: what flags can ask for (`sessions_of`)."""
    if sessions is None:
        return None
    found: dict[str, Any] = {}
    for name, value in _fields(sessions).items():
        found[name] = value if value is None or isinstance(value, str) else [type(value).__name__, asdict(value)]
    return found


def sessions_of(found: Mapping[str, Any] | None) -> Sessions | None:
    """The sessions of `sessions_object`."""
    if found is None:
        return None
    kinds = {"Fixed": Fixed, "Uniform": Uniform}
    return Sessions(**{k: kinds[v[0]](**v[1]) if isinstance(v, list) else v for k, v in found.items()})


def _fields(sessions: Sessions) -> dict[str, Any]:
    return {name: getattr(sessions, name) for name in Sessions.__dataclass_fields__}


def _draw(distribution: Distribution, seed: int, session: int, turn: int, what: str) -> int:
    """A number of its own for each turn, whoever draws those before it."""
    digest = hashlib.blake2b(f"{what} {seed} {session} {turn}".encode(), digest_size=8).digest()
    u = (int.from_bytes(digest, "big") + 0.5) / 2**64
    return int(min(distribution.draw(np.array([min(u, 1.0 - 2**-53)]))[0], MOST_DRAWN))


def _mean(distribution: Distribution, most: int = MOST_DRAWN) -> float:
    """To about 1 %: of evenly spaced quantiles."""
    return float(np.mean(np.minimum(distribution.draw((np.arange(4096) + 0.5) / 4096), most)))
