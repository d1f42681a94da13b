"""A log as `report`, `plot` and their pages read it: opened, summarised and judged once."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..records import SCHEMA_VERSION
from .values import keep_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..log.columns import ColumnBuilder, Columns
    from ..log.store import Run
    from ..report.charts.figure import Buckets, View
    from ..report.facts import RunFacts
    from ..report.page.notes import Finding
    from ..report.text import Mark
    from ..results import Slo, StepSummary, Stop

ENOUGH = 100  # completed requests of one load, to be sorted into buckets by themselves

# What a diagnosis names → the chart that shows it.
CHART_OF = {
    "client_bound": "instrument",
    "gateway_limit": "failures",
    "admission_limit": "failures",
    "requests_failing": "failures",
    "buffering_proxy": "itl",
    "speculation": "itl",
    "kv_exhausted": "timeline",
    "overload": "throughput",
    "batch_limit": "timeline",
    "queueing": "latency",
    "long_prompts": "input",
    "prefill_bound": "input",
    "prefix_cache": "input",
    "prefix_cache_contaminated": "input",
    "decode_bound": "throughput",
    "network": "latency",
    "out_of_reach": "latency",
    "unsteady": "timeline",
    "unidentified": "throughput",
}


@dataclass(frozen=True)
class Told:
    """A run that was read. `table` holds all its requests, `counted` those of the steps that count, of the one `step`
    asked for if any; both are made when they are looked at. `judged_again` says that its objectives are not its own."""

    run: Run
    builder: Callable[[], ColumnBuilder]
    step: int | None
    summaries: list[StepSummary]
    marks: dict[int, Mark]
    stop: Stop | None
    slo: Slo
    facts: RunFacts
    judged_again: bool

    @functools.cached_property
    def table(self) -> Columns:
        return self.builder().table()

    @functools.cached_property
    def counted(self) -> Columns:
        counted = self.table.without(self.run.uncounted)
        return counted.where(counted.step == self.step) if self.step is not None else counted


def read_run(path: str, slo_texts: Sequence[str] = (), step: int | None = None) -> Told:
    """Raises LogError for what is no log, UsageError for objectives that cannot be meant, or a step that it has not."""
    from ..log.store import open_run
    from ..report.facts import facts_of
    from ..slo import parse_slo
    from .digest import digest
    from .report import answer_again, manifest_slo, marks_of

    asked = parse_slo(slo_texts) if slo_texts else None
    run = open_run(path)
    slo = asked if asked is not None else manifest_slo(run.manifest)
    found, builder = digest(run, slo)
    summaries = list(found.summaries)
    missing = {s.step: lost for s in summaries if (lost := run.sent.get(s.step, 0) - s.sent) > 0}
    once = sum(max(s.sent, run.sent.get(s.step, 0)) for s in summaries)
    marks = marks_of(run, summaries, slo, again=asked is not None, anew=missing)
    if step is not None:
        if step not in marks:
            listed = f"it has {', '.join(map(str, marks))}" if marks else "it has none"
            raise UsageError(f"{run.source} has no step {step}", listed)
        summaries, marks = [s for s in summaries if s.step == step], {step: marks[step]}
    own = run.stop if step is None and not missing else None  # an answer to what is not there is none of this log
    stop = answer_again(summaries, marks) if asked is not None else own
    facts = facts_of(
        run.manifest,
        source=run.source,
        status=run.status,
        requests=found.requests,
        failed=found.failed,
        truncated_lines=run.truncated_lines,
        is_csv=run.is_csv,
    )
    facts = replace(facts, notes=(*_warnings(run, sum(missing.values()), once), *facts.notes))
    return Told(run, builder, step, summaries, marks, stop, slo, facts, asked is not None)


def _warnings(run: Run, missing: int, once: int) -> list[str]:
    """What a reader has to know before he believes a figure."""
    found = []
    if missing:
        found.append(
            f"{missing:,} of {once:,} measured requests are missing from requests.jsonl, which was cut or changed"
            " after the run: the run's own answer is not of these, and is left out"
        )
    if run.newer is not None:
        found.append(
            f"written by a newer loadgen (form {run.newer}, and this one knows {SCHEMA_VERSION}): what is new in it is"
            " left out, and what it means may have changed"
        )
    return found


def view_of(
    told: Told,
    *,
    gpus: int | None = None,
    price: float | None = None,
    language: str = "en",
    width: int | None = None,
    by: Sequence[str] = (),
) -> View:
    """The run as it is drawn; `by` are two axes of requests for one more heat map."""
    from ..analysis.series import series
    from ..report.charts.figure import View
    from ..report.words import Words

    view = View(
        told.facts,
        told.summaries,
        told.marks,
        told.stop,
        told.slo,
        series(told.counted, told.summaries, told.run.server),
        _buckets(told, by),
        told.run.manifest or {},
        gpus=gpus,
        price=price,
        words=Words(language),
    )
    if width is None:
        return view
    return replace(view, width=width)


def _buckets(told: Told, by: Sequence[str]) -> list[Buckets]:
    """By load and input of all requests, and by both lengths at the answer's load, where it has enough: of several
    loads together a bucket's latency says more of the loads than of the lengths."""
    from ..analysis.buckets import by_buckets
    from ..report.charts.figure import Buckets

    found = []
    if len(told.summaries) > 1:
        found.append(Buckets(None, by_buckets(told.counted, ("concurrency", "input"), told.summaries)))
    held = told.stop.held if told.stop else None
    steps = [s for s in told.summaries if s.load == held] if len(told.summaries) > 1 else told.summaries
    steps = [s for s in steps if s.requests.get("ok", 0) >= ENOUGH][-1:]
    if steps:
        mine = told.counted.where(told.counted.step == steps[0].step)
        name = f"{steps[0].load:,g}" if steps[0].load else None
        found.append(Buckets(name, by_buckets(mine, ("output", "input"), steps)))
    if len(by) == 2:
        found.append(Buckets(None, by_buckets(told.counted, by, told.summaries)))
    return [one for one in found if one.cells]


