"""How a worker on another machine and the head find each other: one listens, one connects and says its token."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import anyio

TOKEN_BYTES = 32
SILENT_S = 2.0  # for how long a connection may say nothing


def hello(token: str, number: int) -> bytes:
    """What a connection begins with. It is of one length, so that nothing after it is read with it."""
    return f"{token}{number:8d}\n".encode()


HELLO_BYTES = len(hello("0" * 2 * TOKEN_BYTES, 0))


async def hello_of(connection: socket.socket) -> bytes:
    """As many bytes as a connection begins with, or fewer where it does not say them."""
    loop, said = asyncio.get_running_loop(), b""
    connection.setblocking(False)
    with contextlib.suppress(OSError), anyio.move_on_after(SILENT_S):
        while len(said) < HELLO_BYTES:
            more = await loop.sock_recv(connection, HELLO_BYTES - len(said))
            if not more:
                break
            said += more
    return said


def listening(host: str) -> socket.socket:
    """A socket of any free port, at this address of ours alone where we have it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family, backlog=1024)
    except OSError:  # an address that is ours only from the outside
        listener = socket.create_server(("", 0), family=family, backlog=1024)
    listener.setblocking(False)
    return listener
