"""A run beside the hardware's ceilings, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..analysis.ceiling import Ceilings, Level
from ..log.codec import plain
from .compared import wrapped
from .numbers import NONE, number, percent, plural

_HEAD = (
    "load",
    "tok/s",
    "running",
    "TPOT p50",
    "floor",
    "decode",
    "both",
    "TTFT p50",
    "floor",
    "prefill",
    "FLOPs",
    "KV used",
    "plan",
)

_LEAST_NEEDED = (10, 4, 8, 6, 2, 11)  # columns that go first: FLOPs, the floors, both, running, KV used

WIDTH = 120


def ceiling_lines(
    found: Ceilings, source: str, rates: Sequence[float] = (), price: float | None = None, width: int = WIDTH
) -> list[str]:
    """Under a plan. `rates` are demands in requests/s, `price` of one GPU and hour. Of the table, columns that do not
    fit into `width` are left out."""
    lines = [_row("run", f"{source} · in {number(found.lengths.input_mean)} · out {number(found.lengths.output_mean)}")]
    rows = [_HEAD, *(_cells(one) for one in found.levels)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEAD))]
    shown = list(range(len(_HEAD)))
    for i in _LEAST_NEEDED:
        if sum(widths[j] + 2 for j in shown) > width:
            shown.remove(i)
    lines += ["", *("  " + "  ".join(row[i].rjust(widths[i]) for i in shown).rstrip() for row in rows)]
    lines.append(
        "  times in ms; decode, both (with the prompts beside), prefill and FLOPs are shares of the hardware's ceiling"
    )
    lines += ["", _row("KV limit", _kv(found)), _row("ran out", _ran_out(found))]
    lines.append(_row("best", _best(found)))
    for rate in rates:
        lines.append(_row("replicas", _replicas(found, rate)))
    if price is not None:
        cost = found.cost(price)
        text = (
            f"{number(cost)} per million output tokens at {number(price)} a GPU and hour, {plural(found.gpus, 'GPU')}"
        )
        lines.append(_row("cost", text if cost is not None else "not known: no load holds"))
    if found.doubled:
        lines.append(
            _row("doubling", "output tokens/s at the best load, at the least: only what the hardware sets gets faster")
        )
        lines += [f"  {one.resource:<17} x {one.ratio:.2f}  {one.why}" for one in found.doubled]
    return wrapped(lines, width)


def _cells(one: Level) -> tuple[str, ...]:
    return (
        f"{one.load:,g}",
        number(one.output_throughput),
        number(one.running),
        number(one.tpot_ms),
        number(one.tpot_floor_ms),
        percent(one.decode_share),
        percent(one.both_share),
        number(one.ttft_ms),
        number(one.ttft_floor_ms),
        percent(one.prefill_share),
        percent(one.flops_share),
        percent(one.kv_share),
        percent(one.kv_expected),
    )


def _kv(found: Ceilings) -> str:
    text = f"{found.kv_predicted:,} tokens predicted"
    if found.kv_measured is None:
        return f"{text}; the server did not tell its own"
    text += f", {found.kv_measured:,.0f} {found.kv_source}"
    if not found.kv_predicted:
        return text
    return f"{text} ({100 * (found.kv_measured / found.kv_predicted - 1):+z.1f} %)".replace("-", "−")


def _ran_out(found: Ceilings) -> str:
    if found.ran_out is None:
        return "nothing yet: throughput still grows with the load"
    return f"first {found.ran_out.resource}, at {found.ran_out.load:,g}: {found.ran_out.evidence}"


def _best(found: Ceilings) -> str:
    if found.best is None:
        return "no load is proven to hold every objective" + _undecided(found)
    what = "the highest load proven to hold every objective" if found.has_slo else "the load of the highest throughput"
    each = found.each
    proven = found.best.request_throughput is not None and found.best.request_throughput.low is not None
    rate = f", {'proven' if proven else 'without an interval'} {number(each)} requests/s" if each else ""
    text = f"{found.best.load:,g}, {what}: {number(found.best.output_throughput)} output tokens/s{rate}"
    return text + _undecided(found)


def _undecided(found: Ceilings) -> str:
    if not found.undecided:
        return ""
    return f"; {', '.join(f'{load:,g}' for load in found.undecided)} undecided: measure longer"


def _replicas(found: Ceilings, rate: float) -> str:
    count = found.replicas(rate)
    if count is None:
        return f"none would do for {rate:g} requests/s: no load holds"
    gpus = f" = {plural(count * found.gpus, 'GPU')}" if found.gpus > 1 else ""
    return f"{count:,} for {rate:g} requests/s{gpus}"


def _row(name: str, text: str) -> str:
    return f"{name:9} {text or NONE}"


def ceiling_object(
    found: Ceilings, source: str, rates: Sequence[float] = (), price: float | None = None
) -> dict[str, Any]:
    told: dict[str, Any] = {
        "run": source,
        "levels": [
            {
                "load": one.load,
                "step": one.step,
                "verdict": one.verdict,
                "running": one.running,
                "waiting": one.waiting,
                "output_tokens_per_s": one.output_throughput,
                "requests_per_s": one.request_throughput,
                "tpot_p50_ms": one.tpot_ms,
                "tpot_floor_ms": one.tpot_floor_ms,
                "decode_share": one.decode_share,
                "decode_bound": one.bound,
                "decode_and_prompts_share": one.both_share,
                "ttft_p50_ms": one.ttft_ms,
                "ttft_floor_ms": one.ttft_floor_ms,
                "prefill_share": one.prefill_share,
                "flops_share": one.flops_share,
                "kv_use_share": one.kv_share,
                "kv_use_peak_share": one.kv_peak_share,
                "kv_expected_share": one.kv_expected,
                "preemptions": one.preemptions,
            }
            for one in found.levels
        ],
        "kv_tokens_predicted": found.kv_predicted,
        "kv_tokens_measured": found.kv_measured,
        "ran_out_first": None
        if found.ran_out is None
        else {"resource": found.ran_out.resource, "load": found.ran_out.load, "evidence": found.ran_out.evidence},
        "best_load": found.best.load if found.best else None,
        "requests_per_s_each": found.each,
        "replicas": [{"requests_per_s": rate, "replicas": found.replicas(rate)} for rate in rates],
        "cost_per_million_output_tokens": found.cost(price) if price is not None else None,
        "doubling": [{"resource": one.resource, "output_ratio": one.ratio, "why": one.why} for one in found.doubled],
    }
    result: dict[str, Any] = plain(told)
    return result
