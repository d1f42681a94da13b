"""A server that plays a fault script on real sockets, byte for byte."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from contextlib import suppress
from dataclasses import dataclass, field

from tests.client.fault_scripts import HALF, RESET, SILENCE, Script


@dataclass
class Player:
    """Plays a script on real sockets. `served` are the numbers of the requests that came, in order."""

    script: Script
    connections: int = 0
    open: int = 0
    served: list[int] = field(default_factory=list)
    port: int = 0
    _tls: bool = False

    async def start(self, tls: ssl.SSLContext | None = None) -> asyncio.Server:
        self._tls = tls is not None
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=1 << 20, ssl=tls)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        self.open += 1
        try:
            if number not in self.script.reject:
                await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()
            # How it ended is asked for or called off: of a reset, asyncio would report that nobody did.
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(0.02):
                    await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
            await reader.readexactly(int(fields["content-length"]))
            number = int(fields["x-request-id"].rpartition("-")[2])
            self.served.append(number)
            answer = self.script.answers[number % len(self.script.answers)]
            for part in answer.parts:
                if isinstance(part, bytes):
                    writer.write(part)
                    await writer.drain()
                elif isinstance(part, float):
                    await asyncio.sleep(part)
                elif part == SILENCE:
                    await reader.read()
                    return
                elif part == HALF and not self._tls:  # TLS has no half of a close
                    writer.write_eof()
                    await reader.read()
                    return
                elif part == RESET:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    writer.transport.abort()
                    return
                else:
                    return
