"""`report --by`: a row for each bucket of requests, in text and in JSON. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from ..analysis.buckets import LEAST, UNITS, Bucket
from ..results import Distribution
from .numbers import NONE, NOT_ESTABLISHED, clean, number, percent

_SHOWN = (("ttft", "TTFT"), ("tpot", "TPOT"), ("e2e", "E2E"))
_POINTS = (50.0, 95.0)
_SHARES = (("requests", 10), ("tokens", 8))
LONGEST = 28  # of a label


def bucket_lines(buckets: Sequence[Bucket], width: int = 120) -> list[str]:
    """A table with its heading, latencies in ms. A bucket below the least sample shows its counts and no more. What
    does not fit into `width` is left out: E2E, TPOT, and then the shares."""
    if not buckets:
        return ["no measured request to sort into buckets"]
    axes = list(buckets[0].labels)
    names = [UNITS[axis] for axis in axes]
    labels = [[_short(clean(b.labels[axis])) for axis in axes] for b in buckets]
    sizes = [max(map(len, column)) + 2 for column in zip(names, *labels, strict=True)]
    head = "".join(name.ljust(size) for name, size in zip(names, sizes, strict=True))
    pair = 10 * len(_POINTS)
    shares = len(_SHARES)
    while shares and 2 + len(head) + 15 + sum(size for _, size in _SHARES[:shares]) + pair > width:
        shares -= 1
    counts = (("ok", 7), ("failed", 8), *_SHARES[:shares])
    head += "".join(text.rjust(room) for text, room in counts)
    room = max(1, min(len(_SHOWN), (width - 2 - len(head)) // pair))
    shown = _SHOWN[:room]
    head += "".join(f"{name} p{p:g}".rjust(10) for _, name in shown for p in _POINTS)
    title = f"by {', '.join(axes)}: buckets by powers of two, latencies in ms, * without a 95 % interval"
    lines = [*textwrap.wrap(title, width, subsequent_indent="  "), f"  {head}"]
    for bucket, row in zip(buckets, labels, strict=True):
        text = "".join(label.ljust(size) for label, size in zip(row, sizes, strict=True))
        text += f"{bucket.ok:>7,}{bucket.failed:>8,}"
        told = (percent(bucket.request_share), percent(bucket.token_share))
        text += "".join(share.rjust(size) for share, (_, size) in zip(told, _SHARES[:shares], strict=False))
        if bucket.established:
            text += "".join(_cell(bucket.latency[key], p).rjust(10) for key, _ in shown for p in _POINTS)
        else:
            why = f": below {LEAST} effective"
            text += f"   {NOT_ESTABLISHED}"
            text += why if 2 + len(text) + len(why) <= width else ""
        lines.append(f"  {text}")
    return lines


def _cell(found: Distribution, p: float) -> str:
    q = found.at(p)
    return NONE if q is None else number(q.value) + ("" if q.established or p == 50.0 else "*")


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else "…" + text[1 - LONGEST :]


def buckets_object(buckets: Sequence[Bucket]) -> dict[str, Any]:
    """`report --by --json`: the axes, the rule of the edges, and each bucket with all its latency metrics in ms."""
    return {
        "axes": list(buckets[0].labels) if buckets else [],
        "edges": "powers of two",
        "least_effective_requests": LEAST,
        "buckets": [
            {
                **{axis: clean(label) for axis, label in bucket.labels.items()},
                "sent": bucket.sent,
                "completed": bucket.ok,
                "failed": bucket.failed,
                "request_share": bucket.request_share,
                "output_token_share": bucket.token_share,
                "effective_requests": bucket.n_effective,
                "established": bucket.established,
                "latency_ms": {name: found for name, found in bucket.latency.items() if found.n},
            }
            for bucket in buckets
        ],
    }
