"""TLS over bytes in memory, so that the socket's own reads keep their stamps."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading

RECORD_BYTES = 65536  # more than a TLS record holds


class Tls:
    """One connection's TLS, as a client. A thread may open what comes while the loop seals a request: OpenSSL stands no
    two at a time, and Python before 3.13 does not see to it."""

    __slots__ = ("_in", "_lock", "_out", "_tls")

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        self._lock = threading.Lock()
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def handshake(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        while True:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                done = False
            finally:
                if out := self._out.read():  # also the alert that tells the server why not
                    with contextlib.suppress(OSError):
                        await loop.sock_sendall(sock, out)
            if done:
                return
            try:
                data = await loop.sock_recv(sock, RECORD_BYTES)
            except ConnectionError as error:  # TCP did connect: this is the handshake's end
                raise ssl.SSLEOFError(f"{error.strerror or error} during the TLS handshake") from error
            if not data:
                raise ssl.SSLEOFError("the server closed the connection during the TLS handshake")
            self._in.write(data)

    def sealed(self, data: bytes) -> bytes:
        with self._lock:
            self._tls.write(data)
            return self._out.read()

    def opened(self, data: bytes) -> tuple[bytes, bool, bytes]:
        """Plain bytes in these records, whether the peer closed (a close_notify may come with data before it), and what
        is to be sent back (a key update)."""
        with self._lock:
            return self._opened(data)

    def _opened(self, data: bytes) -> tuple[bytes, bool, bytes]:
        self._in.write(data)
        parts: list[bytes] = []
        closed = False
        try:
            while not closed:
                part = self._tls.read(RECORD_BYTES)
                closed = not part
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            closed = True
        return parts[0] if len(parts) == 1 else b"".join(parts), closed, self._out.read() if self._out.pending else b""
