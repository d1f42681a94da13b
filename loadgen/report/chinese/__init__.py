"""What the analysis, a run's notes and the report's own sentences say, in Chinese. Pure.

Sentences are made in English where their figures are, and some stand in a log as text. Here each is known by its
English with its places open:

    "{n} of {m} answer(s) shorter than asked{how:said}": "{m} 个回答中有 {n} 个短于要求{how}"

`(s)` may be there or not. What stands in a place is data and is kept, in one named by a single letter a figure; in a
place of `:said` it is a sentence or a part of one that is looked up here in turn, in one of `:list` several of them, in
one of `:any` either or data. A sentence that is not known is left in English; the tests read the sources for all.
"""

from __future__ import annotations

import functools
import itertools
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass

from .answers import ANSWERS
from .comparisons import COMPARISONS
from .findings import FINDINGS
from .notes import NOTES
from .runs import RUNS
from .terms import TERMS

PHRASES: Mapping[str, str] = {**FINDINGS, **NOTES, **RUNS, **ANSWERS, **COMPARISONS, **TERMS}
LONGEST, DEEPEST = 2_000, 5  # characters that are looked at, sentences within each other; none of ours has more
MOST_SENTENCES = 20  # of an answer
_LEADS = {": ": "：", "; ": "；", ", ": "，"}  # of what is put behind a sentence
_WORDS = re.compile(r"[a-z]{3,}")  # figures, names of metrics and units of two letters have none
_APART = re.compile(r", | and ")


@dataclass(frozen=True, slots=True)
class Phrase:
    """`literals` are around the `places`, one more than these: (name, kind)."""

    literals: tuple[str, ...]
    places: tuple[tuple[str, str], ...]
    chinese: str

    def values(self, text: str) -> dict[str, str] | None:
        """What stands in each place, as little as will do; None where this is another sentence."""
        first, last = self.literals[0], self.literals[-1]
        at, stop = len(first), len(text) - len(last)
        if not self.places:
            return {} if text == first else None
        if at > stop or not text.startswith(first) or not text.endswith(last):
            return None
        found = []
        for literal in self.literals[1:-1]:
            end = text.find(literal, at, stop)
            if end < 0:
                return None
            found.append(text[at:end])
            at = end + len(literal)
        found.append(text[at:stop])
        return {name: value for (name, _), value in zip(self.places, found, strict=True)}

    def said(self, text: str, deep: int) -> str | None:
        values = self.values(text)
        if values is None:
            return None
        for name, kind in self.places:
            put = _put(name, values[name], kind, deep)
            if put is None:
                return None
            values[name] = put
        return self.chinese.format(**values)


def chinese(text: str, deep: int = 0) -> str | None:
    """A sentence, or a part of one, in Chinese; None where it is not known. `deep` is how many it is in."""
    if len(text) > LONGEST or deep > DEEPEST:
        return None
    return next((said for phrase in _phrases() if (said := phrase.said(text, deep)) is not None), None)


def sentences(text: str) -> str | None:
    """Several sentences, one after the other; None where one of them is not known."""
    parts = text.split(". ")
    if len(parts) > MOST_SENTENCES:
        return None
    # What is said of the parts from each on. A place may hold a full stop of its own: a sentence is some of the parts.
    rest: list[str | None] = [None] * len(parts) + [""]
    for at in reversed(range(len(parts))):
        for end in range(at + 1, len(parts) + 1):
            after = rest[end]
            if after is None:
                continue
            said = chinese(". ".join(parts[at:end]) + ("." if end < len(parts) else ""))
            if said is not None:
                rest[at] = said + after
                break
    return rest[0]


def _put(name: str, value: str, kind: str, deep: int) -> str | None:
    """What stands in a place, in Chinese; None where it has to be known and is not."""
    if kind == "":
        return value if value and not (len(name) == 1 and _WORDS.search(value)) else None
    lead = next((lead for lead in _LEADS if value.startswith(lead)), "")
    text = value.removeprefix(lead).strip()
    if kind == "list":
        parts = [_part(part, deep) for part in _APART.split(text)]
        return None if None in parts else "、".join(part for part in parts if part)
    put = _part(text, deep)
    if put is None and kind == "any":
        put = text
    return None if put is None else _LEADS.get(lead, "") + put


def _part(text: str, deep: int) -> str | None:
    """Figures alone are Chinese already."""
    return chinese(text, deep + 1) if _WORDS.search(text) else text


@functools.cache
def _phrases() -> tuple[Phrase, ...]:
    """All of them, those that say most first."""
    found = [one for english, chinese in PHRASES.items() for one in phrases_of(english, chinese)]
    return tuple(sorted(found, key=lambda one: -sum(map(len, one.literals))))


def phrases_of(english: str, chinese: str) -> list[Phrase]:
    """One of each way in which the optional letters are there or not."""
    parts = english.split("(s)")
    found = []
    for letters in itertools.product(("s", ""), repeat=len(parts) - 1):
        text = "".join(part + letter for part, letter in itertools.zip_longest(parts, letters, fillvalue=""))
        literals, places = [""], []
        for literal, name, kind, _ in string.Formatter().parse(text):
            literals[-1] += literal
            if name is not None:
                places.append((name, kind or ""))
                literals.append("")
        found.append(Phrase(tuple(literals), tuple(places), chinese))
    return found
