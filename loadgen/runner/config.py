"""What a run is asked to do: the values behind the flags, and who watches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from ..client.driver import Progress
from ..client.exchange import Timeouts
from ..client.retry import NO_RETRY, Retry
from ..client.transport import Access
from ..records import Record
from ..results import LevelResult, ServerFacts, Slo, StepSummary, Stop
from ..search.rates import RatePlan
from ..search.sweep import SweepPlan
from ..workload.arrivals import Arrivals
from ..workload.definition import Workload
from ..workload.models import ModelMix
from ..workload.sessions import Sessions
from ..workload.traces.replayed import Replayed


@dataclass(frozen=True, slots=True)
class Budgets:
    """The user's own limits on the whole run; None leaves it to the forecast, which is announced and kept. No time is
    kept that the user did not give where he said how many requests a step measures, or for how long."""

    max_time_s: float | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: float | None = None
    price: tuple[float, float] | None = None  # per million input and output tokens


@dataclass(frozen=True, slots=True)
class WorkloadChoice:
    """Which requests are sent: a trace, a shape, a file of prompts, or what a definition says."""

    input_len: str | None = None
    output_len: str | None = None
    prompts: str | None = None
    seed: int | None = None
    same_text: bool = False
    definition: Workload | None = None
    own_slo: bool = False  # are the run's objectives the definition's?
    shared_prefix: int | None = None  # tokens
    prefix_groups: int | None = None
    sessions: Sessions | None = None
    trace: Replayed | None = None


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests at a rate, in requests/s, instead of a number in flight; or `timed`, when the workload's trace says, of
    which it is the mean."""

    rate: float
    arrivals: Arrivals = field(default_factory=Arrivals)
    max_in_flight: int | None = None
    timed: bool = False

    @property
    def process(self) -> str:
        return "trace" if self.timed else str(self.arrivals)


@dataclass(frozen=True, slots=True)
class Scraping:
    """How the server's own metrics are read: every `interval_s` in the mean, at `urls` (as `client.scrape.metrics_url`
    gives them) or, without any, where servers usually have them."""

    interval_s: float = 1.0
    urls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Resume:
    """The folder of a run that is gone on with; `anyway`: also against a server that has changed."""

    folder: Path
    anyway: bool = False


@dataclass(frozen=True, slots=True)
class RunConfig:
    """Everything a run needs to know. `command` is the command line with secrets removed."""

    verb: Literal["run", "sweep"]
    url: str
    endpoint: str | None = None
    models: ModelMix | None = None  # None: the only one there
    workload: WorkloadChoice = field(default_factory=WorkloadChoice)
    plan: SweepPlan = field(default_factory=SweepPlan)
    open_loop: OpenLoop | None = None  # then there are no levels, and `plan` says nothing
    rates: RatePlan | None = None  # of a sweep of rates; then `open_loop` has the first
    slo: Slo = field(default_factory=Slo)
    effort: str = "normal"
    requests: int | None = None
    duration_s: float | None = None
    budgets: Budgets = field(default_factory=Budgets)
    max_error_rate: float = 0.01
    warmup: int | None = None  # None: one wave at the step's concurrency
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: Retry = NO_RETRY  # its seed is the run's
    access: Access = field(default_factory=Access)
    scraping: Scraping | None = field(default_factory=Scraping)  # None: the server's metrics are left alone
    wait_ready_s: float | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)  # by flag: what was given
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    force_length: bool = True
    stream: bool = True
    describe: Mapping[str, str] = field(default_factory=dict)
    token_log: bool = True
    cache_block: int | None = None  # tokens in a block of the server's prefix cache; None is to be learnt
    tokenizer: str | None = None  # the path of a local one
    token_ids: bool = False  # prompts are token ids, not text
    drain_s: float = 30.0
    output: str = "results"
    workers: int | None = None  # processes that share the load; None: as many as a step needs
    ray: str | None = None  # the address of the Ray cluster that the workers are placed on; None: this machine
    simulator: Mapping[str, Any] | None = None
    # One more thing to know of the run, asked for when all is measured.
    closing_note: Callable[[Stop, Sequence[StepSummary]], str | None] | None = None
    command: tuple[str, ...] = ()
    resume: Resume | None = None  # then the seed is the run's own, and `output` says nothing
    more_urls: tuple[str, ...] = ()  # further servers, which requests go to in turn
    metrics_address: tuple[str, int] | None = None  # where the run's own counters are served
    signals: bool = True  # Ctrl-C and SIGTERM end it in good order; else the caller's cancelling alone ends it early


@dataclass(frozen=True, slots=True)
class Opening:
    """What is known once preflight has passed, before any load: the top of the screen."""

    target: str
    facts: ServerFacts
    workload: str
    clock: str
    plan: str  # what may be sent at the most, in one line
    seconds: float  # the longest the run may take
    notes: tuple[str, ...] = ()
    rate: float | None = None  # of an open loop, requests/s


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    where: str
    status: Literal["complete", "interrupted", "failed"]
    exit_code: int
    stop: Stop
    summaries: tuple[StepSummary, ...]
    levels: tuple[LevelResult, ...]
    outcomes: Mapping[str, int]  # of every request sent, preflight included
    manifest: Mapping[str, Any]


class Watcher(Protocol):
    """Who is told as a run goes: the live display, a test, or nobody. Calls are cheap and never block."""

    def waiting(self, what: str) -> None: ...
    def opened(self, opening: Opening) -> None: ...
    def step_started(self, progress: Progress, why: str, share: Callable[[], float]) -> None: ...
    def request_ended(self, record: Record) -> None: ...
    def step_ended(self, summary: StepSummary, level: LevelResult) -> None: ...
    def signalled(self, what: str) -> None: ...


class Nobody:
    """A watcher that does not look."""

    def waiting(self, what: str) -> None:
        pass

    def opened(self, opening: Opening) -> None:
        pass

    def step_started(self, progress: Progress, why: str, share: Callable[[], float]) -> None:
        pass

    def request_ended(self, record: Record) -> None:
        pass

    def step_ended(self, summary: StepSummary, level: LevelResult) -> None:
        pass

    def signalled(self, what: str) -> None:
        pass
