"""Would kernel transmit stamps tell better when a request was sent? `python benchmarks/transmit.py`

Sends on a loopback connection and compares two candidates for `sent_at` with the kernel's receive stamp at the other
end: the time read just before send(), and the kernel's own transmit stamp, fetched from the socket's error queue.
"""

from __future__ import annotations

import socket
import struct
import time

import numpy as np

SO_TIMESTAMPNS, SO_TIMESTAMPING = 35, 37
TX_SOFTWARE, SOFTWARE, OPT_ID, OPT_TSONLY = 1 << 1, 1 << 4, 1 << 7, 1 << 11
N = 3000


def stamp(data: bytes) -> int:
    seconds, nanoseconds = struct.unpack("qq", data[:16])
    return int(seconds * 1_000_000_000 + nanoseconds)


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, TX_SOFTWARE | SOFTWARE | OPT_ID | OPT_TSONLY)
    server.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    brackets = [(time.time_ns(), time.monotonic_ns()) for _ in range(50)]
    offset = min(real - mono for real, mono in brackets)
    user, kernel, cost = [], [], []
    for _ in range(N):
        before = time.monotonic_ns()
        client.send(b"x" * 3000)
        _, ancillary, _, _ = server.recvmsg(65536, 64)
        arrival = stamp(ancillary[0][2]) - offset
        start = time.perf_counter_ns()
        _, ancillary, _, _ = client.recvmsg(0, 512, socket.MSG_ERRQUEUE)
        cost.append(time.perf_counter_ns() - start)
        sent = next(stamp(data) for _, kind, data in ancillary if kind == SO_TIMESTAMPING) - offset
        user.append(arrival - before)
        kernel.append(arrival - sent)
        time.sleep(0.0005)
    print("| µs | p50 | p90 | p99 |\n| --- | --- | --- | --- |")
    rows = (("arrival − time before send()", user), ("arrival − transmit stamp", kernel), ("cost of a stamp", cost))
    for name, values in rows:
        print(f"| {name} | " + " | ".join(f"{np.quantile(values, q) / 1e3:.1f}" for q in (0.5, 0.9, 0.99)) + " |")


if __name__ == "__main__":
    main()