def findings_of(told: Told, language: str = "en") -> list[Finding]:
    """What a diagnosis finds, as items of a page."""
    from ..analysis.diagnose import diagnose
    from ..report.page.notes import found_by
    from ..report.words import Words
    from .diagnose import measured

    if not told.summaries:
        return []
    words = Words(language)
    return [found_by(one, words, CHART_OF.get(one.cause, "")) for one in diagnose(measured(told)).findings]


def write_page(path: str, page: str) -> None:
    """To a file, or to stdout with -. Raises LogError where it cannot be written."""
    import sys
    from pathlib import Path

    import click

    from ..errors import LogError
    from ..log.whole import write_whole
    from .streams import reader_may_go

    data = page.encode("utf-8", "replace")
    if path == "-":
        with reader_may_go():
            sys.stdout.buffer.write(data)
        return
    try:
        write_whole(Path(path), data)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LogError(f"{path} cannot be written: {reason}", "give another file with --html") from None
    click.echo(f"page      {path} · {len(data) / 1e6:.2f} MB, complete in itself", err=True)


def check_page(html: str, *read: str, as_json: bool) -> None:
    """Raises UsageError where the page has no place to go, or nothing to draw it with."""
    if not html:
        raise UsageError("--html has no file", "give one, or - for stdout")
    if html == "-" and as_json:
        raise UsageError("--json and --html - both go to stdout", "give the page a file")
    if html != "-":
        keep_apart(html, *read, flag="--html")
    need_charts()


def check_price(gpus: int | None, price: float | None) -> None:
    if price is not None and gpus is None:
        raise UsageError("--price is that of one GPU, and how many there are is not told", "add --gpus N")


def need_charts() -> None:
    """Raises UsageError, in one sentence, where the extra that draws is not installed."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError:
        raise UsageError("charts need the plot extra", "pip install 'loadgen[plot]'") from None
