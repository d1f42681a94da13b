"""`--metrics-port`: what the page says as a run goes, by its own reader and by another's."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.runner.config import Nobody
from loadgen.runner.exporter import BUCKETS_S, CONTENT_TYPE, Exporter, parse_address
from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, finish, folder_in, records_of, serve, start, until
from tests.log.record_strategies import RECORD


def parsed(page: str) -> dict[str, float]:
    """Sample → value, by the rules of the format: TYPE before samples, no empty line, EOF at the end."""
    lines = page.split("\n")
    assert lines[-2:] == ["# EOF", ""]
    kinds: dict[str, str] = {}
    found: dict[str, float] = {}
    for line in lines[:-2]:
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# "):
            sample, value = line.rsplit(" ", 1)
            name = sample.partition("{")[0]
            family = next(one for one in (name, name.rsplit("_", 1)[0]) if one in kinds)
            ends = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}[kinds[family]]
            assert name.removeprefix(family) in ends
            found[sample] = float(value)
    return found


def test_what_is_counted() -> None:
    exporter = Exporter(Nobody())
    for _ in range(3):
        exporter.request_ended(RECORD)
    found = parsed(exporter.page())
    assert found['loadgen_requests_total{outcome="ok",phase="measured"}'] == 3
    assert found['loadgen_tokens_total{direction="output"}'] == 600
    assert found['loadgen_tokens_total{direction="input"}'] == 3 * 512
    assert found["loadgen_ttft_seconds_count"] == found['loadgen_ttft_seconds_bucket{le="0.001"}'] == 3
    assert found["loadgen_in_flight"] == 0
    bounds = [found[f'loadgen_e2e_seconds_bucket{{le="{bound}"}}'] for bound in (*BUCKETS_S, "+Inf")]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize(
    ("text", "address"),
    [("9464", ("127.0.0.1", 9464)), ("0.0.0.0:1", ("0.0.0.0", 1)), ("[::]:9", ("::", 9)), (":5", ("127.0.0.1", 5))],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "x", "70000", "-1", "host:", "1.5", "²"])
def test_no_addresses(text: str) -> None:
    with pytest.raises(UsageError, match="is no port"):
        parse_address(text)


def test_a_run_is_seen_from_outside(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"

    def read(path: str = "/metrics") -> dict[str, float]:
        with urllib.request.urlopen(url + path, timeout=5) as answer:
            assert answer.headers["content-type"] == CONTENT_TYPE
            return parsed(answer.read().decode())

    def busy() -> bool:
        try:
            return read().get('loadgen_requests_total{outcome="ok",phase="measured"}', 0) > 3
        except OSError:
            return False

    shape = ("--input-len", "16", "--output-len", "4", "-c", "3", "--duration", "3s", "-o", tmp_path)
    with ThreadedServer(serve(wait_ms=30.0)) as server:
        process = start("run", server.url, *shape, "--metrics-port", port)
        until(busy, timeout_s=40)
        found = read()
        assert found["loadgen_step"] == 1 and found["loadgen_concurrency"] == 3 and found["loadgen_in_flight"] <= 3
        for path, code in (("/x", 404), ("/", 200)):
            try:
                read(path)
                assert code == 200
            except urllib.error.HTTPError as error:
                assert error.code == code
        with socket.create_connection(("127.0.0.1", port), timeout=5) as garbage:  # hurts nobody
            garbage.sendall(b"\x00\xff" * 20_000)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        last = read()
        said = finish(process)
    assert said.code in (0, 4), said.err
    assert f"metrics at {url}/metrics" in said.err
    ok = sum(r["outcome"] == "ok" and r["phase"] == "measured" for r in records_of(folder_in(tmp_path)))
    assert last['loadgen_requests_total{outcome="ok",phase="measured"}'] <= ok


def test_a_port_that_cannot_be_had(tmp_path: Path, call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = call("run", "http://127.0.0.1:9", "--metrics-port", taken.getsockname()[1], "-o", tmp_path)
    assert said.code == 2 and "metrics cannot be served" in said.err and "Traceback" not in said.err
    said = call("run", "http://127.0.0.1:9", "--metrics-port", "nine", "-o", tmp_path)
    assert said.code == 2 and "is no port" in said.err
