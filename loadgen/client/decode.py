"""Bodies that come compressed though `identity` was asked for."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import httpx

MAX_INFLATED_BYTES = 64 << 20  # of one read of a stream, or of a whole answer
_EITHER = 32 + zlib.MAX_WBITS  # gzip or zlib, told apart by the header


def decoder(encoding: str) -> Callable[[bytes], bytes] | None:
    """What undoes a content encoding, chunk by chunk; None where there is nothing to undo.

    Both raise httpx.DecodingError: for an encoding that is not known, and for bytes that do not follow it.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return None
    if encoding in ("gzip", "x-gzip", "deflate"):
        return _Inflate()
    raise httpx.DecodingError(f"the body is compressed with {encoding}, though identity was asked for")


class _Inflate:
    """gzip, of one member or of several in a row (RFC 1952), or zlib."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_EITHER)

    def __call__(self, data: bytes) -> bytes:
        parts = []
        while data:
            if self._inner.eof:
                if not data.startswith(b"\x1f"):
                    break  # what follows the body's end
                self._inner = zlib.decompressobj(_EITHER)
            try:
                parts.append(self._inner.decompress(data, MAX_INFLATED_BYTES))
            except zlib.error as error:
                raise httpx.DecodingError(f"the compressed body is broken: {error}") from error
            if self._inner.unconsumed_tail:
                raise httpx.DecodingError(f"the compressed body holds more than {MAX_INFLATED_BYTES >> 20} MiB at once")
            data = self._inner.unused_data
        return b"".join(parts)
