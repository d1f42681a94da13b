"""What the kernel counted on one TCP socket: retransmits, segments out of order, segments it threw away.

Linux only. `struct tcp_info` (linux/tcp.h) only ever grows at its end; an older kernel gives a shorter one, and what it
does not reach is not known.
"""

from __future__ import annotations

import socket
import struct

TCP_INFO = getattr(socket, "TCP_INFO", 11)
SO_MEMINFO = 55
INFO_BYTES = 256
MEMINFO_BYTES = 36  # nine u32
TOTAL_RETRANS = 100  # tcpi_total_retrans, u32: segments sent again, over the connection's life
BYTES_RECEIVED = 128  # tcpi_bytes_received, u64
OUT_OF_ORDER = 224  # tcpi_rcv_ooopack, u32: segments received out of order (Linux 5.4)
DROPS = 32  # the ninth counter of SO_MEMINFO, SK_MEMINFO_DROPS: segments dropped on arrival, as by a full queue


def at(info: bytes, offset: int, size: int = 4) -> int | None:
    """The unsigned integer of `size` bytes at `offset`; None where the struct is too short for it."""
    if len(info) < offset + size:
        return None
    value: int = struct.unpack_from("=I" if size == 4 else "=Q", info, offset)[0]
    return value


class SocketStats:
    """Sums over the sockets that were `add`ed, each at its end; None until one has told."""

    __slots__ = ("dropped", "out_of_order", "retransmits", "sockets")

    def __init__(self) -> None:
        self.sockets = 0
        self.retransmits: int | None = None
        self.out_of_order: int | None = None
        self.dropped: int | None = None

    def add(self, sock: socket.socket) -> None:
        """Never raises: a socket that is broken, or a platform that does not tell, adds nothing."""
        self.sockets += 1
        info = _asked(sock, socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES)
        self.retransmits = _plus(self.retransmits, at(info, TOTAL_RETRANS))
        self.out_of_order = _plus(self.out_of_order, at(info, OUT_OF_ORDER))
        self.dropped = _plus(self.dropped, at(_asked(sock, socket.SOL_SOCKET, SO_MEMINFO, MEMINFO_BYTES), DROPS))


def disordered(sock: socket.socket) -> bool:
    """Have segments arrived out of order on this socket? False where that is not told."""
    return bool(at(_asked(sock, socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES), OUT_OF_ORDER))


def _asked(sock: socket.socket, level: int, option: int, size: int) -> bytes:
    try:
        return sock.getsockopt(level, option, size)
    except OSError:
        return b""


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
