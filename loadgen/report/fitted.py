"""An engine fitted to a run: its figures, its error, and its predictions, as text and as JSON. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..experiments.fitted import FIGURES, NAMES, Fit, Predicted
from ..log.codec import plain
from .compared import wrapped
from .numbers import number

_HEAD = {
    "output_throughput": "tok/s",
    "ttft_p50": "TTFT p50",
    "ttft_p95": "p95",
    "tpot_p50": "TPOT p50",
    "tpot_p95": "p95",
}


def fit_lines(found: Fit, source: str, notes: Sequence[str] = (), width: int = 120) -> list[str]:
    config = found.config
    lines = [
        f"run       {source}",
        f"step      {number(config.step_ms)} ms + {number(config.decode_ms)} ms x decoding sequences"
        f" + {number(config.context_us)} µs x KV tokens read + {number(config.prefill_ms)} ms x prompt tokens",
        f"overhead  {number(config.overhead_ms)} ms before a request is seen · at most {config.max_batch:,} at once",
        f"serve     {command(found)}",
    ]
    lines += [f"note      {note}" for note in notes]
    if not found.told_apart:
        lines.append("note      inputs are all alike: overhead and time for each prompt token cannot be told apart")
    table = [f"  {'in flight':>9}  " + "  ".join(f"{_HEAD[name]:>16}" for name in FIGURES)]
    for title, rows in (
        ("held out: predicted by a fit that did not know these loads", found.held_out),
        ("fitted to all loads", found.fitted),
        ("predicted", found.predicted),
    ):
        if rows:
            table += [title, *(_line(row) for row in rows)]
    return [*wrapped(lines, width), "", *table, "", *wrapped(_error(found), width)]


def _line(row: Predicted) -> str:
    cells = []
    for i, value in enumerate(row.figures):
        off = f" {100 * row.errors[i]:+6.1f} %".replace("-", "−") if row.errors is not None else ""
        cells.append(f"{number(float(value))}{off}".rjust(16))
    return f"  {row.concurrency:>9,}  " + "  ".join(cells)


def _error(found: Fit) -> list[str]:
    told = [(name, found.error(name)) for name in FIGURES]
    known = [f"{_words(name)} {100 * value:.1f} %" for name, value in told if value is not None]
    if not known:
        return ["error     not known: fewer than three loads were measured, so none could be held out"]
    lowest, highest = found.fitted[0].concurrency, found.fitted[-1].concurrency
    text = f"error     at the loads held out at most: {', '.join(known)}"
    beyond = [f"{row.concurrency:,}" for row in found.predicted if not lowest <= row.concurrency <= highest]
    if beyond:
        return [text, f"          beyond the loads measured ({', '.join(beyond)}) no error is known"]
    return [text]


def _words(name: str) -> str:
    metric, _, p = name.partition("_p")
    return "output throughput" if name == FIGURES[0] else f"{metric.upper()} p{p}"


def command(found: Fit) -> str:
    """The command line that serves the fitted engine."""
    config = found.config
    parts = [f"--{name.replace('_', '-')} {getattr(config, name):.4g}" for name in NAMES]
    parts += [f"--max-batch {config.max_batch}", f"--max-prefill-tokens {config.max_prefill_tokens}"]
    if config.max_batched_tokens:
        parts.append(f"--max-batched-tokens {config.max_batched_tokens}")
    if config.kv_blocks:
        parts.append(f"--kv-blocks {config.kv_blocks} --block-tokens {config.block_tokens}")
    return " ".join(["loadgen simulate", *parts])


def fit_object(found: Fit, source: str, notes: Sequence[str] = ()) -> dict[str, Any]:
    def rows(some: Sequence[Predicted]) -> list[dict[str, Any]]:
        return [
            {
                "concurrency": row.concurrency,
                "predicted": _figures(row.figures),
                "measured": None if row.measured is None else _figures(row.measured),
                "error_share": None if row.errors is None else _figures(row.errors),
            }
            for row in some
        ]

    told: dict[str, Any] = plain(
        {
            "run": source,
            "step": {name: getattr(found.config, name) for name in NAMES},
            "max_batch": found.config.max_batch,
            "command": command(found),
            "told_apart": found.told_apart,
            "held_out": rows(found.held_out),
            "fitted": rows(found.fitted),
            "predicted": rows(found.predicted),
            "largest_error_share": {name: found.error(name) for name in FIGURES},
            "notes": list(notes),
        }
    )
    return told


def _figures(values: Any) -> dict[str, float | None]:
    return {name: float(value) if value == value else None for name, value in zip(FIGURES, values, strict=True)}
