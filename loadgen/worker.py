"""`python -m loadgen.worker [DESCRIPTOR]`: one of several processes that share a run's load. It is started, and spoken
to, by `client.workers`; all it needs to know comes through its standard input. On another machine it is started by
`client.seat`, and spoken to through the connection that DESCRIPTOR is."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from .client.loop import run
from .client.worker import serve
from .log.append import Lines
from .records import Record


def open_part(path: str) -> Callable[[Record], None]:
    return Lines(Path(path)).append


def main() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # they are passed on as what they mean
        signal.signal(number, signal.SIG_IGN)
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # what is printed by mistake does not end up between the lines
    if len(sys.argv) > 1:
        line = int(sys.argv[1])
        run(serve, line, os.dup(line), open_part, source)
    else:
        run(serve, source, sink, open_part)


if __name__ == "__main__":
    main()
