"""What holds a worker on another machine: starts it there, says how it ended, and gives its part file away.

    head ── calls, with what is secret ──► seat ── configuration, through a pipe ──► worker
         └────────── one TCP connection, the lines of `pipe` ────────────────────────┘

The worker is the same program as on the head's own machine. Its lines do not pass through the seat, whose calls may be
slow. When the seat ends, however, so does the pipe, and with that the worker; so does it when the head hangs up.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import orjson

from .joining import hello
from .processes import COMMAND, LocalProcess

CONNECT_S = 5.0


class Seat:
    """Of one worker. Every method returns soon, and what JSON or bytes can say."""

    def __init__(self) -> None:
        self._process: LocalProcess | None = None
        self._keeper: Any = None
        self._folder: Path | None = None

    def introduce(self) -> dict[str, Any]:
        """Who is here."""
        from .. import __version__

        return {"version": __version__, "host": socket.gethostname(), "pid": os.getpid()}

    def start(self, host: str, port: int, token: str, number: int, configuration: bytes, cwd: str) -> tuple[str, str]:
        """Start the worker and connect it to the head; returns what hindered it, or nothing, and its part file."""
        try:
            connection = socket.create_connection((host, port), CONNECT_S)
        except OSError as error:
            return f"cannot connect to {host}:{port} ({error.strerror or error})", ""
        with connection:
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(hello(token, number))
            _raise_descriptor_limit()
            self._folder = Path(tempfile.mkdtemp(prefix="loadgen-"))
            said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                (*COMMAND, str(connection.fileno())),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                pass_fds=(connection.fileno(),),
                cwd=cwd if Path(cwd).is_dir() else None,
                start_new_session=True,
            )
        self._process, self._keeper = LocalProcess(process, said), process.stdin
        settings = {**orjson.loads(configuration), "zero_ns": None, "part": str(self._part)}
        with contextlib.suppress(BrokenPipeError):  # it has ended, and `ended` says how
            self._keeper.write(orjson.dumps(settings) + b"\n")
            self._keeper.flush()
        return "", str(self._part)

    def read(self, offset: int, size: int) -> bytes:
        """What the part file holds from there on."""
        try:
            with self._part.open("rb") as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            return b""

    def clear(self) -> None:
        """All of the part file is safe elsewhere, and the worker writes nothing now."""
        with contextlib.suppress(FileNotFoundError):
            os.truncate(self._part, 0)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def ended(self) -> str:
        """How the worker ended."""
        return "was never started" if self._process is None else self._process.how()

    def end(self) -> None:
        """Leave nothing behind."""
        if self._process is not None:
            self._keeper.close()
            self._process.close()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _part(self) -> Path:
        assert self._folder is not None
        return self._folder / "requests.jsonl"


def _raise_descriptor_limit() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
