"""The one screen of a run: who was measured, one line a step, the answer, and what there is to know beside it. Pure.

Lines for which nothing was measured are left out. Every line fits 120 columns and holds no control characters.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..records import Slo, StepSummary, Stop
from .details import step_details
from .facts import RunFacts
from .numbers import NONE, clean, number, percent, plural, with_error, with_interval

WIDTH = 120
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
) -> str:
    """The whole report as lines of plain text. `marks` is the verdict of each step by its number; `slo` chooses which
    percentile stands beside the median. A run of one step is shown with its details."""
    slo = slo or Slo()
    parts = [head(facts)]
    if not summaries:
        parts.append(["no request was measured"])
    elif not (facts.is_csv and len(summaries) == 1):
        parts.append([table_head(slo), *(table_row(s, marks.get(s.step, Mark("")), slo) for s in summaries)])
    if summaries and (details or len(summaries) == 1):
        parts += [step_details(s, in_seconds=facts.is_csv) for s in summaries]
    parts.append([*answer(stop, summaries), *failures(summaries), *notes(facts, summaries), *log(facts)])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def line(label: str, text: str) -> list[str]:
    """`label     text`, wrapped under itself."""
    return textwrap.wrap(
        clean(text),
        WIDTH,
        initial_indent=label.ljust(LABEL),
        subsequent_indent=" " * LABEL,
        break_on_hyphens=False,
    )


def head(facts: RunFacts) -> list[str]:
    """target, workload and clock."""
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
    if facts.clock:
        lines += line("clock", _CLOCKS.get(facts.clock, facts.clock))
    return lines


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


def tail_percentile(slo: Slo, metric: str) -> float:
    """The percentile shown beside the median: the highest an objective names, else 95."""
    named = [o.percentile for o in slo.objectives if o.metric == metric and o.percentile in (90.0, 95.0, 99.0)]
    return max((p for p in named if p is not None), default=95.0)


def table_head(slo: Slo) -> str:
    names = [name for name, _ in _COLUMNS]
    names[4] = f"p{tail_percentile(slo, 'ttft'):g} [95 %]"
    names[6] = f"p{tail_percentile(slo, 'tpot'):g} [95 %]"
    return _columns(names) + "  verdict"


def table_row(summary: StepSummary, mark: Mark, slo: Slo) -> str:
    """One step as a line of the table."""
    cells = [
        f"{summary.concurrency:,}" if summary.concurrency else NONE,
        with_error(summary.output_throughput),
        number(summary.tokens_per_user),
    ]
    for metric in ("ttft", "tpot"):
        found = summary.latency.get(metric)
        median = found.at(50.0) if found else None
        cells += [
            number(median.value if median else None),
            with_interval(found.at(tail_percentile(slo, metric)) if found else None),
        ]
    cells += [f"{summary.requests.get('ok', 0):,}", f"{summary.failed:,}"]
    row = f"{_columns(cells)}  {mark.verdict}"
    # Only a failure names what broke: of an undecided level these would only be what it leans to.
    broke = mark.broke if mark.verdict == "fail" else ()
    if broke[1:] and len(" ".join((row, *broke))) > WIDTH:
        broke = (broke[0], f"+{len(broke) - 1}")
    row = " ".join((row, *broke)).rstrip()
    return row if len(row) <= WIDTH else row[: WIDTH - 1] + "…"


def _columns(cells: Sequence[str]) -> str:
    """Right-aligned; a cell that is too wide takes its room from the next one rather than push the rest of the line."""
    text, end = "", 0
    for cell, (_, width) in zip(cells, _COLUMNS, strict=True):
        end += width
        text += (" " + cell).rjust(end - len(text))
    return text


# --- beside the table -----------------------------------------------------------------------------------------------


def answer(stop: Stop | None, summaries: Sequence[StepSummary]) -> list[str]:
    """What the run decided, then the figures of the level that held, beside its failures."""
    if stop is None:
        return []
    lines = line("answer", stop.sentence or f"stopped: {stop.reason}")
    held = next((s for s in reversed(summaries) if stop.held is not None and s.concurrency == stop.held), None)
    if held is not None:
        return lines + line("", f"at {held.concurrency:,}: {headline(held)}")
    failed, judged = sum(s.failed for s in summaries), sum(s.judged for s in summaries)
    return lines + line("", f"{failed:,} of {plural(judged, 'measured request')} failed")


def headline(summary: StepSummary) -> str:
    """The figures of one step in a line; never without its failures."""
    parts = []
    if summary.output_throughput:
        parts.append(f"{with_error(summary.output_throughput)} output tokens/s")
    if summary.request_throughput:
        parts.append(f"{number(summary.request_throughput.value, 2)} requests/s")
    for metric in ("ttft", "tpot"):
        found = summary.latency.get(metric)
        q = found.at(95.0) if found else None
        if q is not None and q.established:
            parts.append(f"{metric.upper()} p95 {number(q.value)} ms")
    parts.append(f"{summary.failed:,} of {summary.judged:,} failed")
    return " · ".join(parts)


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
    if n := flags["short_output"]:
        found.append(f"{n:,} of {plural(sent, 'answer')} shorter than asked{_got(summaries)}")
    if n := flags["usage_missing"]:
        found.append(
            f"{n:,} of {plural(sent, 'answer')} without the usage that was asked for: tokens counted otherwise"
        )
    if n := flags["not_streamed"]:
        found.append(f"{n:,} of {plural(sent, 'answer')} not streamed: they have no TTFT, TPOT or ITL")
    if n := flags["malformed_events"]:
        found.append(f"{n:,} of {plural(sent, 'answer')} with events that are not JSON; these events were passed over")
    share = max((s.estimated_token_share for s in summaries if s.output_throughput), default=0.0)
    if share > 0.01 and not facts.is_csv:
        found.append(f"up to {percent(share)} of a step's output tokens placed in its window by estimate")
    cached = max((s.cached_share or 0.0 for s in summaries), default=0.0)
    if cached > 0.01:
        found.append(f"up to {percent(cached)} of a step's prompt tokens came from the server's prefix cache")
    residuals = [s.littles_law_residual for s in summaries if s.littles_law_residual is not None]
    worst = max(residuals, key=abs, default=0.0)
    if abs(worst) > 0.05:
        found.append(f"the requests in flight and their times disagree by {percent(abs(worst))} (Little's law)")
    lines: list[str] = []
    for note in found:
        lines += line("" if lines else "note", note)
    return lines


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
    commands = (f"loadgen report {run} --details", f"loadgen export {run} --format csv")
    whole = f"{run} · {counts} · {' · '.join(commands)}"
    if len(whole) <= WIDTH - LABEL:
        return line("log", whole)
    return [*line("log", f"{run} · {counts}"), *(" " * LABEL + command for command in commands)]
