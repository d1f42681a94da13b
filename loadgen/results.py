"""What is made of a run's records, in frozen types: what a step said of server and client, what a search decides.

    Record ──► StepSummary ──► LevelResult ──► NextLevel | Stop
    client     analysis        search          runner

Nothing here does I/O, reads a clock or computes a metric. `None` means not known or not applicable, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Verdict = Literal["baseline", "pass", "fail", "marginal", "inconclusive", "invalid", "measured"]
StopReason = Literal[
    "plateau",
    "over_saturated",
    "slo",  # shown as slo:<objective>
    "unstable",  # an open loop: requests pile up
    "errors",  # shown as errors:admission_limit where the server refuses what is above a number in flight
    "client_bound",
    "max_level",
    "no_sample",  # shown as no_sample:<objective>
    "budget",  # shown as budget:<time|requests|tokens|cost>
    "unreachable",
    "interrupted",
]

Unsteady = Literal["drift", "stalls", "lockstep"]
Came = Literal["plateau", "slo", "tie"]


# --- objectives -----------------------------------------------------------------------------------------------------

SloMetric = Literal["ttft", "ttfc", "tpot", "itl", "e2e", "ttft_scheduled", "e2e_scheduled"]
SLO_METRICS: tuple[str, ...] = get_args(SloMetric)


@dataclass(frozen=True, slots=True)
class Objective:
    """One service-level objective. With `percentile` it bounds that percentile of the sample (`ttft_p95=500ms`);
    without, it bounds each request (`tpot=50ms`) and the share that meets all of these is the attainment."""

    metric: SloMetric
    percentile: float | None  # 95.0 for p95
    limit_ms: float
    text: str  # as typed


@dataclass(frozen=True, slots=True)
class Slo:
    """All objectives of a run, ANDed. `attainment` is the share of requests that must meet every per-request bound."""

    objectives: tuple[Objective, ...] = ()
    attainment: float = 0.95

    def __bool__(self) -> bool:
        return bool(self.objectives)


# --- what the client says of itself ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    """Delays of one kind, in µs. `p99` of fewer than 300 is the third largest (of fewer than five, the median), so that
    it takes more than a single hiccup or two to raise it."""

    n: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class ClientHealth:
    """How the client itself fared in one step, as measured; what it means is said elsewhere. None is not known here.

    Shares and lags are those of the steady window; of the whole step where that was too short to be told apart. Counts
    of segments, descriptors and ports are those of the whole step.
    - `cpu_share`, `wait_share`: of the time, the thread that reads the sockets (with the event loop's, where that is
      another: one interpreter lock gives them one CPU) was running, or was ready to run but had no CPU.
    - `steal_share`: of the machine's CPU time, what its hypervisor gave to others.
    - `read_lag_us`: from the kernel's stamp until the read returned; None without kernel stamps.
    - `loop_lag_us`: from the expiry of a timer until the event loop got to it, sampled some ten times a second.
    - `refill_lag_us`: from the last byte of an answer until its slot was free.
    - `stamped`: reads with a kernel stamp; `rejected`: stamps that contradicted the clock, replaced by the read's time.
    - `out_of_order`, `dropped`: segments that came in disorder, or that the kernel threw away on arrival.
    - `ports`: TCP sockets of this machine, in use or waiting to be free again, against `port_limit` ephemeral ports.
    """

    stamps: Literal["kernel", "user"]
    seconds: float
    cpu_share: float | None = None
    wait_share: float | None = None
    process_cpu_share: float | None = None
    steal_share: float | None = None
    reads: int = 0
    stamped: int = 0
    rejected: int = 0
    clock_steps: int = 0
    read_lag_us: Lag | None = None
    loop_lag_us: Lag | None = None
    refill_lag_us: Lag | None = None
    gc_pauses: int = 0
    gc_pause_max_us: float = 0.0
    retransmits: int | None = None
    out_of_order: int | None = None
    dropped: int | None = None
    descriptors: int | None = None
    descriptor_limit: int | None = None
    ports: int | None = None
    port_limit: int | None = None


@dataclass(frozen=True, slots=True)
class ErrorBound:
    """How far the client can have moved a percentile of a latency, at most, in ms."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class ClientLimit:
    """The client, not the server, may have shaped a step's figures: how, and the one thing to change."""

    what: str
    remedy: str


