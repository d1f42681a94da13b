"""A seat in a process of its own, asked through pipes: `python -m tests.client.seat_process`."""

from __future__ import annotations

import os
import pickle
import sys

from loadgen.client.seat import Seat


def main() -> None:
    seat = Seat()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        while True:
            method, args = pickle.load(sys.stdin.buffer)
            pickle.dump(getattr(seat, method)(*args), out)
            out.flush()
    except EOFError:
        seat.end()


if __name__ == "__main__":
    main()
