"""The document around a page's sections, and the pieces they are made of. Pure."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources

from ... import __version__
from ..charts.figure import Figure, Table
from ..charts.style import DARK
from ..words import Words
from .html import Child, Html, foreign, join, raw, tag
from .svg import drawn

MOST_ROWS = 200
_DARK_PAGE = (
    "--ground: #0d1117; --card: #11161d; --ink: #e6edf3; --soft: #9aa4af; --line: #30363d; --zebra: #161b22;"
    " --accent: #6cb0ff; --good: #56c271; --bad: #ff8b83; --doubt: #f0a55a; --lead: #132033;"
)


def stylesheet() -> str:
    """The page's own style, and what each ink of a chart becomes on a dark ground."""
    own = resources.files(__package__).joinpath("style.css").read_text(encoding="utf-8")
    inks = "".join(f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in DARK.items())
    return f"{own}@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK_PAGE} }} {inks} }}\n"


def document(words: Words, title: str, sections: Sequence[tuple[str, str, Html]], head: Html, source: str) -> str:
    """The whole page: `sections` are (id, heading, content). Its policy forbids scripts and everything that is not in
    it."""
    style = stylesheet()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    w = words
    made = w("page.made", version=__version__, source=source)
    contents = [tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _ in sections]
    body = tag(
        "body",
        tag("a", w("page.skip"), class_="skip", href="#answer"),
        tag("header", head, class_="top"),
        tag("nav", tag("ul", *contents), aria_label=w("page.contents")),
        tag("main", *(_section(*one) for one in sections)),
        tag("footer", tag("p", foreign(made)), tag("p", w("page.offline"))),
    )
    page = tag(
        "html",
        tag(
            "head",
            tag("meta", charset="utf-8"),
            raw(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="referrer", content="no-referrer"),
            tag("link", rel="icon", href="data:,"),
            tag("title", title),
            raw(f"<style>{style}</style>"),
        ),
        body,
        lang={"en": "en", "zh": "zh-Hans"}[words.language],
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _section(name: str, heading: str, content: Html) -> Html:
    return tag("section", tag("h2", heading, id=f"{name}-heading"), content, id=name, aria_labelledby=f"{name}-heading")


def charts(words: Words, figures: Sequence[Figure], broad: Sequence[Figure] = ()) -> Html:
    """The charts in two columns, on a phone one below the other. Those that are worth the whole width are there twice,
    `broad` for wide screens."""
    wide = {figure.name: figure for figure in broad}
    blocks: list[Html] = []
    columns: tuple[list[Html], list[Html]] = ([], [])
    heights = [0.0, 0.0]

    def close() -> None:
        if columns[0]:
            blocks.append(tag("div", *(tag("div", *column, class_="column") for column in columns), class_="charts"))
        for column in columns:
            column.clear()
        heights[:] = [0.0, 0.0]

    for figure in figures:
        if figure.name in wide:
            close()
            blocks.append(_figure(words, figure, wide[figure.name])[0])
        else:
            block, height = _figure(words, figure, None)
            shorter = heights.index(min(heights))
            columns[shorter].append(block)
            heights[shorter] += height
    close()
    return join(*blocks)


def _figure(words: Words, figure: Figure, broad: Figure | None) -> tuple[Html, float]:
    """The figure, and about how high it will be beside others."""
    label = words("page.label", title=figure.title, caption=figure.caption)
    picture, height = drawn(figure.spec, figure.name, label)
    if broad is not None:
        picture = join(
            tag("div", picture, class_="slim"),
            tag("div", drawn(broad.spec, f"{figure.name}-broad", label)[0], class_="broad"),
        )
    whole = tag(
        "figure",
        tag("h3", figure.title),
        picture,
        tag("figcaption", figure.caption),
        tag(
            "details",
            tag("summary", words("table.figures")),
            table(words, figure.table, figure.title),
        ),
        id=f"chart-{figure.name}",
        class_="wide" if broad is not None else None,
    )
    return whole, height + len(figure.caption) / 3 + 90


def table(words: Words, content: Table, name: str, *, wordy: bool = False, classes: Sequence[str | None] = ()) -> Html:
    """Rows under their heads, in a frame that scrolls on a small screen; `classes` are of the rows. Of very many rows
    the first ones, and how many there are."""
    rows = []
    for i, row in enumerate(content.rows[:MOST_ROWS]):
        cells = [_cell(cell) for cell in row]
        rows.append(tag("tr", *cells, class_=classes[i] if i < len(classes) else None))
    left = len(content.rows) - MOST_ROWS
    inner = tag(
        "table",
        tag("thead", tag("tr", *(tag("th", head, scope="col") for head in content.head))),
        tag("tbody", *rows),
        class_="words" if wordy else None,
    )
    frame = tag("div", inner, class_="scroll", tabindex="0", role="region", aria_label=name)
    more = words("table.thinned", shown=f"{MOST_ROWS:,}", all=f"{len(content.rows):,}") if left > 0 else None
    return join(frame, tag("p", more, class_="soft") if more else None)


def _cell(content: str) -> Html:
    return tag("td", content if isinstance(content, Html) else foreign(content))


def facts(pairs: Sequence[tuple[str, Child]]) -> Html:
    """Names and values; what is not known is left out."""
    found = [(name, value) for name, value in pairs if value]
    inner = [
        join(tag("dt", name), tag("dd", value if isinstance(value, Html) else foreign(value or "")))
        for name, value in found
    ]
    return tag("dl", *inner, class_="facts")


def definitions(w: Words) -> Html:
    """What the terms of a page mean."""
    keys = ("ttft", "tpot", "itl", "e2e")
    pairs: list[tuple[str, Child]] = [(key.upper(), w(f"define.{key}")) for key in keys]
    pairs += [(w("axis.output"), w("define.output")), (w("table.failed"), w("define.failed"))]
    pairs += [(w("table.interval"), w("define.interval"))]
    return facts(pairs)
