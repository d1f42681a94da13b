"""A line that takes its time: what is connected to here is connected to there, each way after a wait of its own."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from queue import SimpleQueue


def far(host: str, port: int, there_s: float, back_s: float) -> int:
    """The port of 127.0.0.1 whose one connection is passed on to `host` and `port`, which are `back_s` away from who
    connects, and `there_s` from there. It ends with either side."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as near, socket.create_connection((host, port)) as away:
            for one in (near, away):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threads = [
                threading.Thread(target=_pass, args=args, daemon=True)
                for args in ((near, away, back_s), (away, near, there_s))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    threading.Thread(target=serve, daemon=True).start()
    return int(listener.getsockname()[1])


def _pass(source: socket.socket, sink: socket.socket, wait_s: float) -> None:
    queue: SimpleQueue[tuple[float, bytes]] = SimpleQueue()

    def send() -> None:
        data = b"-"
        while data:
            due, data = queue.get()
            time.sleep(max(0.0, due - time.monotonic()))
            with suppress(OSError):
                sink.sendall(data) if data else sink.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    data = b"-"
    while data:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        queue.put((time.monotonic() + wait_s, data))
    thread.join()
