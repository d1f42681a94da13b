"""`python -m fuzz.run --seconds 30 [TARGET…]`: each reader for so long, one after the other.

Half of the time atheris looks for inputs that go somewhere new, half of it seeds are mutated blindly, which is some
fifty times as many inputs; where atheris is not installed, that is said and all is blind. Says how many inputs each
reader took; a fault, which ten seconds over one input are too, is printed with its input, which is kept in
`fuzz/found/`, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOUND = Path(__file__).parent / "found"
SLOWEST_S = 10  # over one input
PIECES = (
    *(b"-", b"NaN", b"1e999", b"null", b"[", b"{", b'"', b",", b"\n", b"\r", b"\r\n\r\n", b"\xff", b"\0", b"9" * 40),
    *(b"{}", b"true", b"data: ", b": ", b"[DONE]", b"\\ud800", b"\xef\xbb\xbf", b"=", b"#", b"'"),
)


def main() -> int:
    """Run the targets; 0 where none failed."""
    parser = argparse.ArgumentParser(prog="fuzz")
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=30.0, help="for each target")
    parser.add_argument("--guided", help=argparse.SUPPRESS)  # a child, for one target
    parser.add_argument("--blind", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.guided:
        return _guided(options.guided, options.seconds)
    if options.blind:
        return _blind(options.blind, options.seconds)
    from .targets import TARGETS

    names = options.targets or list(TARGETS)
    unknown = sorted(set(names) - set(TARGETS))
    if unknown:
        sys.stderr.write(f"fuzz: there is no target {unknown[0]}: they are {', '.join(TARGETS)}\n")
        return 2
    guided = subprocess.run([sys.executable, "-c", "import atheris"], capture_output=True, check=False).returncode == 0
    if not guided:
        sys.stdout.write("atheris is not installed (pip install atheris): inputs are mutated without its guidance\n")
    ways = ("--guided", "--blind") if guided else ("--blind",)
    failed = 0
    for name in names:
        said = []
        for way in ways:
            command = [sys.executable, "-m", "fuzz.run", way, name, "--seconds", str(options.seconds / len(ways))]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
            said.append(done.stdout.strip() if done.returncode == 0 else "FAILED\n" + done.stdout + done.stderr[-4000:])
            failed += done.returncode != 0
        sys.stdout.write(f"{name:11} {', '.join(said)}\n")
        sys.stdout.flush()
    return 1 if failed else 0


def _guided(name: str, seconds: float) -> int:
    import atheris  # type: ignore[import-untyped,unused-ignore]

    with atheris.instrument_imports(include=["loadgen"], enable_loader_override=False):
        from . import targets
    target = targets.TARGETS[name]
    atexit.register(targets.clear)

    def one(data: bytes) -> None:
        try:
            target(data)
        except BaseException:
            _keep(name, data)
            raise

    FOUND.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as corpus:
        for number, seed in enumerate(targets.seeds(name)):
            (Path(corpus) / f"seed{number}").write_bytes(seed)
        log = Path(corpus).with_suffix(".log")
        # libFuzzer leaves by _exit: its own lines on stderr are what is known of the run afterwards.
        code = _forked(lambda: _fuzz(atheris, name, one, corpus, seconds), log)
        text = log.read_text(errors="replace")
        log.unlink()
        counts = [int(n) for n in re.findall(r"number_of_executed_units: (\d+)", text)]
        new = len(list(Path(corpus).iterdir()))
        if code != 0:
            sys.stderr.write(text[-4000:])
            return 1
        sys.stdout.write(f"{max(counts, default=0):,} inputs of atheris ({new:,} went somewhere new)\n")
    return 0


def _forked(call: Callable[[], None], log: Path) -> int:
    pid = os.fork()
    if pid == 0:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        try:
            call()
        finally:
            os._exit(3)
    return os.waitpid(pid, 0)[1]


def _fuzz(atheris: Any, name: str, one: Callable[[bytes], None], corpus: str, seconds: float) -> None:
    flags = [f"-max_total_time={max(1, int(seconds))}", "-max_len=4096", f"-timeout={SLOWEST_S}", "-rss_limit_mb=1500"]
    # What ends the process, as a hang does, leaves its input there.
    atheris.Setup(["fuzz", corpus, *flags, f"-artifact_prefix={FOUND}/{name}-", "-print_final_stats=1"], one)
    atheris.Fuzz()


def _blind(name: str, seconds: float) -> int:
    from . import targets

    chance, begun, count = random.Random(), time.monotonic(), 0
    known = list(targets.seeds(name))
    atexit.register(targets.clear)
    while time.monotonic() - begun < seconds:
        data = mutated(chance.choice(known), chance)
        count += 1
        try:
            with within(SLOWEST_S):
                targets.TARGETS[name](data)
        except BaseException:
            _keep(name, data)
            traceback.print_exc()
            return 1
    sys.stdout.write(f"{count:,} blindly: no fault\n")
    return 0


class TooLongError(BaseException):
    """No reader catches it."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """TooLongError where it takes longer. In the main thread only."""

    def too_long(number: int, frame: object) -> None:
        raise TooLongError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """A few random changes of an input."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 5)):
        at = chance.randint(0, len(found))
        kind = chance.randrange(5)
        if kind == 0:
            del found[at : at + chance.choice((1, 3, 50))]
        elif kind == 1:
            found[at:at] = chance.choice(PIECES) * chance.choice((1, 1, 1, 300))
        elif kind == 2 and found:
            found[at % len(found)] = chance.randrange(256)
        elif kind == 3:
            end = chance.randint(at, len(found))
            found[at:at] = found[at : min(end, at + 200)]
        else:
            del found[at:]
            found += data[at : at + 4000]
    return bytes(found)


def _keep(name: str, data: bytes) -> None:
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"{name}-{abs(hash(data)) % 10**8:08d}"
    path.write_bytes(data)
    sys.stderr.write(f"kept in {path}: {data[:300]!r}\n")


if __name__ == "__main__":
    sys.exit(main())
