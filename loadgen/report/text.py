"""The one screen of a run: who was measured, one line a step, the answer, and what there is to know beside it. Pure.

Lines for which nothing was measured are left out. Every line fits 120 columns and holds no control characters.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..analysis.redone import without_redone
from ..results import Slo, StepSummary, Stop
from ..slo import by_failures
from .answered import measured_text
from .asked import asked_notes
from .caching import cache_notes
from .details import step_details
from .facts import RunFacts
from .health import error_text, health_notes, limit_texts
from .models import part_lines
from .numbers import NONE, clean, number, percent, plural, with_error, with_interval
from .serverview import server_notes
from .steadiness import unsteady_notes
from .words import ENGLISH

WIDTH = 120
TABLE_WIDTH = 115  # what the whole table needs; below it has fewer columns,
NARROW_WIDTH = 80  # which need this
LABEL = 10
MOST_FAILURES = 8  # kinds of failure shown; the rest are counted


class Mark(NamedTuple):
    """The verdict on one step, and the objectives it broke."""

    verdict: str
    broke: tuple[str, ...] = ()


def render(
    facts: RunFacts,
    summaries: Sequence[StepSummary],
    marks: Mapping[int, Mark],
    stop: Stop | None = None,
    slo: Slo | None = None,
    *,
    details: bool = False,
    width: int = WIDTH,
    rest: bool = False,
) -> str:
    """The whole report as lines of plain text, at most `width` columns wide. `marks` is the verdict of each step by its
    number; `slo` chooses which percentile stands beside the median. A run of one step is shown with its details. `rest`
    leaves out what the display of a running run has already left on the screen: the head and the table."""
    slo = slo or Slo()
    parts = [] if rest else [head(facts, slo)]
    if not summaries:
        parts.append(["no request was measured"])
    elif not rest and not (facts.is_csv and len(summaries) == 1):
        head_row = table_head(slo, open_loop=any(s.rate is not None for s in summaries), width=width)
        parts.append([head_row, *(table_row(s, marks.get(s.step, Mark("")), slo, width=width) for s in summaries)])
    if summaries and (details or len(summaries) == 1):
        parts += [
            step_details(s, in_seconds=facts.is_csv, width=width, asked=facts.asked, traced=facts.traced)
            for s in summaries
        ]
    elif summaries:
        parts.append(part_lines(_held(stop, summaries) or summaries[-1], width))
    ours = client(summaries)
    told = [*failures(summaries), *notes(facts, summaries)]
    said = answer(stop, summaries) if stop or not _unanswered(facts, summaries) else unanswered(facts, summaries)
    parts.append([*said, *ours, *cause(facts), *told, *log(facts)])
    return "\n\n".join("\n".join(fit(part, width)) for part in parts if part) + "\n"


def fit(lines: Sequence[str], width: int) -> list[str]:
    """Lines that are longer than `width` go on below, indented as their text is. Addresses and commands stay whole."""
    fitted: list[str] = []
    for text in lines:
        indent = 18 if text[:2] == "  " and text[2:3].strip() else LABEL  # the details' labels are wider
        if len(text) <= width or text.lstrip().startswith("loadgen "):
            fitted.append(text)
        else:
            rest = " " * indent
            fitted += textwrap.wrap(text, width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    return fitted


def line(label: str, text: str) -> list[str]:
    """`label     text`; `fit` wraps it under itself."""
    return [label.ljust(LABEL) + clean(text)]


def head(facts: RunFacts, slo: Slo) -> list[str]:
    """target, workload, objectives if there are any, and clock."""
    server = facts.server
    about = [
        facts.target,
        " ".join(part for part in (_NAMES.get(server.kind or "", server.kind or ""), server.version or "") if part),
        server.model or "",
        f"context {server.context_length:,}" if server.context_length else "",
    ]
    lines = line("target", " · ".join(part for part in about if part)) if any(about) else []
    workload = [facts.workload, f"seed {facts.seed}" if facts.seed is not None else ""]
    if any(workload):
        lines += line("workload", " · ".join(part for part in workload if part))
    if slo:
        lines += line("objective", objective_text(slo))
    if facts.clock:
        lines += line("clock", _CLOCKS.get(facts.clock, facts.clock))
    return lines


def objective_text(slo: Slo) -> str:
    """`ttft_p95=300ms, tpot=50ms · attainment 95 %`."""
    share = f" · attainment {percent(slo.attainment)}" if any(o.percentile is None for o in slo.objectives) else ""
    return ", ".join(o.text for o in slo.objectives) + share


_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tgi": "TGI", "ollama": "Ollama"}
_CLOCKS = {"kernel": "kernel stamps", "user": "user stamps, taken as each read returns"}


# --- the table ------------------------------------------------------------------------------------------------------

# (header, width). Widths are fixed, so that a live run can print each line as its step ends.
_COLUMNS = (
    ("conc", 6),
    ("output tok/s", 14),
    ("tok/s/user", 11),
    ("TTFT p50", 9),
    ("p95 [95 %]", 20),
    ("TPOT p50", 9),
    ("p95 [95 %]", 18),
    ("ok", 6),
    ("failed", 7),
)
_NARROW = (5, 13, 0, 9, 8, 9, 8, 6, 7)  # no tokens per user and no intervals


def tail_percentile(slo: Slo, metric: str) -> float:
    """The percentile shown beside the median: the highest an objective names, else 95."""
    named = [o.percentile for o in slo.objectives if o.metric == metric and o.percentile in (90.0, 95.0, 99.0)]
    return max((p for p in named if p is not None), default=95.0)


def table_head(slo: Slo, *, open_loop: bool = False, width: int = WIDTH) -> str:
    names = [name for name, _ in _COLUMNS]
    names[0] = "rate" if open_loop else names[0]
    for i, metric in ((4, "ttft"), (6, "tpot")):
        names[i] = f"p{tail_percentile(slo, metric):g}" + (" [95 %]" if width >= TABLE_WIDTH else "")
    return _columns(names, width) + "  verdict"


def table_row(summary: StepSummary, mark: Mark, slo: Slo, *, width: int = WIDTH) -> str:
    """One step as a line of the table."""
    wide = width >= TABLE_WIDTH
    cells = [
        load_cell(summary),
        with_error(summary.output_throughput),
        number(summary.tokens_per_user),
    ]
    for metric in ("ttft", "tpot"):
        found = summary.latency.get(metric)
        median = found.at(50.0) if found else None
        tail = found.at(tail_percentile(slo, metric)) if found else None
        shown = with_interval(tail) if wide else number(tail.value if tail and tail.established else None)
        cells += [number(median.value if median else None), shown]
    cells += [f"{summary.requests.get('ok', 0):,}", f"{summary.failed:,}"]
    row = f"{_columns(cells, width)}  {mark.verdict}"
    most = max(width, NARROW_WIDTH)
    # Only a failure names what broke: of an undecided level these would only be what it leans to.
    broke = mark.broke if mark.verdict == "fail" else ()
    if broken_by_failures(summary, mark):  # a note names the objectives
        return f"{row} by failures" if len(row) + len(" by failures") <= most else f"{row} failures"
    if broke[1:] and len(" ".join((row, *broke))) > most:
        broke = (broke[0], f"+{len(broke) - 1}")
    row = " ".join((row, *broke)).rstrip()
    return row if len(row) <= most else row[: most - 1] + "…"


def broken_by_failures(summary: StepSummary, mark: Mark) -> bool:
    """Did failures alone break all that the step broke? The latencies shown, of answered requests, do not tell so."""
    failed = {check.objective for check in summary.objectives if by_failures(check)}
    return mark.verdict == "fail" and bool(mark.broke) and failed.issuperset(mark.broke)


def load_cell(summary: StepSummary) -> str:
    """`64` requests in flight, or `20/s`."""
    if summary.rate is not None:
        return f"{summary.rate:,.6g}/s"
    return f"{summary.concurrency:,}" if summary.concurrency else NONE


def _columns(cells: Sequence[str], width: int) -> str:
    """Right-aligned; a cell that is too wide takes its room from the next one rather than push the rest of the line."""
    sizes = [size for _, size in _COLUMNS] if width >= TABLE_WIDTH else _NARROW
    text, end = "", 0
    for cell, size in zip(cells, sizes, strict=True):
        if not size:
            continue
        end += size
        text += (" " + cell).rjust(end - len(text))
    return text


# --- beside the table -----------------------------------------------------------------------------------------------


def answer(stop: Stop | None, summaries: Sequence[StepSummary]) -> list[str]:
    """What the run decided, then the figures of the level that held, beside its failures."""
    if stop is None:
        return []
    lines = line("answer", stop.sentence or f"stopped: {stop.reason}")
    held = _held(stop, summaries)
    if held is not None:
        return lines + line("", f"at {load_cell(held)}: {headline(held)}")
    failed, judged = sum(s.failed for s in summaries), sum(s.judged for s in summaries)
    if not judged:
        return lines  # it ended in its warm-up: the failures are told below
    return lines + line("", f"{failed:,} of {plural(judged, 'measured request')} failed")


def _unanswered(facts: RunFacts, summaries: Sequence[StepSummary]) -> bool:
    """Is there more to say than the one step does, of a log without an answer?"""
    return len(summaries) > 1 or (len(summaries) == 1 and facts.status in ("running", "interrupted", "failed"))


def unanswered(facts: RunFacts, summaries: Sequence[StepSummary]) -> list[str]:
    """What was measured, where the log holds no answer: as a run leaves it that is killed."""
    failed, judged = sum(s.failed for s in summaries), sum(s.judged for s in summaries)
    lines = line("answer", measured_text(ENGLISH, facts, summaries))
    return lines + (line("", f"{failed:,} of {plural(judged, 'measured request')} failed") if judged else [])


def _held(stop: Stop | None, summaries: Sequence[StepSummary]) -> StepSummary | None:
    """The step that the answer is about."""
    if stop is None or stop.held is None:
        return None
    return next((s for s in reversed(summaries) if s.load == stop.held), None)


def headline(summary: StepSummary) -> str:
    """The figures of one step in a line; never without its failures."""
    parts = []
    if summary.output_throughput:
        parts.append(f"{with_error(summary.output_throughput)} output tokens/s")
    if summary.completion_rate:
        parts.append(f"{number(summary.completion_rate.value, 2)} requests/s")
    for metric in ("ttft", "tpot"):
        found = summary.latency.get(metric)
        q = found.at(95.0) if found else None
        if q is not None and q.established:
            parts.append(f"{metric.upper()} p95 {number(q.value)} ms")
    parts.append(f"{summary.failed:,} of {summary.judged:,} failed")
    return " · ".join(parts)


def client(summaries: Sequence[StepSummary]) -> list[str]:
    """What the client says of itself: its error, and where it was the limit what to change."""
    text = error_text(summaries)
    lines = line("error", text) if text else []
    for i, limit in enumerate(limit_texts(summaries)):
        lines += line("" if i else "client", limit)
    return lines


def cause(facts: RunFacts) -> list[str]:
    """What a diagnosis names first, and the command that says more."""
    if not facts.cause:
        return []
    command = f"loadgen diagnose {facts.source}"
    whole = f"{facts.cause} → {command}"
    return line("cause", whole) if len(whole) <= WIDTH - LABEL else [*line("cause", facts.cause), " " * LABEL + command]


def failures(summaries: Sequence[StepSummary]) -> list[str]:
    """Every kind of failure with its count and first message, most frequent first."""
    kinds: Counter[str] = Counter()
    for summary in summaries:
        for what, n in summary.errors:
            kinds[what] += n
    lines: list[str] = []
    shown = kinds.most_common(MOST_FAILURES)
    for what, n in shown:
        lines += line("" if lines else "failed", f"{n:,} × {what}")
    rest = sum(kinds.values()) - sum(n for _, n in shown)
    return lines + (line("", f"{rest:,} of {len(kinds) - len(shown)} other kinds") if rest else [])


def notes(facts: RunFacts, summaries: Sequence[StepSummary]) -> list[str]:
    """What a reader of the figures has to know of them, one sentence each."""
    flags: Counter[str] = Counter()
    for summary in summaries:
        flags.update(summary.flags)
    sent = sum(s.sent for s in summaries)
    found = list(facts.notes)
    if facts.status == "interrupted":
        found.append("the run did not get to its end: what is shown is what was measured until then")
    if facts.truncated_lines:
        found.append(f"{plural(facts.truncated_lines, 'half-written line')} at the end of the log dropped")
    found += unsteady_notes(summaries)
    if n := flags["short_output"]:
        found.append(f"{n:,} of {plural(sent, 'answer')} shorter than asked{_got(summaries)}")
    if n := sum(s.longer for s in summaries):
        found.append(
            f"{n:,} of {plural(sent, 'answer')} with more output tokens, by the server's count, than were asked for"
        )
    off = max((s.input_deviation or 0.0 for s in summaries), key=abs, default=0.0)
    if abs(off) > 0.02:
        found.append(f"a step's prompts were {100 * off:+.1f} % off the length asked for, by the server's count")
    found += asked_notes(summaries, facts.asked)
    if n := flags["usage_missing"]:
        found.append(
            f"{n:,} of {plural(sent, 'answer')} without the usage that was asked for: tokens counted otherwise"
        )
    if n := flags["not_streamed"]:
        found.append(
            f"{n:,} of {plural(sent, 'answer')} not streamed: their TTFT, TPOT and ITL are n/a (not streaming)"
        )
    if n := flags["malformed_events"]:
        found.append(f"{n:,} of {plural(sent, 'answer')} with events that are not JSON; these events were passed over")
    if n := sum(s.retries for s in summaries):
        found.append(
            f"sent again {plural(n, 'time')} after a 429 or 503, and {flags['retried']:,} of {plural(sent, 'answer')}"
            " came only then: latencies run from the first send"
        )
    share = max((s.estimated_token_share for s in summaries if s.output_throughput), default=0.0)
    if share > 0.01 and not facts.is_csv:
        found.append(f"up to {percent(share)} of a step's output tokens placed in its window by estimate")
    found += cache_notes(summaries, apart=facts.apart)
    residuals = [s.littles_law_residual for s in without_redone(summaries) if s.littles_law_residual is not None]
    worst = max(residuals, key=abs, default=0.0)
    if abs(worst) > 0.05:
        found.append(f"the requests in flight and their times disagree by {percent(abs(worst))} (Little's law)")
    found += late_notes(summaries)
    found += burst_notes(summaries)
    found += server_notes(summaries)
    found += health_notes(summaries)
    for summary in summaries:
        found += arrival_notes(summary)
    lines: list[str] = []
    for note in found:
        lines += line("" if lines else "note", note)
    return lines


def late_notes(summaries: Sequence[StepSummary]) -> list[str]:
    """Where an objective is broken by failures, whatever the latencies of the answered requests are."""
    loads: dict[str, list[str]] = {}
    for s in summaries:
        for check in s.objectives:
            if check.verdict == "fail" and by_failures(check):
                loads.setdefault(check.objective, []).append(load_cell(s))
    return [
        f"failures break {name} at {', '.join(dict.fromkeys(at))}: a failed request counts as infinitely late, which"
        " the latencies of the answered ones do not show"
        for name, at in loads.items()
    ]


def burst_notes(summaries: Sequence[StepSummary]) -> list[str]:
    """Where output was held back on its way and came in bursts."""
    found = [s.bursts for s in summaries if s.bursts]
    if not found:
        return []
    worst = max(found, key=lambda b: b.every_ms)
    requests, judged = sum(b.requests for b in found), sum(b.judged for b in found)
    return [
        f"{requests:,} of {plural(judged, 'answer')} came in bursts, up to {number(worst.events)} events at once every"
        f" {number(worst.every_ms)} ms: a proxy that buffers stands before the server (nginx: proxy_buffering off), or"
        " the server itself writes so; TTFT and ITL tell of the bursts, not of the model"
    ]


def arrival_notes(summary: StepSummary) -> list[str]:
    """Where an open loop was not what was asked for, or could not last."""
    rate, achieved, done = summary.rate, summary.attempt_rate, summary.completion_rate
    if rate is None:
        return []
    found = []
    if summary.held_back:
        short = f": {number(achieved)} of the {rate:,g} requests/s asked for were sent" if achieved is not None else ""
        short = "" if summary.sessions else short
        found.append(
            f"the limit of {summary.max_in_flight:,} in flight held back {plural(summary.held_back, 'request')}{short};"
            " TTFT and E2E from schedule include the wait, the others do not"
        )
    if summary.not_dispatched:
        n = plural(summary.not_dispatched, "arrival")
        found.append(f"{n} due in the window could not be sent by its end, and never {_was(summary.not_dispatched)}")
    behind = done is not None and done.high is not None and achieved is not None and done.high < 0.95 * achieved
    if behind and done is not None and not summary.failed:
        found.append(
            f"the server completed {number(done.value)} of {number(achieved)} requests/s sent: it does not keep up,"
            " so that latencies grow with the length of the step"
        )
    return found


def _was(n: int) -> str:
    return "was" if n == 1 else "were"


def _got(summaries: Sequence[StepSummary]) -> str:
    both = [
        (s.output_tokens_mean, s.output_asked_mean, s.requests.get("ok", 0))
        for s in summaries
        if s.output_tokens_mean is not None and s.output_asked_mean
    ]
    total = sum(n for _, _, n in both)
    if not total:
        return ""
    got, asked = (sum(row[i] * row[2] for row in both) / total for i in (0, 1))
    return f": {number(got)} tokens on average where {number(asked)} were asked for ({percent(got / asked)})"


def log(facts: RunFacts) -> list[str]:
    counts = f"{plural(facts.requests, 'request')}, {facts.failed:,} failed"
    if facts.is_csv or facts.source in ("-", "stdin"):
        return line("log", f"{facts.source} · {counts}")
    run = facts.source
    commands = [f"loadgen report {run} --details", f"loadgen export {run} --format csv"]
    if facts.resumable and not run.endswith(".jsonl"):
        commands.insert(0, f"loadgen sweep --resume {run}")
    whole = f"{run} · {counts} · {' · '.join(commands)}"
    if len(whole) <= WIDTH - LABEL:
        return line("log", whole)
    return [*line("log", f"{run} · {counts}"), *(" " * LABEL + command for command in commands)]