# --- what a step said -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """The steady window of a step, in ns on the run's clock."""

    start_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True)
class Decided:
    """What a look at a step while it ran, after `n` judged requests, had decided: a verdict for each objective that
    was, by its name (`slo.check_names`). `slo` says of which objectives (`slo.slo_text`)."""

    slo: str
    n: int
    verdicts: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Observation:
    """What the driver saw of one step, from its own counting rather than from the records: a line of steps.jsonl.

    `in_flight_integral_ns` is the time integral of requests in flight over the window (request·ns); `in_flight_peak`
    the largest number in the step. `ended` says what ended the step.

    Of an open loop, whose `concurrency` is 0: `rate` is the one asked for, in requests/s; `held_back` counts requests
    sent late because `max_in_flight` were already in flight, `not_dispatched` arrivals due before the window's end
    that were unsent then, and never sent.

    `workers` is how many processes shared the step; the peak is that of all together. `looks` is how often its verdict
    might be looked at while it ran, which widens the verdicts' intervals. `decided` is what the look that ended it had
    decided: what the few requests that were still in flight then leave undecided stays so decided, as it had been paid
    for. `cache_block` are the tokens of a block of the server's prefix cache, where that was given.
    """

    step: int
    concurrency: int
    window: Window | None
    in_flight_integral_ns: int
    in_flight_peak: int
    ended: Literal["complete", "errors", "budget", "interrupted", "unauthorized", "client"]
    detail: str = ""
    rate: float | None = None
    max_in_flight: int | None = None
    held_back: int = 0
    not_dispatched: int = 0
    health: ClientHealth | None = None
    workers: int = 1
    looks: int = 1
    decided: Decided | None = None
    cache_block: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its two-sided 95 % interval. `low`/`high` are None where no interval can be established."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Percentile:
    """A percentile with its interval. `established` is False where the effective sample is too small for the interval
    to be two-sided; the value is then shown with its n and no more."""

    p: float
    value: float
    low: float | None
    high: float | None
    n: int
    n_effective: float
    established: bool


@dataclass(frozen=True, slots=True)
class Distribution:
    """One latency metric of a step in ms: n values, their mean with interval, and percentiles by p (50, 90, 95, 99)."""

    n: int
    mean: Estimate | None
    std: float | None
    max: float | None
    percentiles: tuple[Percentile, ...]

    def at(self, p: float) -> Percentile | None:
        return next((q for q in self.percentiles if q.p == p), None)


@dataclass(frozen=True, slots=True)
class ObjectiveCheck:
    """How one objective stands in one step: the share of judged requests beyond the limit, with its interval, against
    the share the objective allows. `n` counts judged requests; failures rank as infinitely late. `decided_n` is how
    many of them there were at the look that decided it, where all of them would not."""

    objective: str
    metric: str
    allowed: float
    exceedance: Estimate | None  # None without samples
    value_ms: float | None  # the percentile itself; inf when failures reach into it
    n: int
    verdict: Literal["pass", "fail", "marginal", "inconclusive"]
    decided_n: int | None = None


@dataclass(frozen=True, slots=True)
class PartSummary:
    """What one of a step's several models, or one of the addresses that served it, did: measured requests `sent` and
    `failed`, `output_throughput` in tokens/s over the steady window (None without one), and the `latency` metrics
    `ttft` and `tpot` of its ok requests, in ms."""

    name: str
    sent: int
    ok: int
    failed: int
    output_throughput: float | None
    latency: Mapping[str, Distribution]
    cached_share: float | None = None


@dataclass(frozen=True, slots=True)
class CacheShare:
    """Shares of a step's prompt tokens, from 0 to 1: what a prefix cache could save (`expected`, at least and at most;
    None where the prompts do not tell), and what the server says that it did (`seen`, by `source`; None is not told).
    `block` is the server's, in tokens, None where not known."""

    expected: tuple[float, float] | None = None
    seen: float | None = None
    source: Literal["usage", "metrics"] | None = None
    block: int | None = None


@dataclass(frozen=True, slots=True)
class AskedLengths:
    """The lengths asked for on one side of a step's n measured requests, of conversations in their first turns, in
    tokens. `within` are (least, most) for p50, p90 and p99 of what they were drawn from, beyond doubt; None where so
    few say nothing of that side."""

    n: int
    mean: float
    std: float
    p50: float
    p90: float
    p99: float
    within: tuple[tuple[float | None, float | None], ...] = ()


