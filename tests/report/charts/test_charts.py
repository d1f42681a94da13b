"""Chart specs: valid, bounded, true to the run, and None where it has nothing to draw."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import altair as alt
import pytest
import vl_convert

from loadgen.cli.plot import NAMES
from loadgen.cli.reading import read_run, view_of
from loadgen.report.charts import CHARTS, View, figures
from loadgen.report.charts.figure import MOST_LOADS
from loadgen.report.charts.levels import knee
from loadgen.report.charts.render import VEGA_LITE, svg
from loadgen.report.charts.style import DARK
from loadgen.report.page.run import shown_step
from loadgen.report.text import Mark, answer
from loadgen.report.words import Words
from loadgen.results import Estimate, Slo, Stop
from tests.report.drawn import LEVELS, drawn_run


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    folder = drawn_run(tmp_path_factory.mktemp("runs"), each=120)
    return view_of(read_run(str(folder)), gpus=4, price=2.5)


def values(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Every row of data in a spec, each set of rows once."""
    return [row for rows in spec["datasets"].values() for row in rows]


def test_the_command_line_names_the_charts_there_are() -> None:
    assert set(NAMES) == set(CHARTS)


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_is_valid_compiles_and_has_its_figures_in_a_table_with_n(view: View, name: str) -> None:
    figure = CHARTS[name](view)
    assert figure is not None
    assert figure.name == name
    few = {name: rows[:1] for name, rows in figure.spec["datasets"].items()}  # each row takes the validator its time
    alt.Chart.from_dict({**figure.spec, "datasets": few}, validate=True)
    vl_convert.vegalite_to_vega(figure.spec, vl_version=VEGA_LITE)
    json.dumps(figure.spec, allow_nan=False)
    assert figure.table.rows
    assert {len(row) for row in figure.table.rows} == {len(figure.table.head)}
    assert "n" in figure.table.head
    assert any(char.isdigit() for char in figure.caption)
    rows = values(figure.spec)
    assert rows
    assert len(rows) < 4000


def test_every_chart_has_other_words_in_another_language(view: View) -> None:
    english = {figure.name: figure for figure in figures(view)}
    for figure in figures(dataclasses.replace(view, words=Words("zh"))):
        assert figure.title != english[figure.name].title
        assert figure.caption != english[figure.name].caption
        assert len(figure.table.rows) == len(english[figure.name].table.rows)


def test_throughput_is_drawn_as_it_was_measured(view: View) -> None:
    figure = CHARTS["throughput"](view)
    assert figure is not None
    points = {row["load"]: row for row in values(figure.spec) if "verdict" in row}
    assert list(points) == list(LEVELS)
    for s in view.summaries:
        e = s.output_throughput
        assert e is not None
        assert (points[s.load]["value"], points[s.load]["low"], points[s.load]["high"]) == (e.value, e.low, e.high)
    labels = [row["text"] for row in values(figure.spec) if "text" in row]
    assert "answer 16" in labels


@pytest.mark.parametrize(
    ("reason", "held", "limit", "labels"),
    [
        ("slo:ttft_p95", 16, 16, ["answer 16"]),
        ("slo:ttft_p95", 8, 16, ["answer 8", "likely limit 16"]),
        ("slo:ttft_p95", None, 16, ["likely limit 16"]),
        ("unstable", 16, 16, ["answer 16"]),
        ("budget:time", 16, 24, ["answer 16"]),  # as logs have it where a step was cut short
        ("interrupted", 16, 24, ["answer 16"]),
        ("plateau", 32, None, ["answer 32"]),
        ("max_level", 64, None, ["answer 64"]),
        ("errors", 8, None, ["answer 8"]),
        ("client_bound", None, None, []),
    ],
)
def test_the_chart_names_the_load_whose_figures_the_answer_gives(
    view: View, reason: str, held: float | None, limit: float | None, labels: list[str]
) -> None:
    stop = Stop(reason, held, 32 if reason.startswith("slo") else None, None, "", limit=limit)
    mine = dataclasses.replace(view, stop=stop)
    figure = CHARTS["throughput"](mine)
    assert figure is not None
    assert [row["text"] for row in values(figure.spec) if "text" in row and "knee" not in row["text"]] == labels
    step = shown_step(mine)
    assert (step.load if step else None) == held == mine.answer
    text = "\n".join(answer(stop, view.summaries))
    assert (f"at {held:g}: " in text) if held else "at " not in text


