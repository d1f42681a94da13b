"""`loadgen.load(RUN)`: a request log as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..analysis import metrics
from ..analysis.metrics import span_ms
from ..errors import UsageError
from ..log.columns import NULL, Bools, Columns, columns
from ..log.store import open_run
from ..records import FLAGS, OUTCOMES, PHASES, TOKEN_SOURCES

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Array = NDArray[Any]

_STAMPS = (
    *("scheduled_ns", "sent_ns", "first_byte_ns", "first_token_ns", "first_content_ns", "last_token_ns", "done_ns"),
)
_COUNTS = {
    "input_asked_tokens": "input_asked",
    "cached_tokens": "input_cached",
    "output_tokens": "output_count",
    "output_asked_tokens": "output_asked",
    "status": "status",
    "session": "session",
    "turn": "turn",
}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Columns by name, each a NumPy array of shape (n,): `table["ttft_ms"]`, `dict(table)`; `len` is n.

    Whole numbers are int64 where every row has one, else float64 with NaN for none; times in ms are float64 with NaN;
    text is of dtype object, None for none. Arrays are for reading only.
    """

    _columns: Mapping[str, Array]  # int64 with NULL for none

    def __getitem__(self, name: str) -> Array:
        values = self._columns[name]
        null = _null(values)
        return values if null is None else np.where(null, np.nan, values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __repr__(self) -> str:
        return f"<{len(self):,} rows of {', '.join(self._columns)}>"

    def keys(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self._columns)

    def pandas(self) -> pandas.DataFrame:
        """A pandas DataFrame of these columns. UsageError where pandas is missing."""
        return _module("pandas").DataFrame(dict(self))

    def polars(self) -> polars.DataFrame:
        """A Polars DataFrame; whole numbers are Int64, null for none. UsageError where Polars is missing."""
        polars, found = _module("polars"), {}
        for name, values in self._columns.items():
            null = _null(values)
            if values.dtype == object:
                found[name] = polars.Series(name, values.tolist(), dtype=polars.String)
            else:
                series = polars.Series(name, values, nan_to_null=True)
                found[name] = series if null is None else series.zip_with(polars.Series(~null), polars.Series([None]))
        return polars.DataFrame(found)

    def arrow(self) -> pyarrow.Table:
        """A pyarrow Table; whole numbers are int64, null for none. UsageError where pyarrow is missing."""
        arrow, found = _module("pyarrow"), {}
        for name, values in self._columns.items():
            kind = arrow.string() if values.dtype == object else None
            found[name] = arrow.array(values, type=kind, mask=_null(values), from_pandas=True)
        return arrow.table(found)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Requests(Table):
    """A log's requests, a row each, in the order of the log; and their output events in `events`, with the columns
    `request` (its row here), `at_ns`, `gap_ms` (since the event before, the first since the request was sent), `tokens`
    (none where not told) and `bound_us` (how late its stamp may be, 0 where exact).

    `*_ns` are nanoseconds of the run's clock, which begins with the run. `manifest` is None for a log without one.
    `truncated_lines` were cut by the end of the program that wrote them, and are left out.
    """

    events: Table
    source: str
    status: str
    manifest: Mapping[str, Any] | None
    truncated_lines: int


def load(path: str | PathLike[str], *, everything: bool = False) -> Requests:
    """Read a run folder, one of its request files, a stream of `-o -`, a CSV, or another tool's log.

    Read are the measured requests that ended ok, as `loadgen export` writes them; with `everything` all: failures,
    warm-up, preflight, and steps measured again. LogError where there is nothing to read.
    """
    run = open_run(fspath(path))
    uncounted = frozenset[int]() if everything else run.uncounted
    whole = columns(record for record in run.records() if record.step not in uncounted)
    if not everything:
        whole = whole.where((whole.phase == PHASES.index("measured")) & (whole.outcome == OUTCOMES.index("ok")))
    return Requests(_requests(whole), Table(_events(whole)), run.source, run.status, run.manifest, run.truncated_lines)


def _requests(c: Columns) -> dict[str, Array]:
    return {
        "request_id": _texts(c.ids),
        "step": c.step,
        "concurrency": c.concurrency,
        "worker": c.worker,
        "phase": _named(c.phase, PHASES),
        "outcome": _named(c.outcome, OUTCOMES),
        **{name: getattr(c, name) for name in _STAMPS},
        "input_tokens": metrics.input_tokens(c),
        **{name: getattr(c, field) for name, field in _COUNTS.items()},
        "token_source": _named(c.source, TOKEN_SOURCES),
        **{f"{name}_ms": metric(c) for name, metric in metrics.REQUEST_METRICS.items()},
        "retries": c.retries,
        "model": _named(c.model, c.models),
        "peer": _named(c.peer, c.peers),
        "error_kind": _texts([error.kind if error else None for error in c.errors]),
        "error_message": _texts([error.message if error else None for error in c.errors]),
        "flags": _texts([" ".join(name for i, name in enumerate(FLAGS) if bits >> i & 1) for bits in c.flags.tolist()]),
    }


def _events(c: Columns) -> dict[str, Array]:
    rows = c.event_rows()
    before = np.concatenate(([0], c.event_ns[:-1])) if len(rows) else c.event_ns
    first = np.zeros(len(rows), dtype=np.bool_)
    first[c.event_offsets[:-1][np.diff(c.event_offsets) > 0]] = True
    return {
        "request": rows,
        "at_ns": c.event_ns,
        "gap_ms": span_ms(np.where(first, c.sent_ns[rows], before), c.event_ns),
        "tokens": np.where(c.event_tokens < 0, NULL, c.event_tokens.astype(np.int64)),
        "bound_us": np.maximum(c.event_bound_us, 0).astype(np.int64),
    }


def _null(values: Array) -> Bools | None:
    """Where a whole number is NULL; None where none is."""
    if values.dtype != np.int64:
        return None
    null: Bools = values == NULL
    return null if null.any() else None


def _texts(values: list[Any]) -> Array:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found


def _named(codes: NDArray[Any], names: Any) -> Array:
    found: Array = _texts([*names, None])[codes]
    return found


def _module(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError(f"{name} is not installed", f"pip install {name}") from None
