"""The rooms and what may import what. The table is the design; the imports are read from the source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from loadgen.cli.digest import _CODE

ROOT = Path(__file__).parent.parent / "loadgen"
BASE = {"records", "results", "errors", "stats", "slo"}
ALLOWED: dict[str, set[str]] = {
    "records": {"errors"},
    "results": set(),
    "errors": set(),
    "stats": {"results"},
    "slo": {"results", "errors"},
    "hardware": {"errors"},
    "workload": BASE,
    "client": BASE | {"workload"},
    "search": BASE,
    "log": BASE,
    "analysis": BASE | {"log", "hardware"},
    "report": BASE | {"log", "analysis", "hardware", "experiments"},
    "simulator": {"errors", "hardware"},
    "experiments": BASE | {"workload", "log", "analysis", "simulator"},
    "runner": BASE | {"workload", "client", "search", "log", "analysis"},
    "cli": BASE
    | {"workload", "client", "search", "log", "analysis", "report", "simulator", "experiments", "runner", "hardware"},
    "worker": BASE | {"client", "log"},
    "api": BASE | {"log", "analysis", "report", "search", "runner", "cli"},
    "__main__": {"cli"},
    "__init__": {"api", "errors"},
}
TERMINAL = {"cli", "report/live.py"}


def room(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported_rooms(path: Path) -> set[str]:
    package = ("loadgen", *path.relative_to(ROOT).parts[:-1])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            full = base + (node.module.split(".") if node.module else [])
            targets = [full] if len(full) > 1 else [[*full, alias.name] for alias in node.names]
        elif isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        else:
            continue
        found |= {target[1] for target in targets if target[0] == "loadgen" and len(target) > 1}
    return found - {"__version__"}


SOURCES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    here = room(path)
    assert here in ALLOWED, f"{here} is a new room: give it a line in the table"
    wrong = imported_rooms(path) - ALLOWED[here] - {here}
    assert not wrong, f"{path.relative_to(ROOT)} may not import {sorted(wrong)}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_only_the_command_line_and_the_live_view_write_to_the_terminal(path: Path) -> None:
    name = str(path.relative_to(ROOT))
    if room(path) in TERMINAL or name in TERMINAL:
        return
    text = path.read_text()
    if "print" not in text and "echo" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        called = node.func if isinstance(node, ast.Call) else None
        assert not (isinstance(called, ast.Name) and called.id == "print"), f"{name}:{node.lineno} prints"
        if isinstance(called, ast.Attribute):
            assert called.attr != "echo", f"{name}:{node.lineno} writes to the terminal"


def test_the_check_sees_imports_of_every_form() -> None:
    assert imported_rooms(ROOT / "client" / "driver.py") == {"records", "results", "client"}
    assert {"client", "log", "analysis", "search", "records"} <= imported_rooms(ROOT / "runner" / "run.py")


def test_a_change_of_any_base_room_makes_kept_summaries_old() -> None:
    assert {"analysis", "log", *(f"{name}.py" for name in BASE)} == set(_CODE)
