"""docs/cases.md and the tests name the same cases."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent.parent
PAGE = (TESTS.parent / "docs" / "cases.md").read_text()
KINDS = "PMLRXTG"
ROW = re.compile(rf"^\| ([{KINDS}]\d\d) \|.*\|$", re.MULTILINE)
IN_A_NAME = re.compile(rf"(?<=_)([{KINDS.lower()}]\d\d)(?=_)")
IN_A_TEXT = re.compile(rf"^([{KINDS}]\d\d)(?:[a-e]?\b)")


def cases_of(path: Path) -> Iterator[str]:
    """The ids that tests carry in their names, and rows of tables in theirs."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield from map(str.upper, IN_A_NAME.findall(node.name))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from IN_A_TEXT.findall(node.value)


def test_the_page_has_every_case_of_the_tests_and_no_other() -> None:
    named = {case for path in TESTS.rglob("test_*.py") for case in cases_of(path)}
    listed = ROW.findall(PAGE)
    assert len(listed) == len(set(listed)), "an id stands for one case"
    assert sorted(listed, key=lambda case: (KINDS.index(case[0]), case)) == listed
    assert set(listed) - named == set(), "listed, and no test has it"
    assert named - set(listed) == set(), "tested, and not listed"


def test_every_row_is_whole() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(rf"\| [{KINDS}]\d", line)]
    assert len(rows) == len(ROW.findall(PAGE)) > 150
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4 and all(cells), row
