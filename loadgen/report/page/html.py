"""HTML from Python, such that words of others are always text. Pure.

    tag("p", "1 < 2 ", tag("b", name))   →   Html("<p>1 &lt; 2 <b>…</b></p>")

A child that is a plain str is escaped, and loses what has no place in a page: control characters, marks that turn the
direction of what follows, halves of surrogate pairs. Only `tag` and `raw` make `Html`; `raw` is for text that is made
here.
"""

from __future__ import annotations

from html import escape

from ..numbers import clean

_VOID = {"meta", "link", "br", "hr"}


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None


def raw(text: str) -> Html:
    """Markup as it is: never for what a server, a log or a user wrote."""
    return Html(text)


def tag(name: str, /, *children: Child, **attributes: str | bool | None) -> Html:
    """One element. A trailing underscore of an attribute's name is dropped, others are dashes; None and False leave the
    attribute out, True gives it no value."""
    parts = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        shown = key.rstrip("_").replace("_", "-")
        parts.append(f" {shown}" if value is True else f' {shown}="{escape(clean(value), quote=True)}"')
    start = f"<{name}{''.join(parts)}>"
    if name in _VOID:
        return Html(start)
    return Html(f"{start}{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """These one after the other, without an element around them."""
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children if child is not None))


def text(words: str) -> Html:
    """Words of anyone, as text. A space at either end is kept, as it parts words from an element."""
    inner = clean(words)
    if not inner:
        return Html(" " if words else "")
    before, after = (" " if words[:1].isspace() and inner else ""), (" " if words[-1:].isspace() and inner else "")
    return Html(escape(f"{before}{inner}{after}", quote=False))


def foreign(words: str) -> Html:
    """Words of others in an element of their own, so that right-to-left text in them leaves what follows as it is."""
    return tag("bdi", words)
