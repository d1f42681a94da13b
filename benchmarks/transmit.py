"""Would kernel transmit stamps tell better when a request was sent? `python benchmarks/transmit.py`

Sends on a loopback connection and compares two candidates for `sent_at` with the kernel's receive stamp at the other
end: the time read just before send(), and the kernel's own transmit stamp, fetched from the socket's error queue.
"""

from __future__ import annotations

import socket
import time

import numpy as np

from loadgen.client.clock import SECOND_NS, Clock, ask_for_stamps, ask_for_transmit_stamps, timespec, transmit_stamp

N = 3000


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ask_for_stamps(server)
    offset = Clock().offset
    user, kernel, cost = [], [], []
    for _ in range(N):
        begun = time.perf_counter_ns()
        if not ask_for_transmit_stamps(client, True):
            raise SystemExit("this kernel has no transmit stamps")
        before = time.monotonic_ns()
        client.send(b"x" * 3000)
        sent = time.monotonic_ns()
        real = transmit_stamp(client)
        ask_for_transmit_stamps(client, False)
        cost.append(time.perf_counter_ns() - begun - (sent - before))
        if real is None:
            raise SystemExit("this kernel did not tell when a packet left")
        _, ancillary, _, _ = server.recvmsg(65536, 64)
        seconds, nanoseconds = timespec(ancillary[0][2])
        arrival = seconds * SECOND_NS + nanoseconds - offset
        user.append(arrival - before)
        kernel.append(arrival - (real - offset))
        time.sleep(0.0005)
    print("| µs | p50 | p90 | p99 |\n| --- | --- | --- | --- |")
    rows = (("arrival − time before send()", user), ("arrival − transmit stamp", kernel), ("cost of a stamp", cost))
    for name, values in rows:
        print(f"| {name} | " + " | ".join(f"{np.quantile(values, q) / 1e3:.1f}" for q in (0.5, 0.9, 0.99)) + " |")


if __name__ == "__main__":
    main()