@pytest.mark.parametrize(
    ("language", "one", "several"), [("en", "each of 120.", "to 120."), ("zh", "每步 120 个", "至 120 个")]
)
def test_how_many_a_step_had_is_one_figure_or_two(view: View, language: str, one: str, several: str) -> None:
    first, last = view.summaries[0], view.summaries[-1]
    for steps, said, other in (([first], one, several), ([first, last], several, one)):
        figure = CHARTS["latency"](dataclasses.replace(view, summaries=steps, words=Words(language)))
        assert figure is not None and said in figure.caption and other not in figure.caption


def test_the_band_of_marginal_loads_is_explained(view: View) -> None:
    figure = CHARTS["throughput"](view)
    assert figure is not None and view.stop is not None
    assert "Shaded: the loads at which ttft_p95 stays within 5 % of its limit." in figure.caption
    bare = CHARTS["throughput"](dataclasses.replace(view, stop=dataclasses.replace(view.stop, band=None)))
    assert bare is not None and "Shaded" not in bare.caption


def test_the_knee_is_where_the_asymptotes_meet(view: View) -> None:
    def at(*throughputs: float, half: float = 0.02, marks: dict[int, Mark] | None = None) -> float | None:
        steps = [
            dataclasses.replace(s, output_throughput=Estimate(x, x * (1 - half), x * (1 + half)))
            for s, x in zip(view.summaries, throughputs, strict=False)
        ]
        return knee(dataclasses.replace(view, summaries=steps, marks=marks or {}))

    flat = [min(10.0 * s.load, 150.0) for s in view.summaries]
    assert at(*flat) == pytest.approx(15.0)
    assert at(*flat, half=0.3) is None, "it is not proven that it no longer grows"
    assert at(*(10.0 * s.load for s in view.summaries)) is None, "it grows in proportion"
    assert at(*(10.0 * s.load**0.9 for s in view.summaries)) is None, "it still grows"
    assert at(10.0, 19.3) is None, "two loads show no plateau"
    assert at(10.0, 20.0, 35.0, 30.0) == pytest.approx(3.5), "it fell"
    void = {s.step: Mark("invalid") for s in view.summaries if s.load > 8}
    assert at(*flat, marks=void) is None, "all that is flat is of this client"
    bare = [dataclasses.replace(s, output_throughput=Estimate(x)) for s, x in zip(view.summaries, flat, strict=True)]
    assert knee(dataclasses.replace(view, summaries=bare)) is None


def test_a_knee_and_its_asymptotes_are_drawn_together_or_not_at_all(view: View) -> None:
    flat, linear = (
        [
            dataclasses.replace(s, output_throughput=Estimate(x, 0.99 * x, 1.01 * x))
            for s in view.summaries
            for x in (min(10.0 * s.load, most),)
        ]
        for most in (150.0, 1e9)
    )
    for steps, drawn in ((flat, True), (linear, False)):
        figure = CHARTS["throughput"](dataclasses.replace(view, summaries=steps, stop=None))
        assert figure is not None
        assert any("knee" in row.get("text", "") for row in values(figure.spec)) == drawn
        assert any(row.get("which") == "b" for row in values(figure.spec)) == drawn
        assert ("knee" in figure.caption) == drawn


