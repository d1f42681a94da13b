"""What a calibration says: a table for people. Pure; reads the JSON object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .numbers import NONE, clean, number, percent

_LIMITS = {
    "cpu": "the client's CPU was full",
    "server": "the ground-truth server was the limit",
    "lag": "the client fell behind",
    "coalescing": "tokens waited for the client and came in one read",
    "errors": "requests failed",
    "disturbed": "other work took the CPUs",
}


def render(calibration: Mapping[str, Any]) -> str:
    """The whole calibration on one screen, at most 120 columns wide."""
    host = calibration["host"]
    apart = "client and server on CPUs of their own" if calibration["apart"] else "client and server share the CPUs"
    lines = [
        f"machine   {clean(host['cpu']) or clean(host['machine'])} · {host['cpus_usable']} CPUs · {apart}",
        f"loadgen   {clean(calibration['loadgen'])} · Python {clean(host['python'])} · "
        f"{clean(calibration['transport'])} transport · {calibration['created'][:10]} · {calibration['seconds']:.0f} s",
        f"carries   {_carried(calibration['capacity'])}",
        f"limit     {_limit(calibration['capacity'])}",
    ]
    if calibration["disturbed"]:
        lines.append(
            "warning   other work kept this process from a CPU that it was ready for: repeat on a quieter machine"
        )
    lines += ["", *_stream_table(calibration["streams"])]
    if calibration["dispatch"]:
        lines += ["", *_dispatch_table(calibration["dispatch"])]
    return "\n".join(lines)


def _carried(capacity: Mapping[str, Any]) -> str:
    if not capacity["streams"]:
        return "nothing that was tried"
    cost = capacity["cpu_us_per_event"]
    return (
        f"{'at least ' if capacity['at_least'] else ''}{capacity['events_per_s']:,.0f} events/s in "
        f"{capacity['streams']:,} streams{'' if cost is None else f', {number(cost)} µs of CPU an event'}"
    )


def _limit(capacity: Mapping[str, Any]) -> str:
    if capacity["broke_at_streams"] is None:
        return "none was met; no more streams were tried"
    return f"at {capacity['broke_at_streams']:,} streams {_LIMITS[capacity['limited_by']]}"


def _stream_table(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        f"{'':25}{'':>9}  {'stamp error, µs':>22}  {'exact ones':>16}  {'others':>7}  {'TTFT error':>14}",
        f"{'streams':25}{'events/s':>9}  {'p50':>6}{'p99':>8}{'max':>8}  {'share':>8}{'p99':>8}  {'covered':>7}"
        f"  {'p50':>6}{'p99':>8}  {'CPU':>5}",
    ]
    for stage in sorted(stages, key=lambda one: (one["tls"], one["mode"] == "lockstep", one["streams"])):
        name = f"{stage['mode']}{' over TLS' if stage['tls'] else ''}"
        stamps = stage["stamps"]
        limit = stage["limited_by"]
        rows.append(
            f"{name:17}{stage['streams']:>8,}{stage['events_per_s']:>9,.0f}  {_spread(stamps['all'], 6, 8, 8)}"
            f"  {percent(stamps['exact_share']):>8}{_spread(stamps['exact'], 0, 8, 0)}  {percent(stamps['covered']):>7}"
            f"  {_spread(stage['ttft'], 6, 8, 0)}  {percent(stage['cpu_share']):>5}{'  ' + limit if limit else ''}"
        )
    return rows


def _dispatch_table(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [
        f"{'':25}{'':>9}  {'on the wire late, µs':>22}  {'sent late, µs':>16}  {'':>7}  {'TTFT error':>14}",
        f"{'dispatch':25}{'sent':>9}  {'p50':>6}{'p99':>8}{'max':>8}  {'p50':>8}{'p99':>8}  {'missed':>7}"
        f"  {'p50':>6}{'p99':>8}  {'CPU':>5}",
    ]
    rows.extend(
        f"{stage['rate']:>14,.0f} requests/s{stage['requests']:>9,}  {_spread(stage['wire_lag'], 6, 8, 8)}"
        f"  {_spread(stage['dispatch_lag'], 8, 8, 0)}  {stage['not_dispatched'] + stage['failed']:>7,}"
        f"  {_spread(stage['ttft'], 6, 8, 0)}  {percent(stage['cpu_share']):>5}"
        for stage in stages
    )
    return rows


def _spread(spread: Mapping[str, Any] | None, *widths: int) -> str:
    """p50, p99 and max in these widths; a width of 0 leaves one out."""
    values = (None, None, None) if spread is None else (spread["p50"], spread["p99"], spread["max"])
    pairs = zip(values, widths, strict=True)
    return "".join(f"{_micro(value):>{width}}" for value, width in pairs if width)


def _micro(value: float | None) -> str:
    if value is None:
        return NONE
    if abs(value) >= 1e5:
        return f"{value / 1e6:,.2f}s"
    return f"{value:.1f}" if abs(value) < 100 else f"{value:,.0f}"
