"""`python -m tests.faults.bad_wire FAULTS ARGUMENT…`: a command of loadgen's in a network namespace of its own, whose
packets to the server, and back, go over a wire that delays, loses, doubles, spoils and overtakes them.

The wire is a TUN device: what is sent to THERE is read here and written back with its two addresses exchanged, so that
it comes from THERE to the server, which listens at HERE. In ARGUMENT, URL is the server's. Prints as JSON the command's
exit code and output, how many requests the server has answered, and how many packets were lost or spoiled. Needs root
and /dev/net/tun.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, fields

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import generations, serve

HERE, THERE = "10.9.0.1", "10.9.0.2"
CLONE_NEWNET = 0x40000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCSIFFLAGS, IFF_UP = 0x8916, 0x891C, 0x8914, 0x1
SWAPPED = slice(12, 16), slice(16, 20)  # the addresses in an IPv4 header: their sum, so every checksum, stays the same


@dataclass(frozen=True)
class Faults:
    """Shares of packets, and ms."""

    delay: float = 0.0
    jitter: float = 0.0  # more delay, of each packet its own: they overtake one another
    loss: float = 0.0
    double: float = 0.0
    spoil: float = 0.0  # a byte is another
    dead_after: float = float("inf")  # packets, and then nothing passes any more

    @classmethod
    def of(cls, words: str) -> Faults:
        """`delay=20,loss=0.05`, or nothing."""
        given = dict(word.split("=") for word in words.split(",") if word)
        assert given.keys() <= {field.name for field in fields(cls)}
        return cls(**{name: float(value) for name, value in given.items()})


def interface(name: bytes, address: str | None) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, value in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, address and "255.255.255.0")):
            if value:
                packed = struct.pack("16sH2s4s8x", name, socket.AF_INET, b"", socket.inet_aton(value))
                fcntl.ioctl(control, request, packed)
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", name, IFF_UP))


class Wire:
    """The thread that carries the packets. Seeded."""

    def __init__(self, faults: Faults) -> None:
        self.device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(self.device, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
        interface(b"lo", None)
        interface(b"wire", HERE)
        self.faults, self.random = faults, random.Random(5)
        self.carried = self.harmed = 0
        self._waiting: list[tuple[float, int, bytes]] = []
        threading.Thread(target=self._carry, daemon=True).start()

    def _carry(self) -> None:
        while True:
            left = max(0.0, self._waiting[0][0] - time.monotonic()) if self._waiting else 1.0
            if select.select([self.device], [], [], left)[0]:
                packet = bytearray(os.read(self.device, 65536))
                if packet[0] >> 4 == 4:
                    one, other = SWAPPED
                    packet[one], packet[other] = packet[other], packet[one]
                    self._take(packet)
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                os.write(self.device, heapq.heappop(self._waiting)[2])

    def _take(self, packet: bytearray) -> None:
        dice, faults = self.random.random, self.faults
        self.carried += 1
        if self.carried > faults.dead_after or dice() < faults.loss:
            self.harmed += 1
            return
        if dice() < faults.spoil:
            self.harmed += 1
            packet[20 + self.random.randrange(len(packet) - 20)] ^= 0x10
        for _ in range(1 + (dice() < faults.double)):
            late_ms = faults.delay + faults.jitter * dice()
            heapq.heappush(self._waiting, (time.monotonic() + late_ms / 1e3, self.carried, bytes(packet)))


def main() -> None:
    faults, *arguments = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace")
    wire = Wire(Faults.of(faults))
    with ThreadedServer(serve(5.0), host=HERE) as server:
        url = server.url.replace(HERE, THERE)
        command = [sys.executable, "-m", "loadgen", *(word.replace("URL", url) for word in arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        answered = len(generations(server.requests))
    seen = {"code": done.returncode, "out": done.stdout, "err": done.stderr, "answered": answered}
    sys.stdout.write(json.dumps({**seen, "harmed": wire.harmed}))


if __name__ == "__main__":
    main()
