"""Several servers as one target, a Unix socket, and what each way of access asks for, through whole runs."""

from __future__ import annotations

import json
import socket
import ssl
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from loadgen.client.transport import Access
from loadgen.errors import LoadgenError, TargetError
from loadgen.runner import Budgets, Finished, RunConfig, WorkloadChoice, execute
from loadgen.search.sweep import SweepPlan
from loadgen.simulator.scripted import Request, ScriptedServer, ThreadedServer, error_reply, models_reply
from tests.cases.support import TRANSPORTS, Ran, answer, loadgen, posts, went_well
from tests.thorough import THOROUGH

QUICK = ("-c", "2", "--requests", "6", "--output-len", "4", "--input-len", "40")


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def two() -> Iterator[tuple[ScriptedServer, ScriptedServer]]:
    with ThreadedServer(posts(answer)) as a, ThreadedServer(posts(answer), host="127.0.0.2") as b:
        yield a, b


def measured(server: ScriptedServer) -> int:
    """Requests of the load: the preflight's ids begin otherwise."""
    return sum("-s1-" in request.headers.get("x-request-id", "") for request in server.requests)


# --- several servers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", "2"] + (["3"] if THOROUGH > 1 else []))
def test_requests_go_to_the_servers_in_turn(workers: str, two: tuple[ScriptedServer, ...], tmp_path: Path) -> None:
    flags = ("-c", "6", "--requests", "30", "--warmup", "0", "--output-len", "4", "--input-len", "40")
    ran = loadgen("run", *(server.url for server in two), *flags, "--workers", workers, output=tmp_path)
    went_well_or_bound(ran)
    servers = [f"{server.host}:{server.port}" for server in two]
    records = ran.records("measured", "filler", "warmup")
    for record in records:
        assert record.peer == servers[int(record.id.rpartition("-")[2]) % 2], "the order is that of the whole step"
    if workers == "1":
        assert abs(measured(two[0]) - measured(two[1])) <= 1
    assert ran.manifest["target"]["urls"] == [f"{server.url}/v1/chat/completions" for server in two]
    assert all(server.url in ran.out for server in two)


def went_well_or_bound(ran: Ran) -> None:
    """Workers on a machine with few CPUs are a limit themselves."""
    assert ran.code in (0, 4), ran.err


def test_each_servers_part_is_reported(two: tuple[ScriptedServer, ...], tmp_path: Path) -> None:
    ran = loadgen("run", *(server.url for server in two), *QUICK, output=tmp_path)
    went_well(ran)
    [step] = ran.report()["steps"]
    parts = step["by_peer"]
    assert set(parts) == {f"{server.host}:{server.port}" for server in two}
    assert sum(part["sent"] for part in parts.values()) == step["sent"]
    assert all(part["failed"] == 0 and part["median_ttft_ms"] > 0 for part in parts.values())
    assert "by peer" in ran.out
    assert "2 servers in turn" in ran.out


def test_l29_the_failures_of_one_server_are_its_own(tmp_path: Path) -> None:
    """Also where it dies, so that no connection tells its address."""

    def dying(request: Request) -> Any:
        if request.method == "POST" and "-s1-" in request.headers["x-request-id"]:
            return error_reply(500, "out of order")
        return posts(answer)(request)

    with ThreadedServer(posts(answer)) as good, ThreadedServer(dying) as bad:
        flags = ("-c", "2", "--requests", "10", "--output-len", "4", "--input-len", "40", "--max-error-rate", "60%")
        ran = loadgen("run", good.url, bad.url, *flags, output=tmp_path)
    parts = ran.report()["steps"][0]["by_peer"]
    assert {name: (part["completed"] > 0, part["failed"] > 0) for name, part in parts.items()} == {
        f"127.0.0.1:{good.port}": (True, False),
        f"127.0.0.1:{bad.port}": (False, True),
    }


def test_one_server_is_no_table(two: tuple[ScriptedServer, ...], tmp_path: Path) -> None:
    ran = loadgen("run", two[0].url, *QUICK, output=tmp_path)
    assert ran.report()["steps"][0]["by_peer"] == {}
    assert "by peer" not in ran.out
    assert "urls" not in ran.manifest["target"]


def test_a_server_that_cannot_be_measured_ends_the_run_and_is_named(tmp_path: Path) -> None:
    def refuses(request: Request) -> Any:
        return error_reply(404, "no such model") if request.method == "POST" else None

    with ThreadedServer(posts(answer)) as good, ThreadedServer(refuses) as bad, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        down = f"http://127.0.0.1:{closed.getsockname()[1]}"
        for url, words in ((bad.url, "404"), (down, "refused")):
            ran = loadgen("run", good.url, url, *QUICK, output=tmp_path)
            assert ran.code == 3
            assert url in ran.err
            assert words in ran.err
        assert measured(good) == 0


