"""HTML: whatever anyone wrote comes out as text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.report.numbers import clean
from loadgen.report.page.html import foreign, join, raw, tag, text
from tests.thorough import examples

HOSTILE = "</script><img src=x onerror=alert(1)> \u202e\u200f\u0000\ud800 & \"quoted\" 'so' \u05d0"
ANY = st.text(st.characters(exclude_categories=[]), max_size=80)


class Read(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, name: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((name, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data


def read(markup: str) -> Read:
    parser = Read()
    parser.feed(markup)
    parser.close()
    return parser


@settings(max_examples=examples(50))
@given(ANY)
@example(HOSTILE)
def test_words_come_back_as_the_words_they_are(words: str) -> None:
    found = read(tag("p", words))
    assert [name for name, _ in found.tags] == ["p"]
    assert found.text.strip() == clean(words)


@settings(max_examples=examples(50))
@given(ANY)
@example(HOSTILE)
@example('" onload="alert(1)')
def test_an_attribute_holds_its_words_and_nothing_beside_them(words: str) -> None:
    found = read(tag("p", "x", title=words))
    assert found.tags == [("p", {"title": clean(words)})]


@settings(max_examples=examples(50))
@given(ANY)
def test_a_page_can_always_be_written(words: str) -> None:
    join(text(words), foreign(words)).encode("utf-8")


def test_elements_nest_and_attributes_can_be_left_out() -> None:
    made = tag("p", "a ", tag("b", "<"), " c", class_="x", hidden=None, open=True, aria_label="l")
    assert made == '<p class="x" open aria-label="l">a <b>&lt;</b> c</p>'
    assert tag("br") == "<br>"
    assert join("a", None, raw("<i>")) == "a<i>"
