"""`loadgen plot` and the pages' flags as a person types them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.support import loadgen
from tests.report.drawn import drawn_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(drawn_run(tmp_path_factory.mktemp("runs"), levels=(1, 8), each=60))


def test_a_chart_is_written_as_svg_and_png(run: str, tmp_path: Path) -> None:
    for name, start in (("a.svg", b"<svg"), ("a.png", b"\x89PNG")):
        ran = loadgen("plot", run, "-o", str(tmp_path / name), "--chart", "pareto", "--lang", "zh", "--width", "300")
        assert (ran.code, ran.out) == (0, ""), ran.err
        assert (tmp_path / name).read_bytes().startswith(start)


def test_the_charts_are_listed() -> None:
    ran = loadgen("plot", "--list")
    assert ran.code == 0
    assert [line.split()[0] for line in ran.out.splitlines()][:2] == ["throughput", "latency"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "the picture has no name"),
        (["-o", "x.pdf"], "neither .svg nor .png"),
        (["-o", "x.svg", "--chart", "latncy"], "did you mean latency?"),
        (["-o", "x.svg", "--price", "3"], "add --gpus N"),
        (["-o", "x.svg", "--step", "9"], "has no step 9"),
        (["-o", "x.svg", "--chart", "failures"], "has nothing for the chart failures"),
        (["-o", "no/such/folder/x.svg"], "cannot be written"),
        (["-o", "x.svg", "--gpus", "0"], "not a whole number"),
        (["-o", "x.svg", "--lang", "xx"], "xx"),
    ],
)
def test_a_mistake_is_one_sentence(run: str, flags: list[str], said: str) -> None:
    ran = loadgen("plot", run, *flags)
    assert ran.code == 2
    assert said in ran.err
    assert len(ran.err.splitlines()) <= 2
    assert not Path("x.svg").exists()


@pytest.mark.parametrize(
    "command", [["plot", "nothing-there", "-o", "x.svg"], ["report", "nothing-there", "--html", "x.html"]]
)
def test_what_is_not_there_is_said_to_be_missing(command: list[str]) -> None:
    ran = loadgen(*command)
    assert ran.code == 2
    assert "does not exist" in ran.err


def test_a_page_does_not_overwrite_its_log(run: str) -> None:
    for command in (["report", run], ["compare", run, run]):
        ran = loadgen(*command, "--html", f"{run}/requests.jsonl")
        assert ran.code == 2
        assert "would be overwritten" in ran.err
    ran = loadgen("report", run, "--json", "--html", "-")
    assert ran.code == 2
    assert "both go to stdout" in ran.err


def test_without_the_extra_one_sentence_says_what_to_install(run: str) -> None:
    commands = [["plot", run, "-o", "x.svg"], ["report", run, "--html", "x"], ["compare", run, run, "--html", "x"]]
    lines = ["import sys", "sys.modules['altair'] = None", "from loadgen.cli.main import main"]
    for command in commands:  # in one process, whose start takes most of the time
        lines += ["try:", f"    main({command!r})", "except SystemExit as end:", "    print(end.code)"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "2\n" * 3
    assert done.stderr == "loadgen: charts need the plot extra\n  → pip install 'loadgen[plot]'\n" * 3
