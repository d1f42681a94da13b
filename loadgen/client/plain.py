"""Plain deltas: the events that make up nearly all of a stream and differ from one another in their text alone, or in
their text and the running token counts. Once one was read as JSON, the next are known by the bytes around its text.

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
    for key in (b"content", b"text", b"reasoning_content", b"reasoning", b"arguments")
)
_N = rb"(?:0|[1-9][0-9]{0,14})"  # always a number that is a count
_COUNTS = re.compile(
    rb'"total_tokens": ?%(n)b, ?"completion_tokens": ?(%(n)b)|"completion_tokens": ?(%(n)b), ?"total_tokens": ?%(n)b'
    % {b"n": _N}
)
counts_at = _COUNTS.match

_PROBE_TEXT, _PROBE_COUNT = "\x7fprobe", 7351


class Plain(NamedTuple):
    """The bytes around a text, which starts at `start`. With a running usage `after` ends where its counts begin, and
    `rest` follows them; else `rest` is None. `choice` is the choice spoken for."""

    before: bytes
    start: int
    after: bytes
    rest: bytes | None
    choice: int

    def in_a_read(self) -> Plain:
        """The same, where the event is a whole read: one `data` line and an empty one."""
        before = b"data: " + self.before
        if self.rest is None:
            return Plain(before, len(before), self.after + b"\n\n", None, self.choice)
        return Plain(before, len(before), self.after, self.rest + b"\n\n", self.choice)


def learn(read: Callable[[SSEEvent], Piece], data: bytes, piece: Piece) -> Plain | None:
    """The form of an event's `data` that was read as `piece`; None where it is no plain delta."""
    if not piece.text or len(piece.choices) != 1 or piece.token_ids is not None or piece.finish_reason is not None:
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
        if piece.usage is not None:
            found = _COUNTS.search(after)
            if found is None:
                return None
            counts = re.sub(rb'("total_tokens": ?)[0-9]+', rb"\g<1>%d" % (_PROBE_COUNT + 1), found[0])
            counts = re.sub(rb'("completion_tokens": ?)[0-9]+', rb"\g<1>%d" % _PROBE_COUNT, counts)
            after, rest = after[: found.start()], after[found.end() :]
        probe = before + _PROBE_TEXT.encode() + after + counts + (rest or b"")
        if _differs_only_there(read, probe, piece):
            return Plain(before, start, after, rest, piece.choices[0])
    return None


def _differs_only_there(read: Callable[[SSEEvent], Piece], probe: bytes, piece: Piece) -> bool:
    try:
        tried = read(SSEEvent("message", probe))
    except MalformedEvent:
        return False
    if tried.text != _PROBE_TEXT:
        return False
    if piece.usage is not None:
        if tried.usage is None or tried.usage.completion != _PROBE_COUNT:
            return False
        tried.usage = tried.usage._replace(completion=piece.usage.completion)
    tried.text = piece.text
    return tried == piece