@dataclass(frozen=True, slots=True)
class ServerView:
    """What a server's own metrics said of a step, over its steady window; None is not told.

    Numbers of requests are time-weighted means, `in_flight` (running + waiting, of all replicas) with its 95 % interval
    from batch means of the scrapes, each None unless every replica told it. `edge_requests` is how far `in_flight` and
    the driver's own count may lie apart without a fault (`analysis.serverload`). `preemptions` and `rejected` are what
    was added in the window, times the mean over the requests that ended in it. `scrapes` and `failed` count those in
    the window; `parts` holds the mean in flight by replica or, of one replica with several, by engine.
    """

    scrapes: int
    failed: int
    in_flight: Estimate | None = None
    running: float | None = None
    waiting: float | None = None
    edge_requests: float | None = None
    kv_use_share: float | None = None
    kv_use_peak_share: float | None = None
    kv_tokens: float | None = None
    preemptions: float | None = None
    rejected: float | None = None
    prefix_hit_share: float | None = None
    spec_accepted_share: float | None = None
    prompt_tok_s: float | None = None
    generation_tok_s: float | None = None
    queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    gpu_use_percent: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bursts:
    """Output that came in bursts, many events at a time with nothing between. Of the `judged` answers that were long
    enough to tell, `requests` came so: their medians of the `events` in a burst (of each choice) and of the time from
    one to the next."""

    requests: int
    judged: int
    events: float
    every_ms: float


@dataclass(frozen=True, slots=True)
class StepSummary:
    """Everything a report says of one step; a pure function of its records, the SLO and the driver's observation.

    `latency` holds `ttft`, `ttfc`, `tpot`, `itl`, `inter_chunk`, `e2e`, `ttft_scheduled`, `e2e_scheduled`,
    `dispatch_lag` (ms) over the measured ok requests. Throughputs are per second over the steady window.
    """

    step: int
    concurrency: int
    window: Window | None
    requests: Mapping[str, int]  # outcome → count, measured phase
    flags: Mapping[str, int]  # flag → count, measured phase
    errors: tuple[tuple[str, int], ...]  # (what, count), most frequent first; of all phases if none is measured
    sent: int  # measured requests
    judged: int  # of them, all but cut and cancelled
    failed: int  # of them, failed outcomes
    input_tokens_mean: float | None
    output_tokens_mean: float | None
    output_asked_mean: float | None
    output_throughput: Estimate | None
    output_throughput_failed: float | None
    output_throughput_classic: float | None
    total_throughput: float | None
    request_throughput: Estimate | None
    attempt_rate: float | None
    tokens_per_user: float | None  # 1000 / median TPOT
    estimated_token_share: float  # of tokens placed in the window by estimate
    estimated_itl: bool
    cached_share: float | None
    latency: Mapping[str, Distribution]
    goodput: float | None
    attainment: Estimate | None
    concurrency_mean: float | None  # observed, time-weighted over the window
    concurrency_peak: int | None
    littles_law_residual: float | None
    objectives: tuple[ObjectiveCheck, ...] = ()
    ended: str = "complete"
    rate: float | None = None  # asked for, requests/s, of an open loop; `attempt_rate` is the one achieved
    max_in_flight: int | None = None
    held_back: int = 0
    not_dispatched: int = 0
    detail: str = ""  # of `ended`
    health: ClientHealth | None = None
    error_ms: Mapping[str, ErrorBound] = field(default_factory=dict)  # by latency metric
    exact_share: float | None = None  # of the measured output events, those whose stamp is exact
    client_limit: ClientLimit | None = None
    workers: int = 1  # processes that shared the step
    retries: int = 0  # of the measured requests: how often one was sent again
    admitted: int | None = None  # requests the server answers at once before it refuses, where the failures show it
    completion_rate: Estimate | None = None  # like request_throughput, of requests of every phase
    input_deviation: float | None = None  # of the server's counts of prompt tokens from the lengths asked for, mean
    by_model: tuple[PartSummary, ...] = ()  # in order of first request; empty where one model was asked for
    by_peer: tuple[PartSummary, ...] = ()  # likewise, of `Record.peer`
    server: ServerView | None = None  # by its own metrics, where they were read
    littles_law_server_residual: float | None = None  # the server's requests in flight / the driver's, - 1
    unsteady: tuple[Unsteady, ...] = ()  # why the intervals promise too much
    bursts: Bursts | None = None  # where most answers came so
    longer: int = 0  # measured ok requests with more output, by the server's count, than was asked for
    asked: Mapping[str, AskedLengths] = field(default_factory=dict)  # by side, input and output; as far as known
    cache: CacheShare | None = None
    by_turn: tuple[PartSummary, ...] = ()  # of conversations, in the order of the turns
    sessions: int = 0  # conversations that the measured requests are of

    @property
    def load(self) -> float:
        """What was asked for: requests/s of an open loop, else requests in flight."""
        return self.concurrency if self.rate is None else self.rate