def test_servers_that_differ_are_told_apart(tmp_path: Path) -> None:
    def other(request: Request) -> Any:
        if request.method == "GET" and request.path == "/v1/models":
            return models_reply(["m"], owned_by="vllm", max_model_len=4096)
        return posts(answer)(request)

    first = posts(answer, owned_by="vllm", max_model_len=8192)
    with ThreadedServer(first) as a, ThreadedServer(other) as b:
        ran = loadgen("run", a.url, b.url, *QUICK, output=tmp_path)
    went_well(ran)
    assert f"127.0.0.1:{b.port}: its context is 4,096 tokens, the first server's 8,192 tokens" in ran.said
    assert ran.manifest["server"]["context_length"] == 4096


def test_the_model_is_the_first_servers(tmp_path: Path) -> None:
    with ThreadedServer(posts(answer, ["m"])) as a, ThreadedServer(posts(answer, ["m", "n"])) as b:
        ran = loadgen("run", a.url, b.url, *QUICK, output=tmp_path)
        went_well(ran)
        assert {request.json["model"] for server in (a, b) for request in server.requests if request.json} == {"m"}


MISTAKES = {
    "twice": (["http://h/v1", "h"], "twice"),
    "two endpoints": (["http://a/v1/chat/completions", "http://b/v1/completions"], "completions"),
    "one is no address": (["http://a", "http://b:x"], "port"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_addresses_that_make_no_one_target(case: str, tmp_path: Path) -> None:
    urls, words = MISTAKES[case]
    for more in ((), ("--dry-run",)):
        ran = loadgen("run", *urls, *more, output=tmp_path)
        assert ran.code == 2, ran.out
        assert words in ran.err


def test_a_dry_run_shows_all(tmp_path: Path) -> None:
    ran = loadgen("run", "http://a", "https://b/v1", "--dry-run", output=tmp_path)
    assert json.loads(ran.out)["urls"] == ["http://a/v1/chat/completions", "https://b/v1/chat/completions"]


# --- access, over both transports: discovery, preflight, load and the server's metrics alike --------------------------


def whole_run(url: str, access: Access, tmp_path: Path) -> Finished:
    config = RunConfig(
        "run",
        url,
        access=access,
        workload=WorkloadChoice("40", "4", seed=1),
        plan=SweepPlan(levels=(2,)),
        requests=6,
        budgets=Budgets(max_time_s=20),
        output=str(tmp_path),
    )
    return anyio.run(execute, config)


def access_over(transport: str, **how: Any) -> Access:
    return Access(httpx_pool=transport == "httpx", **how)


def all_ok(finished: Finished) -> None:
    assert finished.status == "complete"
    assert set(finished.outcomes) == {"ok"}


def gated(*, path: str, query: str, headers: dict[str, str]) -> Any:
    """A server behind a gateway that lets nothing through without this query and these headers."""

    def handler(request: Request) -> Any:
        where, _, sent = request.path.partition("?")
        if sent != query or any(request.headers.get(name) != value for name, value in headers.items()):
            return error_reply(401, f"{request.method} {where} without its key")
        if request.method == "POST":
            return answer(request) if where == path else error_reply(404, "no such deployment")
        return error_reply(404, "not here")

    return handler


def test_x14_an_azure_deployment(transport: str, tmp_path: Path) -> None:
    path, query, headers = "/openai/deployments/my-gpt/chat/completions", "api-version=2024-10-21", {"api-key": "k1"}
    with ThreadedServer(gated(path=path, query=query, headers=headers)) as server:
        access = access_over(transport, headers=headers)
        all_ok(whole_run(f"{server.url}{path}?{query}", access, tmp_path))
        assert all(request.path.endswith(f"?{query}") for request in server.requests), "the query is in every request"
        assert all(request.headers["api-key"] == "k1" for request in server.requests)
        assert {request.json["model"] for request in server.requests if request.json} == {"my-gpt"}
        assert any(request.path.startswith("/openai/deployments/my-gpt/models") for request in server.requests)
        with pytest.raises(TargetError, match="401"):
            whole_run(f"{server.url}{path}?{query}", access_over(transport), tmp_path / "without")


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_x12_a_unix_socket(tls: bool, transport: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    authority = trustme.CA()
    context = None
    ca = tmp_path / "ca.pem"
    if tls:
        authority.cert_pem.write_to_path(str(ca))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("engine.example").configure_cert(context)
    url = f"{'https' if tls else 'http'}://engine.example/v1"
    with ThreadedServer(posts(answer), unix=path, ssl=context) as server:
        access = access_over(transport, unix_socket=path, ca_file=str(ca) if tls else None)
        finished = whole_run(url, access, tmp_path)
        all_ok(finished)
        assert {request.headers["host"] for request in server.requests} == {"engine.example"}
    records = Ran(0, "", "", tmp_path).records()
    assert {record.peer for record in records} == {f"unix:{path}"}
    assert finished.manifest["clock"]["source"] == "user", "the kernel stamps nothing there"
    assert finished.manifest["target"]["access"]["unix_socket"] == path
    fresh = [record.connect for record in records if record.connect is not None]
    assert fresh
    assert all(connect.dns_us is None and connect.tcp_us is not None for connect in fresh)
    assert all((connect.tls_us is not None) == tls for connect in fresh)


def test_a_unix_socket_on_the_command_line(tmp_path: Path) -> None:
    path = str(tmp_path / "s.sock")
    with ThreadedServer(posts(answer), unix=path):
        ran = loadgen("run", "http://localhost", *QUICK, "--unix-socket", path, output=tmp_path)
        went_well(ran)
    gone = loadgen("run", "http://localhost", *QUICK, "--unix-socket", path, output=tmp_path / "b")
    assert (gone.code, path in gone.err) == ((3 if Path(path).exists() else 2), True)
    (tmp_path / "file").write_text("")
    for wrong in ("nowhere", "file", "x" * 200):
        ran = loadgen("run", "http://localhost", *QUICK, "--unix-socket", str(tmp_path / wrong), output=tmp_path)
        assert ran.code == 2
        assert "--unix-socket" in ran.err


def mutual(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def test_x13_a_client_certificate(transport: str, tmp_path: Path) -> None:
    authority = trustme.CA()
    ca, mine = tmp_path / "ca.pem", tmp_path / "mine.pem"
    authority.cert_pem.write_to_path(str(ca))
    authority.issue_cert("me.example").private_key_and_cert_chain_pem.write_to_path(str(mine))
    with ThreadedServer(posts(answer), ssl=mutual(authority)) as server:
        all_ok(whole_run(server.url, access_over(transport, ca_file=str(ca), client_cert=str(mine)), tmp_path))
        served = len(server.requests)
        with pytest.raises(TargetError) as refused:
            whole_run(server.url, access_over(transport, ca_file=str(ca)), tmp_path / "b")
        assert len(server.requests) == served
        assert server.url in refused.value.message


WRONG: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "expired": ({"not_after": "past"}, ("expired",)),
    "another name": ({"name": "elsewhere.example"}, ("127.0.0.1",)),
    "an unknown authority": ({"trusted": False}, ("certificate",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_x13_a_certificate_that_is_not_right_is_one_sentence(case: str, transport: str, tmp_path: Path) -> None:
    how, words = WRONG[case]
    authority = trustme.CA()
    ca = tmp_path / "ca.pem"
    (authority if how.get("trusted", True) else trustme.CA()).cert_pem.write_to_path(str(ca))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    past = {"not_after": datetime(2024, 1, 1, tzinfo=UTC)} if "not_after" in how else {}
    authority.issue_cert(how.get("name", "127.0.0.1"), **past).configure_cert(context)
    with ThreadedServer(posts(answer), ssl=context) as server:
        with pytest.raises(LoadgenError) as refused:
            whole_run(server.url, access_over(transport, ca_file=str(ca)), tmp_path)
        assert server.requests == []
    assert server.url in refused.value.message
    assert "--ca-file" in refused.value.remedy
    assert "\n" not in refused.value.message
    for word in words:
        assert word in refused.value.message


def test_reconnecting(transport: str, tmp_path: Path) -> None:
    with ThreadedServer(posts(answer)) as server:
        all_ok(whole_run(server.url, access_over(transport, reconnect_every=2), tmp_path))
        loads = Counter(r.connection for r in server.requests if r.method == "POST")
    assert max(loads.values()) <= 2
    records = Ran(0, "", "", tmp_path).records("measured")
    assert sum(record.connect is not None for record in records) >= 2


def test_socks_needs_a_package_and_says_so(tmp_path: Path) -> None:
    if find_spec("socksio") is not None:
        pytest.skip("it is installed here")
    ran = loadgen("run", "http://h", "--proxy", "socks5://user:verysecret@127.0.0.1:9", output=tmp_path)
    assert ran.code == 2
    assert "httpx[socks]" in ran.err
    assert "verysecret" not in ran.err
