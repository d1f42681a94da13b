"""English that is left in what should be Chinese, and the sentences that sources can make."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from loadgen.analysis.diagnose import Diagnosis
from loadgen.report.page.notes import found_by
from loadgen.report.words import Words

ROOM = Path(__file__).parents[2] / "loadgen"
# Three words of prose one after the other. Names, flags, metrics and error texts have fewer, or stand for themselves.
PROSE = re.compile(r"\b[A-Za-z][a-z']+(?:,? [A-Za-z][a-z']+){2,}")
SAID = re.compile(r"[A-Za-z']{2,} [a-z']{2,}")  # two words: something to say, and no key or name


def prose(texts: Iterable[str], data: Iterable[str] = ()) -> list[str]:
    """Those of the texts that hold English prose other than the `data`, which is as it came."""
    known = sorted(data, key=len, reverse=True)
    found = []
    for text in texts:
        rest = text
        for words in known:
            rest = rest.replace(words, "")
        if PROSE.search(rest):
            found.append(text)
    return found


def said_of(found: Diagnosis) -> list[str]:
    """All that a Chinese page says of a diagnosis."""
    items = [found_by(one, Words("zh"), "") for one in found.findings]
    return [text for one in items for text in (one.title, one.text, one.change, *one.evidence)]


def sentences(source: str, names: Iterable[str] = ()) -> Iterator[str]:
    """What a module can say, a 7 in each place of it: all its strings of two words or more, and the names of a
    diagnosis' facts; of `names` alone, if any, which are functions and constants."""
    tree = ast.parse((ROOM / source).read_text(encoding="utf-8"))
    chosen = set(names)
    roots = [node for node in ast.walk(tree) if _name(node) in chosen] if chosen else [tree]
    assert len(roots) >= len(chosen), f"{source} has not all of {sorted(chosen)}"
    for root in roots:
        yield from _strings(root)


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return node.name
    if isinstance(node, ast.Assign | ast.AnnAssign):
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _strings(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return  # an error of the command line, a docstring
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Fact":
        yield _filled(node.args[0])
    if isinstance(node, ast.JoinedStr | ast.Constant):
        text = _filled(node)
        if SAID.search(text):
            yield text
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant)):
            yield from _strings(child)


def _filled(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_filled(value) for value in node.values)
    inner = node.value if isinstance(node, ast.FormattedValue) else node
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "plural":
        return f"7 {_filled(inner.args[1])}s"
    return "7"
