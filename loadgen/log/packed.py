"""Columns of integers in little room: block by block, each as narrow as its values allow. Pure.

A packed column holds one value for all rows, or for each row an unsigned code of 1, 2 or 4 bytes above a base, or,
where the values lie too far apart, the values themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

NULL = int(np.iinfo(np.int64).min)
Int64 = NDArray[np.int64]

_CODES = tuple((dtype, int(np.iinfo(dtype).max)) for dtype in (np.uint8, np.uint16, np.uint32))


class Packed(NamedTuple):
    """`codes` None: all `n` values are `base`. Unsigned: the value is code + base, NULL for code 0. Else the values."""

    n: int
    base: int
    codes: NDArray[Any] | None


def pack(values: Int64, reference: Int64 | None = None) -> Packed:
    """`values` of shape (n,), n > 0, NULL among them; as differences from `reference` (no NULL in it) if given."""
    n = len(values)
    if (reference is None or values[0] == NULL) and (one_for_all(values) or (values == values[0]).all()):
        return Packed(n, int(values[0]), None)
    null = values == NULL
    some = bool(null.any())
    shifted = values if reference is None else values - reference  # wraps, and wraps back
    known = shifted[~null] if some else shifted
    low, high = int(known.min()), int(known.max())
    if low == NULL:  # a difference, by chance
        return Packed(n, 0, values.copy())
    if low == high and not some:
        return Packed(n, low, None)
    for dtype, largest in _CODES:
        if high - low < largest:
            codes = (shifted - (low - 1)).astype(dtype)
            codes[null] = 0
            return Packed(n, low - 1, codes)
    return Packed(n, 0, values.copy())


def unpack(column: Packed, out: Int64, reference: Int64 | None = None) -> None:
    """What was packed with this `reference`, into `out` of shape (n,)."""
    codes = column.codes
    if codes is not None and codes.dtype == np.int64:
        out[:] = codes
        return
    if codes is None and column.base == NULL:
        out[:] = NULL
        return
    out[:] = column.base
    if codes is not None:
        out += codes
    if reference is not None:
        out += reference
    if codes is not None:
        out[codes == 0] = NULL


def join(columns: Sequence[Packed], reference: Int64 | None = None) -> Int64:
    """The blocks of one column in a row. A column of one value takes no room and cannot be written to."""
    n = sum(column.n for column in columns)
    bases = {column.base for column in columns}
    if len(bases) == 1 and all(column.codes is None for column in columns) and (reference is None or NULL in bases):
        return np.broadcast_to(np.int64(bases.pop()), (n,))
    out = np.empty(n, dtype=np.int64)
    start = 0
    for column in columns:
        end = start + column.n
        unpack(column, out[start:end], None if reference is None else reference[start:end])
        start = end
    return out


def take(values: NDArray[Any], rows: NDArray[Any]) -> NDArray[Any]:
    """`values[rows]`, where one value for all stays one value."""
    if one_for_all(values):
        return np.broadcast_to(values[0], (len(rows), *values.shape[1:]))
    return values[rows]  # type: ignore[no-any-return]


def take_runs(values: NDArray[Any], runs: Sequence[tuple[int, int]]) -> NDArray[Any]:
    """The values in these [start, end), one run after the other; a single run is a view."""
    if one_for_all(values):
        return np.broadcast_to(values[0], (sum(b - a for a, b in runs), *values.shape[1:]))
    parts = [values[a:b] for a, b in runs]
    return parts[0] if len(parts) == 1 else np.concatenate(parts) if parts else values[:0]


def one_for_all(values: NDArray[Any]) -> bool:
    """Is this one value (or row of values) that takes no room however often it stands there?"""
    return values.strides[0] == 0 and len(values) > 0