def test_steps_that_this_client_shaped_are_marked_and_on_no_front(view: View) -> None:
    best = max(view.drawn, key=lambda s: s.output_throughput.value if s.output_throughput else 0.0)
    mine = dataclasses.replace(view, marks={**view.marks, best.step: Mark("invalid")})
    for name in ("throughput", "pareto", "latency", "instrument"):
        figure = CHARTS[name](mine)
        assert figure is not None
        told = [row for row in values(figure.spec) if row.get("void") and "tip" in row]
        assert told and all("invalid" in row["tip"] for row in told)
        assert "not counted" in figure.caption
        before = CHARTS[name](view)
        assert before is not None and "not counted" not in before.caption
    figure = CHARTS["pareto"](mine)
    assert figure is not None
    fronts = {row[0]: row[figure.table.head.index("front")] for row in figure.table.rows}
    assert fronts[f"{best.load:g}"] == "invalid" and "on the front" in fronts.values()
    for name in ("itl", "distributions"):
        figure = CHARTS[name](mine)
        assert figure is not None
        assert f"{best.load:g} (invalid)" in {row["load"] for row in values(figure.spec) if "load" in row}


def test_objectives_are_lines_and_weak_percentiles_are_hollow(view: View) -> None:
    figure = CHARTS["latency"](view)
    assert figure is not None
    rows = values(figure.spec)
    assert {row["text"]: row["value"] for row in rows if "text" in row} == {
        "ttft_p95 ≤ 400 ms": 400.0,
        "tpot_p95 ≤ 50.0 ms": 50.0,
    }
    weak = [
        q for s in view.summaries for m in ("ttft", "tpot", "e2e") for p in (50.0, 95.0) if (q := s.latency[m].at(p))
    ]
    assert sum(not q.established for q in weak) == sum(row.get("sure") is False and "low" in row for row in rows) // 2


def test_the_pareto_curve_is_per_gpu_and_has_a_price(view: View) -> None:
    figure = CHARTS["pareto"](view)
    assert figure is not None
    point = next(row for row in values(figure.spec) if row.get("label") == "16" and "tip" in row)
    found = next(s for s in view.summaries if s.load == 16)
    assert found.output_throughput is not None
    assert point["value"] == pytest.approx(found.output_throughput.value / 4)
    assert point["cost"] == pytest.approx(2.5 * 4 / (found.output_throughput.value * 3600 / 1e6))
    alone = CHARTS["pareto"](dataclasses.replace(view, gpus=None, price=None))
    assert alone is not None
    assert "cost" not in " ".join(alone.table.head)


def test_a_run_of_failures_has_its_failures_and_its_time_to_show(tmp_path: Path) -> None:
    told = read_run(str(drawn_run(tmp_path, failing=1.0, levels=(1, 8), each=30)))
    assert [figure.name for figure in figures(view_of(told))] == ["timeline", "failures"]


def test_a_run_without_requests_has_nothing_to_show(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"status": "running"}')
    assert figures(view_of(read_run(str(tmp_path)))) == []


def test_one_request_is_enough_for_a_chart(tmp_path: Path) -> None:
    told = read_run(str(drawn_run(tmp_path, levels=(4,), each=1)))
    names = {figure.name for figure in figures(view_of(told))}
    assert {"latency", "timeline", "itl"} <= names


def test_a_thousand_steps_are_thinned(view: View) -> None:
    many = [dataclasses.replace(view.summaries[0], step=i, concurrency=i) for i in range(1, 1001)]
    wide = dataclasses.replace(view, summaries=many, marks={}, slo=Slo())
    assert len(wide.drawn) == MOST_LOADS
    assert (wide.drawn[0].load, wide.drawn[-1].load) == (1, 1000)
    figure = CHARTS["throughput"](wide)
    assert figure is not None
    assert len(values(figure.spec)) < 1000


def test_ink_on_a_dark_ground_is_told_for_every_colour_of_a_chart(view: View) -> None:
    heat = {"#141414", "#fdfdfd"}
    figure = CHARTS["throughput"](view)
    assert figure is not None
    drawn = svg(figure.spec)
    used = {part.split('"')[1] for key in ("fill", "stroke") for part in drawn.split(f" {key}=")[1:] if part[0] == '"'}
    assert {colour for colour in used if colour.startswith("#")} - heat <= set(DARK)
