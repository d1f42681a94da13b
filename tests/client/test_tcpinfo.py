"""The offsets into the kernel's struct are right on this kernel, and a shorter struct is not misread."""

from __future__ import annotations

import socket
import struct
import sys

import pytest

from loadgen.client.tcpinfo import (
    BYTES_RECEIVED,
    INFO_BYTES,
    OUT_OF_ORDER,
    TCP_INFO,
    TOTAL_RETRANS,
    SocketStats,
    at,
)

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="struct tcp_info is Linux's")


def test_an_integer_is_read_at_its_offset() -> None:
    info = bytearray(INFO_BYTES)
    struct.pack_into("=I", info, TOTAL_RETRANS, 7)
    struct.pack_into("=I", info, OUT_OF_ORDER, 3)
    struct.pack_into("=Q", info, BYTES_RECEIVED, 1 << 40)
    assert at(bytes(info), TOTAL_RETRANS) == 7
    assert at(bytes(info), OUT_OF_ORDER) == 3
    assert at(bytes(info), BYTES_RECEIVED, 8) == 1 << 40


@pytest.mark.parametrize("size", [0, 1, 103])
def test_a_struct_that_ends_before_it_does_not_tell(size: int) -> None:
    assert at(bytes(size), TOTAL_RETRANS) is None
    assert at(bytes(TOTAL_RETRANS + 4), TOTAL_RETRANS) == 0


@linux
def test_the_live_kernel_counts_where_we_look() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
        with one, two:
            two.sendall(b"x" * 12_345)
            got = 0
            while got < 12_345:
                got += len(one.recv(65536))
            info = one.getsockopt(socket.IPPROTO_TCP, TCP_INFO, INFO_BYTES)
            assert at(info, BYTES_RECEIVED, 8) == 12_345
            stats = SocketStats()
            stats.add(one)
            stats.add(two)
            assert (stats.sockets, stats.retransmits, stats.out_of_order) == (2, 0, 0)
            assert stats.dropped is not None


@linux
def test_a_socket_that_is_gone_adds_nothing() -> None:
    stats = SocketStats()
    sock = socket.socket()
    sock.close()
    stats.add(sock)
    assert (stats.sockets, stats.retransmits, stats.out_of_order, stats.dropped) == (1, None, None, None)