# --- what a search decides ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LevelResult:
    """One measured level, as the search sees it. `broke` names the objectives that failed, or that kept an undecided
    level from passing. `of_limit` is, by objective, its percentile as a share of its limit; `goodput` in requests/s;
    `checks` are the objectives that decide; `windows` how many were pooled. `unsampled` says of each objective that no
    answer has a sample of why that is: no length of the step would change it."""

    concurrency: int
    output_throughput: Estimate | None
    verdict: Verdict
    broke: tuple[str, ...] = ()
    error_rate: float = 0.0
    ended: str = "complete"
    p_hat_beyond: bool = False  # the point estimate lies beyond an objective (which way an inconclusive level leans)
    detail: str = ""  # of `ended`
    rate: float | None = None
    admitted: int | None = None  # requests the server answers at once before it refuses more
    of_limit: Mapping[str, float] = field(default_factory=dict)
    goodput: float | None = None
    completed: float | None = None  # requests/s, of every phase
    checks: tuple[ObjectiveCheck, ...] = ()
    windows: int = 1
    unsampled: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NextLevel:
    """The load to measure next, and why, in a few words: requests in flight or, of an open loop, `rate` in
    requests/s. `check`: it was judged before, and only its throughput is asked for, where `precise` to the sweep's
    precision. `repeat`: it is one of several windows that are pooled."""

    concurrency: int
    why: str
    rate: float | None = None
    check: bool = False
    precise: bool = False
    repeat: bool = False


@dataclass(frozen=True, slots=True)
class Stop:
    """The end of a sweep. Loads are requests in flight or, of an open loop, requests/s.

    `held` is the highest load that passed and `broke` the lowest that failed, each proven; `held_again` passed above
    `broke`. `limit` is the answer where objectives ended the sweep: the highest load that meets them as far as can be
    told, which need not be proven; over the `band` the percentile that decides stays within 5 % of its objective.
    `first` says whether throughput stopped growing before an objective broke. `peak_goodput` is in requests/s.
    `unsteady`: two windows of one load differ.
    """

    reason: str  # a StopReason, with its detail after a colon
    held: float | None
    broke: float | None
    peak_throughput: Estimate | None
    sentence: str
    limit: float | None = None
    band: tuple[float, float] | None = None
    first: Came | None = None
    peak_goodput: float | None = None
    unsteady: bool = False
    held_again: tuple[float, ...] = ()


# --- the server -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server told of itself; None is unknown. `overhead_tokens` are what its chat template adds to a prompt,
    `tokens_per_word` what a word of our text costs there, both learnt from its own counts."""

    kind: str | None = None  # vllm, sglang, tgi, llama.cpp, ollama, …
    version: str | None = None
    model: str | None = None
    context_length: int | None = None
    forced_length: bool | None = None  # does it generate exactly the length asked for?
    usage: bool | None = None  # does it report usage on a stream?
    continuous_usage: bool | None = None  # …with every event?
    overhead_tokens: int | None = None
    tokens_per_word: float | None = None
    observed_output_tokens: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerSample:
    """One look at the metrics of a server, or of one of its replicas: a line of server.jsonl.

    `at_ns` is the middle between request and answer on the run's clock, `took_us` the time between the two. `source` is
    the address, without secrets. `values` are by the terms of `analysis.serverside`; `engines` holds the same of each
    engine, where the page has several. `error` says why a scrape brought nothing. `step` is 0 outside of steps.
    """

    at_ns: int
    took_us: int
    step: int
    source: str
    values: Mapping[str, float] = field(default_factory=dict)
    engines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    error: str | None = None
