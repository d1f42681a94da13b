"""The ready workloads: each names where it comes from, and 100,000 draws have the figures of their source."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from loadgen.errors import UsageError
from loadgen.workload.check import check
from loadgen.workload.definition import Workload
from loadgen.workload.lengths import SIDES, Uniform
from loadgen.workload.library import FOLDERS, load_workload, names
from tests.workload.test_definition import PLAIN

ROOT = Path(__file__).parents[2]
MEASURED = (
    *("arxiv-summarization", "azure-2023-chat", "azure-2023-code", "bwb-translation", "mooncake-conversation"),
    *("ragpulse", "servegen-deepseek-r1", "servegen-m-large", "servegen-mm-image", "sharegpt-all-turns"),
    *("sharegpt-first-turn", "sharegpt-multiturn", "weka-claude-code", "weka-claude-code-requests"),
)
FAMILIES = {"inferencex": 3, "nim": 4, "trtllm": 11, "guidellm": 7}


def test_what_is_ready() -> None:
    made = [name for name in names() if name not in MEASURED]
    assert set(MEASURED) <= set(names())
    assert {f: sum(name.startswith(f"{f}-") for name in made) for f in FAMILIES} == FAMILIES
    assert len(made) == sum(FAMILIES.values())


@pytest.mark.parametrize("name", sorted(names()))
def test_draws_reproduce_the_source(name: str) -> None:
    """Mean, p50 and p90 within 5 %, p99 within 10 % of the source's own figures; of a shape, of its formula."""
    workload = load_workload(name)
    assert workload.name == name
    checked = check(workload)
    assert checked.findings == ()
    assert checked.draws == 100_000
    assert {side.by for side in checked.sides.values()} == {"reference" if name in MEASURED else "formula"}


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_one_says_whose_it_is_and_what_is_wrong_with_it(name: str) -> None:
    workload = load_workload(name)
    assert re.search(r"@ [0-9a-f]{8}", workload.source)
    assert workload.licence and workload.attribution and workload.tokenizer and workload.notes
    assert workload.reference_n and workload.reference_n >= 700
    if name.startswith("azure"):
        assert workload.licence == "CC-BY-4.0" and "Microsoft" in workload.attribution
    if name.startswith("servegen-m-large"):
        assert any("63 %" in note for note in workload.notes)


def shape_of(workload: Workload) -> tuple[float, ...]:
    return tuple(number for side in SIDES for number in workload.lengths.span(side))


def test_the_shapes_are_those_of_their_names() -> None:
    for name in names():
        plain = re.fullmatch(r"trtllm-(\d+)-(\d+)", name)
        if plain:
            isl, osl = int(plain[1]), int(plain[2])
            assert shape_of(load_workload(name)) == (isl, isl, osl, osl)
    eight = load_workload("inferencex-8k-1k").lengths.source
    assert eight.input == Uniform(6554, 8192) and eight.output == Uniform(819, 1024)  # type: ignore[union-attr]
    turns = load_workload("guidellm-1k-1k-multiturn")
    assert turns.sessions is not None and turns.sessions.turns.span == (5, 5)
    assert turns.sharing is not None and (turns.sharing.tokens, turns.sharing.groups) == (512, 10)


def test_input_and_output_hang_together_as_in_the_source() -> None:
    for name, rho in (("bwb-translation", 0.8053), ("azure-2023-code", -0.021), ("ragpulse", 0.4207)):
        inputs, outputs, _ = load_workload(name).lengths.sample(0, 50_000)
        assert spearmanr(inputs, outputs).statistic == pytest.approx(rho, abs=0.04), name


def test_conversations_have_the_turns_of_their_source() -> None:
    for name, p50, p90, mean in (("sharegpt-multiturn", 4, 12, 5.41), ("weka-claude-code", 45, 157, 69.5)):
        sessions = load_workload(name).sessions
        assert sessions is not None
        turns = [sessions.turns_of(1, k) for k in range(5000)]
        assert np.median(turns) == pytest.approx(p50, rel=0.1)
        assert np.quantile(turns, 0.9) == pytest.approx(p90, rel=0.1)
        assert np.mean(turns) == pytest.approx(mean, rel=0.1)


def test_they_travel_in_the_wheel() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert build["force-include"]["workloads"] == "loadgen/_workloads"
    assert list(FOLDERS) == [ROOT / "loadgen" / "_workloads", ROOT / "workloads"]


def test_a_file_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.toml").write_text("\ufeff" + PLAIN.replace("\n", "\r\n"))
    (tmp_path / "bare").write_text(PLAIN)
    monkeypatch.chdir(tmp_path)
    for given in ("mine.toml", "./mine.toml", str(tmp_path / "mine.toml"), "bare"):
        assert load_workload(given).name == "n"


def test_what_is_no_workload_is_said_in_a_sentence(tmp_path: Path) -> None:
    binary = tmp_path / "b.toml"
    binary.write_bytes(b"ok\n\xff\xfe")
    large = tmp_path / "l.toml"
    with large.open("wb") as file:
        file.truncate(17 << 20)
    cases = {
        "sharegpt": "there is no workload sharegpt",
        "./sharegpt-first-turn": "cannot be read: No such file",
        "": "is a folder",
        "a\0b": "cannot be read",
        "a" * 300: "cannot be read: File name too long",
        "a" * 252: "there is no workload",
        str(tmp_path): "is a folder",
        str(binary): "is not UTF-8 text: line 2",
        str(large): "is larger than 16 MiB",
        "/dev/null": "null: name is missing",
    }
    for given, expected in cases.items():
        with pytest.raises(UsageError) as caught:
            load_workload(given)
        assert expected in caught.value.message, given
        assert caught.value.remedy and "\n" not in caught.value.message
    with pytest.raises(UsageError) as caught:
        load_workload("sharegpt-firstturn")
    assert "did you mean sharegpt-first-turn" in caught.value.remedy
