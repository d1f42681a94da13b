"""Every reader under Hypothesis: damaged inputs of every kind, and any bytes. `make fuzz` runs the same for longer."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzz.run import TooLongError, mutated, within
from fuzz.targets import TARGETS, clear, seeds
from tests.thorough import THOROUGH, examples

FOUND = Path(__file__).parent / "data" / "found"


@pytest.fixture(scope="module", autouse=True)
def tidy() -> object:
    yield
    clear()


@pytest.mark.parametrize("name", TARGETS)
def test_its_seeds_are_read(name: str) -> None:
    found = list(seeds(name))
    assert found
    for seed in found:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=examples(25))
@given(st.integers(0, 2**32), st.binary(max_size=200))
def test_damage_is_refused_or_read(name: str, seed: int, anything: bytes) -> None:
    chance = random.Random(seed)
    TARGETS[name](anything)
    TARGETS[name](mutated(chance.choice(list(seeds(name))), chance))


@pytest.mark.parametrize("path", sorted(FOUND.glob("*")) if FOUND.is_dir() else [], ids=lambda path: path.name)
def test_what_was_found_once(path: Path) -> None:
    TARGETS[path.name.partition("-")[0]](path.read_bytes())


def test_a_reader_that_hangs_is_stopped() -> None:
    begun = time.monotonic()
    with pytest.raises(TooLongError), within(0.05):
        time.sleep(20)
    assert time.monotonic() - begun < 10
    with within(0.05):
        pass
    time.sleep(0.1)


# Inputs on which a careless reader takes quadratic time, or much memory: the head, and what is repeated after it.
REPEATED = {
    "sse": [(b"\x00", b"d"), (b"\x16", b"data: a\n"), (b"\x16", b"\r"), (b"\x16", b":\n"), (b"\x16", b"event: x\n")],
    "http": [
        (b"\x16HTTP/1.1 200 OK\r\n", b"A: b\r\n"),
        (
            b"\x16HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n",
            b"1\r\n\n\r\n",
        ),
    ],
    "event": [(b"", b"["), (b"", b'{"a":'), (b"", b'"\\u0000'), (b'{"choices":[', b'{"delta":{"content":"a"}},')],
    "prometheus": [
        (b'vllm:num_requests_running{a="', b"\\\\"),
        (b"", b"vllm:num_requests_running{,"),
        (b"", b"# HELP\n"),
    ],
    "log": [(b"\x00", b"{}\n"), (b"\x00", b"["), (b"\x05request_id,start_ts\n", b'"'), (b"\x04[", b"{},")],
    "workload": [(b"a = ", b"["), (b"", b"[[a]]\n"), (b"a = '", b"x"), (b"", b"a.")],
    "prompts": [(b"", b"["), (b"", b'{"prompt":'), (b'{"prompt":"', b"a"), (b"", b"\n")],
}


@pytest.mark.skipif(
    THOROUGH < 2 and not os.environ.get("LOADGEN_FUZZ_GROWTH"), reason="LOADGEN_THOROUGH=5: measures time"
)
@pytest.mark.parametrize(("name", "head", "piece"), [(n, h, p) for n, pairs in REPEATED.items() for h, p in pairs])
def test_time_grows_with_the_bytes(name: str, head: bytes, piece: bytes) -> None:
    took = []
    for size in (50_000, 400_000):
        data = head + piece * (size // len(piece))
        begun = time.process_time()
        TARGETS[name](data)
        took.append(time.process_time() - begun)
    assert took[1] < 0.5 + 24 * took[0], took  # 8 where it is linear, 64 where it is quadratic
