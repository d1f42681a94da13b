"""The words of charts and pages: complete in every language, and none left over."""

from __future__ import annotations

import ast
import re
import string
from pathlib import Path

import pytest

from loadgen.analysis.diagnose import CAUSES
from loadgen.cli.reading import CHART_OF
from loadgen.report.words import CAUSES_ZH, LANGUAGES, TABLE, Words

ROOM = Path(__file__).parents[2] / "loadgen"
FAMILIES = {key.split(".")[0] for key in TABLE}
KEY = re.compile(rf"(?:{'|'.join(sorted(FAMILIES))})\.[a-z0-9_]*")


def keys_in(path: Path) -> set[str]:
    """Keys written in a source, and beginnings of those put together (`verdict.`)."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and KEY.fullmatch(node.value):
            found.add(node.value)
    return found


USED = set().union(
    *(keys_in(p) for room in ("report", "cli") for p in (ROOM / room).rglob("*.py") if p.name != "words.py")
)


def test_every_key_that_is_used_is_there_and_every_one_there_is_used() -> None:
    beginnings = tuple(key for key in USED if key.endswith("."))
    assert {key for key in USED if not key.endswith(".")} <= set(TABLE)
    assert [key for key in TABLE if key not in USED and not key.startswith(beginnings)] == []


@pytest.mark.parametrize("key", TABLE)
def test_a_phrase_is_there_in_all_languages_with_the_same_places(key: str) -> None:
    texts = TABLE[key]
    assert len(texts) == len(LANGUAGES)
    places = [{name for _, name, _, _ in string.Formatter().parse(text) if name} for text in texts]
    assert all(found == places[0] for found in places)
    assert all(texts)


def test_words_are_filled_in() -> None:
    assert Words("en")("caption.gpus", gpus=8) == "Divided by 8 GPUs, as told."
    assert "8" in Words("zh")("caption.gpus", gpus=8)


def test_every_cause_of_a_diagnosis_has_a_title_and_a_chart() -> None:
    assert set(CAUSES_ZH) == set(CAUSES)
    assert set(CHART_OF) <= set(CAUSES)
    assert Words("zh").cause("overload", "overload") == "过载"
    assert Words("en").cause("overload", "overload") == "overload"
