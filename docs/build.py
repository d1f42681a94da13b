"""`python docs/build.py OUT`: the documentation as a site of plain files, with nothing loaded from elsewhere.

Every page is its Markdown, the navigation of `PAGES`, and one style. Links between pages become links of the site;
those to other files of the repository are left as text where the site has no such file.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

DOCS = Path(__file__).parent
ROOT = DOCS.parent

# Heading → pages in their order; every page under docs/ is here.
PAGES: dict[str, list[str]] = {
    "Start": ["start.md", "README.md", "api.md"],
    "Measure": [
        "sweep.md", "requests.md", "workloads.md", "traces.md", "conversations.md", "dialects.md", "access.md",
        "resume.md", "watching.md",
    ],
    "Understand": ["diagnose.md", "compare.md", "ci.md", "page.md", "experiments.md", "planning.md", "foreign-logs.md"],
    "Definitions": ["metrics.md", "results.md", "cases.md", "engine.md"],
    "Trust": ["security.md", "scale.md"],
    "中文": ["zh/README.md", "zh/start.md"],
}  # fmt: skip
# Pages whose source lies elsewhere.
ELSEWHERE = {
    "README.md": ROOT / "README.md", "results.md": ROOT / "results" / "README.md", "zh/README.md": ROOT / "README.zh.md"
}  # fmt: skip
STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { margin: 0; font: 16px/1.55 system-ui, sans-serif; display: grid; grid-template-columns: 15rem minmax(0, 1fr); }
nav { padding: 1.5rem; border-right: 1px solid var(--line); }
nav h2 { font-size: .8rem; margin: 1rem 0 .2rem; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav a[aria-current] { font-weight: 700; }
main { padding: 1.5rem 2rem 4rem; max-width: 60rem; min-width: 0; }
a { color: LinkText; text-underline-offset: .15em; }
pre { background: var(--soft); padding: .8rem 1rem; overflow-x: auto; }
code { font: .9em ui-monospace, monospace; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; }
@media (max-width: 50rem) { body { display: flex; flex-direction: column; } nav { order: 2; border-right: 0; } }
@media print { nav, .skip { display: none; } body { display: block; } }
"""


def source(page: str) -> Path:
    """Where a page's Markdown lies."""
    return ELSEWHERE.get(page, DOCS / page)


def pages() -> list[str]:
    """All pages that are there."""
    return [page for group in PAGES.values() for page in group if source(page).is_file()]


def target(page: str) -> str:
    """A page's file in the site."""
    return "index.html" if page == "start.md" else re.sub(r"README\.md$", "readme.html", page).replace(".md", ".html")


def slug(text: str) -> str:
    """A heading's anchor, as GitHub has it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def title(page: str) -> str:
    """A page's first heading."""
    found = re.search(r"^# (.+)$", source(page).read_text(), re.MULTILINE)
    return found[1].replace("`", "") if found else page


def link(page: str, href: str) -> str | None:
    """Where a link on this page leads in the site; None where the site has no such file."""
    if re.match(r"[a-z]+:", href) or href.startswith("#"):
        return href
    path, _, anchor = href.partition("#")
    there = (source(page).parent / path).resolve()
    known = {source(one).resolve(): one for one in pages()}
    if there in known:
        found = target(known[there])
    elif there.is_relative_to(DOCS) and there.is_file():
        found = str(there.relative_to(DOCS))
    else:
        return None
    return "../" * target(page).count("/") + found + (f"#{anchor}" if anchor else "")


def body(page: str) -> str:
    """A page's Markdown as HTML."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = markdown.parse(source(page).read_text())
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            token.attrSet("id", slug(tokens[at + 1].content))
        if token.type == "inline":
            _relink(page, token.children or [])
    found: str = markdown.renderer.render(tokens, markdown.options, {})
    return found.replace("<table>", '<div class="wide" tabindex="0"><table>').replace("</table>", "</table></div>")


def _relink(page: str, tokens: list[Token]) -> None:
    dropped = False
    for token in tokens:
        if token.type == "link_open":
            href = link(page, str(token.attrGet("href")))
            dropped = href is None
            if href is not None:
                token.attrSet("href", href)
        if dropped and token.type in ("link_open", "link_close"):
            token.type, token.tag, token.nesting, token.content = "text", "", 0, ""


def render(page: str) -> str:
    """A whole page of the site."""
    up = "../" * target(page).count("/")
    groups, here = [], " aria-current=page"
    for name, group in PAGES.items():
        items = "".join(
            f'<li><a href="{up}{target(one)}"{here if one == page else ""}>{html.escape(title(one))}</a>'
            for one in group
            if source(one).is_file()
        )
        groups.append(f"<h2>{name}</h2><ul>{items}</ul>")
    language = "zh" if page.startswith("zh/") else "en"
    return (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title(page))} · loadgen</title><style>{STYLE}</style>"
        f'<a class="skip" href="#main">Skip to the text</a><nav aria-label="Pages">{"".join(groups)}</nav>'
        f'<main id="main">{body(page)}</main></html>\n'
    )


def build(out: Path) -> int:
    """Write the site to this folder; → the number of pages."""
    for page in pages():
        path = out / target(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(page))
    for file in sorted(DOCS.rglob("*")):
        if file.is_file() and file.suffix not in (".md", ".py", ".pyc"):
            to = out / file.relative_to(DOCS)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
    return len(pages())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("docs: give the folder to write the site to")
    sys.stdout.write(f"{build(Path(sys.argv[1]))} pages → {sys.argv[1]}/index.html\n")
