"""The page of experiments is what its command makes, and its commands are those that were run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.experiments_page import HEAD, flags, page
from loadgen.experiments.library import READY, load_experiment, names
from tests.thorough import THOROUGH

DOCS = Path(__file__).parents[2] / "docs"
SHORT = ["--seed", "7", "--requests", "10", "--repeats", "5"]
TRIED = names() if THOROUGH > 1 else ["tensor-parallel"]


def sections(text: str) -> dict[str, str]:
    """By experiment."""
    parts = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    found = {part.partition("\n")[0]: part for part in parts}
    return {name: part for name, part in found.items() if name in names()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    page(folder, SHORT, TRIED)
    return folder


def test_it_is_rebuilt_with_a_section_and_a_picture_each(made: Path) -> None:
    found = sections((made / "experiments.md").read_text())
    assert list(found) == TRIED
    for name, text in found.items():
        assert f"$ loadgen experiment {name} {' '.join(SHORT)}\n" in text
        assert text.count("verdict   ") == 2 and "10 requests" in text
        assert (made / "experiments" / f"{name}.svg").read_text().startswith("<svg")


def test_what_stands_in_the_docs_is_what_the_files_say_now(made: Path) -> None:
    """The same page but for the figures, which longer runs make."""
    kept = (DOCS / "experiments.md").read_text()
    assert kept.startswith(HEAD.format(example=(READY / "prefix-cache.toml").read_text()))
    found = sections(kept)
    assert list(found) == names()
    for name, text in found.items():
        assert f"$ loadgen experiment {name} --seed 7\n" in text
        assert (DOCS / "experiments" / f"{name}.svg").is_file()
        for setting in load_experiment(name).settings:
            assert "\n".join(flags(setting)) in text
            assert setting.title in text and f"{setting.load.requests:,} requests, ABBA" in text
    for name, text in sections((made / "experiments.md").read_text()).items():
        assert blurred(text) == blurred(found[name]), "make it again: python -m benchmarks.experiments_page"


def blurred(text: str) -> list[str]:
    """The lines that no length of a run changes."""
    return [line for line in text.splitlines() if line.startswith(("setting", "workload", "expected", "question", "|"))]
