"""Numbers as people read them: thousands separated, no more digits than were measured. Pure."""

from __future__ import annotations

import math
import re
import textwrap

from ..results import Estimate, Percentile

NONE = "–"
NOT_ESTABLISHED = "not established"
# Controls, line ends, marks that turn the direction of what follows, halves of surrogate pairs, what is no character.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]+"
)


def clean(text: object) -> str:
    """Words of others on one line, without control characters: a server must not drive the reader's terminal."""
    return " ".join(_CONTROL.sub(" ", str(text)).split())


def shortened(text: str, width: int) -> str:
    """As many whole words as fit, with … where some are left out."""
    return text if len(text) <= width else textwrap.shorten(text, width, placeholder=" …", break_on_hyphens=False)


def number(value: float | None, digits: int = 3) -> str:
    """At least `digits` significant digits, whole thousands in full: 3 → 38.2, 212, 3,922; 4 → 55.05, 212.0."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "never" if value > 0 else NONE
    return f"{value:,.{decimals(value, digits)}f}"


def decimals(value: float, digits: int = 3) -> int:
    size = abs(value)
    if size < 0.0005:
        return 0 if size == 0 else digits
    return max(0, digits - 1 - math.floor(math.log10(size)))


def with_error(estimate: Estimate | None, digits: int = 3) -> str:
    """`3,922 ±58`: the larger side of the 95 % interval, its decimals those of the value."""
    if estimate is None:
        return NONE
    if estimate.low is None or estimate.high is None or math.isinf(estimate.high):
        return number(estimate.value, digits)
    half = max(estimate.high - estimate.value, estimate.value - estimate.low)
    places = decimals(estimate.value, digits)
    if half and half < 0.5 * 10**-places:  # never ±0 where the interval is only small
        places = min(places + 2, decimals(half, 1))
    return f"{estimate.value:,.{places}f} ±{half:,.{places}f}"


def with_interval(q: Percentile | None) -> str:
    """`381 [362, 402]`, or that the sample is too small to say."""
    if q is None:
        return NONE
    if not q.established:
        return NOT_ESTABLISHED
    text = number(q.value)
    return text if q.low is None or q.high is None else f"{text} [{number(q.low)}, {number(q.high)}]"


def percent(share: float | None) -> str:
    if share is None or math.isnan(share):
        return NONE
    size = abs(100 * share)
    return f"{100 * share:.{0 if size >= 10 or size == 0 else 1 if size >= 0.1 else 2}f} %"


def arriving(sessions: int) -> str:
    """What arrives at an open loop's rate."""
    return "conversations/s" if sessions else "requests/s"


def plural(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"
