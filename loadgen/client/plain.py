"""Plain deltas: the events that make up nearly all of a stream and differ from one another in their text alone, or in
their text and a number: the running token counts, or the event's own. Once one was read as JSON, the next are known by
the bytes around its text.

Why that is exact. JSON around a string value stays the same JSON, but for this value, whatever valid string stands
there; the same holds for a number. So all events of the form `before TEXT after [NUMBERS rest]` are one tree with other
leaves. That the reader takes the text from that leaf, the counts from those, and all else from elsewhere is not
believed but tried: it reads the event once more with a text and counts of our own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from .dialects.base import MalformedEvent, Piece
from .sse import SSEEvent

# The inside of a JSON string. Bytes of broken UTF-8 are no fault here: the reader replaces them and finds text.
text_at = re.compile(rb'[^\x00-\x1f"\\]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^\x00-\x1f"\\]*)*').match

_KEYS = tuple(
    re.compile(b'"%b": ?"' % key).search
    for key in (b"content", b"text", b"delta", b"reasoning_content", b"reasoning", b"arguments")
)
_N = rb"(?:0|[1-9][0-9]{0,14})"  # always a number that is a count
# The number of the event belongs to no group: it counts nothing.
_COUNTS = re.compile(
    rb'"total_tokens": ?%(n)b, ?"completion_tokens": ?(%(n)b)|"completion_tokens": ?(%(n)b), ?"total_tokens": ?%(n)b'
    rb'|"sequence_number": ?%(n)b' % {b"n": _N}
)
counts_at = _COUNTS.match

_PROBE_TEXT, _PROBE_COUNT = "\x7fprobe", 7351


class Plain(NamedTuple):
    """The bytes around a text, which starts at `start`. With a number that runs, `after` ends where it begins, and
    `rest` follows it; else `rest` is None. `choice` is the choice spoken for, `name` that of the event."""

    before: bytes
    start: int
    after: bytes
    rest: bytes | None
    choice: int
    name: str

    def in_a_read(self, lead: bytes, end: bytes) -> Plain:
        """The same, where the event is a whole read: what its stream's framing puts around it."""
        before = lead + self.before
        if self.rest is None:
            return Plain(before, len(before), self.after + end, None, self.choice, self.name)
        return Plain(before, len(before), self.after, self.rest + end, self.choice, self.name)


def learn(read: Callable[[SSEEvent], Piece], data: bytes, piece: Piece, name: str = "message") -> Plain | None:
    """The form of an event's `data` that was read as `piece`; None where it is no plain delta."""
    if not spoken(piece) or len(piece.choices) != 1 or piece.token_ids is not None or piece.finish_reason is not None:
        return None
    if piece.finished or piece.ignored or piece.done or piece.error is not None or b"\n" in data:
        return None
    for key_in in _KEYS:
        key = key_in(data)
        text = text_at(data, key.end()) if key else None
        if text is None or not text[0] or not data.startswith(b'"', text.end()):
            continue
        start = text.start()
        before, after = data[:start], data[text.end() :]
        rest, counts = None, b""
        found = _COUNTS.search(after)
        if piece.usage is not None and (found is None or not found.lastindex):
            return None
        if found is not None and (piece.usage is not None or not found.lastindex):
            counts = re.sub(rb'("total_tokens": ?)[0-9]+', rb"\g<1>%d" % (_PROBE_COUNT + 1), found[0])
            counts = re.sub(rb'("(?:completion_tokens|sequence_number)": ?)[0-9]+', rb"\g<1>%d" % _PROBE_COUNT, counts)
            after, rest = after[: found.start()], after[found.end() :]
        probe = before + _PROBE_TEXT.encode() + after + counts + (rest or b"")
        if _differs_only_there(read, SSEEvent(name, probe), piece):
            return Plain(before, start, after, rest, piece.choices[0], name)
    return None


def spoken(piece: Piece) -> str:
    """What a piece says, where it is either text or the arguments of one call."""
    if not piece.calls:
        return piece.text
    return piece.calls[0].arguments if len(piece.calls) == 1 and not piece.calls[0].name and not piece.text else ""


def _differs_only_there(read: Callable[[SSEEvent], Piece], probe: SSEEvent, piece: Piece) -> bool:
    try:
        tried = read(probe)
    except MalformedEvent:
        return False
    if spoken(tried) != _PROBE_TEXT:
        return False
    if piece.usage is not None:
        if tried.usage is None or tried.usage.completion != _PROBE_COUNT:
            return False
        tried.usage = tried.usage._replace(completion=piece.usage.completion)
    if piece.calls:
        tried.calls = (tried.calls[0]._replace(arguments=piece.calls[0].arguments),) if tried.calls else ()
    tried.text = piece.text
    return tried == piece
