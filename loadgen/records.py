"""What is sent and what came of it, in frozen types that every room speaks; what is made of that is in `results`.

    Prompt ──► RequestSpec ──► Record ──► StepSummary ──► LevelResult
    workload   driver          client     analysis        search

Nothing here does I/O, reads a clock or computes a metric.

All `*_ns` fields of a `Record` are integers in nanoseconds on one monotonic clock whose zero is the run's start; the
manifest's `started_epoch_ns` is the wall time of that zero. `None` means not known or not applicable, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

from .errors import Failure

SCHEMA_VERSION = 1
DEFINITIONS_VERSION = "1"  # of the metric definitions in docs/metrics.md; goes into every manifest

Phase = Literal["preflight", "warmup", "measured", "filler"]
Outcome = Literal["ok", "empty", "incomplete", "error", "timeout", "cut", "cancelled", "client_error"]
TokenSource = Literal["usage", "token_ids", "tokenizer", "events"]
TimeoutKind = Literal["connect", "first_token", "idle", "total"]
Flag = Literal[
    "short_output",
    "usage_missing",
    "malformed_events",
    "ignored_events",
    "bounded",
    "not_streamed",
    "retried",
    "context_cut",  # the last turn of a session whose next one might not have fitted the context
    "untimed",  # from a log that does not tell when it was sent: its stamps count from its own sending
]

PHASES: tuple[str, ...] = get_args(Phase)
OUTCOMES: tuple[str, ...] = get_args(Outcome)
TOKEN_SOURCES: tuple[str, ...] = get_args(TokenSource)
FLAGS: tuple[str, ...] = get_args(Flag)

# Outcomes that a verdict counts as infinitely late, and those it leaves out (docs/metrics.md, `outcome`).
FAILED_OUTCOMES: frozenset[str] = frozenset({"empty", "incomplete", "error", "timeout", "client_error"})
LEFT_OUT_OUTCOMES: frozenset[str] = frozenset({"cut", "cancelled"})


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to send, without when or where: the workload's noun.

    `text` is the prompt; `body` instead holds a whole request body that is sent as it is. Token counts are what was
    asked for, and `local_tokens` what a local tokenizer counted, if there was one. `model` is the one to ask for; None
    leaves it to the body, else to the run. `source_id` is the request's name where it came from. `token_ids` are sent
    in place of the text.

    Of a conversation: `session` and `turn` (from 1) say which turn it is, `history` is what was said before, the user's
    words and the answers in turn, and `then` makes the turn after it; a turn that comes at a time of its own is not
    sent before `after` has ended. `shared` is how many of its first tokens were sent before in this stream: at least
    and at most, as the server's template may stand before or after the text; None is not known.
    """

    text: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    local_tokens: int | None = None
    body: Mapping[str, Any] | None = None
    model: str | None = None
    source_id: str | None = None
    token_ids: tuple[int, ...] | None = None
    history: tuple[str, ...] = ()
    session: int | None = None
    turn: int | None = None
    then: Then | None = field(default=None, compare=False, repr=False)
    shared: tuple[int, int] | None = None
    after: After | None = field(default=None, compare=False, repr=False)


class Then(Protocol):
    """What follows a prompt that is a turn of a conversation. `keeps` says that it needs the answer's text, `cut` that
    it was ended before its time because the next turn might not have fitted the server's context, `more` that a turn
    may follow the one that was made last."""

    keeps: bool
    cut: bool

    @property
    def more(self) -> bool: ...

    def heard(self, text: str) -> None:
        """The answer's text, before `next`."""
        ...

    def next(self, record: Record) -> tuple[int, Prompt] | None:
        """After a turn has ended: how long the user thinks, in ns, and the turn after it; None is the end."""
        ...


class After(Protocol):
    """What a turn with a time of its own waits for: `done_ns` is when that ended, None before; then, or at once if it
    has, it calls `wake`."""

    done_ns: int | None

    def call(self, wake: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One request to send: a prompt with its place in the run."""

    id: str
    prompt: Prompt
    step: int
    concurrency: int
    phase: Phase
    worker: int = 0
    number: int = 0  # in its step, from 0, over all workers


@dataclass(frozen=True, slots=True)
class InputTokens:
    """Prompt tokens: asked for, counted locally, counted by the server, and read by it from its prefix cache."""

    asked: int | None = None
    local: int | None = None
    server: int | None = None
    cached: int | None = None


@dataclass(frozen=True, slots=True)
class OutputTokens:
    """Generated tokens: asked for, and counted by the best `source` available; never the length asked for. Both are of
    all `choices` (the request's `n`) together."""

    asked: int | None = None
    count: int | None = None
    source: TokenSource | None = None
    choices: int = 1


@dataclass(frozen=True, slots=True)
class Connect:
    """What opening the connection took, in µs; a part is None where there was none, or it cannot be told apart. The
    look-up of a name is waited for once in a while, by the connections that need it then."""

    dns_us: int | None = None
    tcp_us: int | None = None
    tls_us: int | None = None


@dataclass(frozen=True, slots=True)
class Events:
    """The output events of one request, in order of arrival.

    `gap_us[i]` is the time since the event before, the first since `sent_ns`; gaps are rounded so that their running
    sum never drifts from the stamps. `tokens[i]` is the event's token count, None where unknown. `bounded` lists
    (event index, bound in µs): such an event came in one read with later ones, so its stamp is at most that much late.
    """

    gap_us: list[int] = field(default_factory=list)
    tokens: list[int | None] = field(default_factory=list)
    bounded: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One of several times that a request was sent: when, the status it got, if any, and how long was then waited
    before the next (None after the last)."""

    sent_ns: int | None
    status: int | None
    wait_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """One request, from its schedule to its outcome: a line of requests.jsonl. See the module docstring for clocks.

    `error` is set for every outcome that is not ok, cut or cancelled. `excerpt` is the bounded text received of a
    failed request. `timeout` says which of the four timeouts ended it. `first_event_tokens` is None where only assumed
    to be 1. `peer` is the address it was sent to (ip:port, or unix:PATH); where no connection came about, that of
    several servers which it was for. `sent_bound_us`: the first byte left at most so long after `sent_ns`; None is at
    most 20 µs. `attempts` is empty where there was but one; else `sent_ns` is the first one's, and what came is the
    last one's. `model` is the one asked for, None where the request named none; `source_id`, `session`, `turn` and
    `shared` are the prompt's.
    """

    id: str
    step: int
    concurrency: int
    phase: Phase
    worker: int
    scheduled_ns: int
    sent_ns: int | None
    connect: Connect | None
    first_byte_ns: int | None
    first_token_ns: int | None
    first_content_ns: int | None
    last_token_ns: int | None
    done_ns: int
    input_tokens: InputTokens
    output_tokens: OutputTokens
    first_event_tokens: int | None
    events: Events | None
    outcome: Outcome
    flags: tuple[Flag, ...] = ()
    finish_reason: str | None = None
    status: int | None = None
    error: Failure | None = None
    timeout: TimeoutKind | None = None
    excerpt: str | None = None
    server_id: str | None = None
    peer: str | None = None
    sent_bound_us: int | None = None
    attempts: tuple[Attempt, ...] = ()
    model: str | None = None
    source_id: str | None = None
    session: int | None = None
    turn: int | None = None
    shared: tuple[int, int] | None = None
