"""Bodies that come compressed though `identity` was asked for."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import httpx


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
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(47)  # 32 + 15: gzip or zlib, told apart by the header

    def __call__(self, data: bytes) -> bytes:
        try:
            return self._inner.decompress(data)
        except zlib.error as error:
            raise httpx.DecodingError(f"the compressed body is broken: {error}") from error
