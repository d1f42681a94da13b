"""Reading a server's metrics: where they are, who gets the key, and every way in which a page does not come."""

from __future__ import annotations

import socket
from itertools import pairwise
from typing import Any

import anyio
import pytest

from loadgen.client.addresses import Found
from loadgen.client.scrape import Page, Scraper, access_to, candidates, metrics_url
from loadgen.client.target import Target, resolve
from loadgen.client.transport import Access
from loadgen.errors import UsageError
from loadgen.simulator.script import RST, Hang, Head, Raw, reply
from loadgen.simulator.scripted import Request, ScriptedServer, ThreadedServer

TEXT = b"vllm:num_requests_running 3\n"
KEYED = Access(headers={"authorization": "Bearer secret"})


@pytest.mark.parametrize(
    ("address", "places"),
    [
        ("h:8000", ["http://h:8000/metrics"]),
        ("https://h/v1", ["https://h/metrics"]),
        ("http://h:8000/v1/chat/completions", ["http://h:8000/metrics"]),
        ("http://h/team-a", ["http://h/team-a/metrics", "http://h/metrics"]),
        ("http://h/team-a/v1", ["http://h/team-a/metrics", "http://h/metrics"]),
        ("http://h:8000/v1?route=b", ["http://h:8000/metrics?route=b"]),
        ("http://h:8080/generate_stream", ["http://h:8080/metrics"]),
    ],
)
def test_where_the_metrics_of_a_server_may_be(address: str, places: list[str]) -> None:
    assert list(candidates(resolve(address))) == places


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://h:9400/metrics", "http://h:9400/metrics"),
        ("h:9400", "http://h:9400/metrics"),
        ("https://h/", "https://h/metrics"),
        (" http://h/prometheus?x=1#top ", "http://h/prometheus?x=1"),
        ("http://[::1]:8081/metrics", "http://[::1]:8081/metrics"),
    ],
)
def test_an_address_of_metrics(typed: str, url: str) -> None:
    assert metrics_url(typed) == url


@pytest.mark.parametrize(
    "typed",
    ["", "ftp://h/x", "http://", "http://h:port/x", "http://h:99999/", "http://h/a b", "http://u:hush@h/metrics"],
)
def test_what_is_no_address_of_metrics(typed: str) -> None:
    with pytest.raises(UsageError) as raised:
        metrics_url(typed)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("http://h:8000/metrics", True),
        ("http://H:8000/other", True),
        ("http://h:8001/metrics", False),
        ("https://h:8000/metrics", False),
        ("http://h.example:8000/metrics", False),
    ],
)
def test_the_key_goes_to_the_loads_own_origin_alone(url: str, same: bool) -> None:
    access = access_to(url, KEYED, [resolve("h:8000"), resolve("other:1")])
    assert (access.headers == KEYED.headers) is same
    assert same or not access.headers


def look(script: Any, *, target: str | None = None, timeout_s: float = 2.0) -> tuple[Page, list[Request]]:
    """One look at a server of this script, which is the target unless another is given."""
    with ThreadedServer(lambda request: script) as server:

        async def main() -> Page:
            targets: list[Target] = [resolve(target or server.url)]
            async with Scraper([f"{server.url}/metrics?key=hush"], KEYED, targets, zero_ns=0) as scraper:
                (page,) = await scraper.look(timeout_s)
            return page

        return anyio.run(main), list(server.requests)


def test_a_page_with_its_time() -> None:
    page, (request,) = look(reply(TEXT))
    assert (page.text.encode(), page.error) == (TEXT, None)
    assert page.at_ns > 0
    assert 0 < page.took_us < 2_000_000
    assert page.source.endswith("/metrics?key=***")
    assert (request.method, request.path) == ("GET", "/metrics?key=hush")
    assert request.headers["authorization"] == "Bearer secret"


def test_a_page_keeps_to_one_of_several_replicas() -> None:
    async def both(host: str, port: int) -> Found:
        return [(socket.AF_INET, (one, port)) for one in ("127.0.0.1", "127.0.0.2")]

    async def main() -> set[str]:
        async with (
            ScriptedServer(lambda _: reply(b"first"), host="127.0.0.1") as first,
            ScriptedServer(lambda _: reply(b"second"), host="127.0.0.2", port=first.port),
        ):
            urls = [f"http://replicas.test:{first.port}/metrics"]
            async with Scraper(urls, Access(), [], zero_ns=0, resolver=both) as scraper:
                return {(await scraper.look())[0].text for _ in range(6)}

    assert anyio.run(main) == {"first"}


def test_another_server_sees_no_key() -> None:
    _, (request,) = look(reply(TEXT), target="http://elsewhere:1")
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (reply(b"no", 404), "answered 404"),
        (reply(b"", 302, Location="http://elsewhere/"), "answered 302"),
        ([Hang(5)], "no answer within 0.1 s"),
        ([Head(), Raw(b"vllm:"), Hang(5)], "no answer within 0.1 s"),
        ([RST], None),
        ([Head(200, {"Content-Length": "9999"}, chunked=False), Raw(b"vllm:"), RST], None),
    ],
    ids=["missing", "redirect", "silent", "stalls", "reset", "cut"],
)
def test_a_page_that_does_not_come_is_no_exception(script: Any, error: str | None) -> None:
    page, _ = look(script, timeout_s=0.1)
    assert page.text == ""
    assert page.error
    assert error is None or page.error == error


def test_several_pages_are_asked_for_at_once_and_again_and_again() -> None:
    rounds: list[list[Page]] = []

    def handler(request: Request) -> Any:
        return reply(TEXT) if request.path == "/a" else reply(b"", 503)

    with ThreadedServer(handler) as server:

        async def keep(pages: list[Page]) -> None:
            rounds.append(pages)

        async def main() -> None:
            urls = [f"{server.url}/a", f"{server.url}/b"]
            async with Scraper(urls, Access(), [resolve(server.url)], zero_ns=0) as scraper:
                with anyio.move_on_after(0.5):
                    await scraper.follow(0.02, keep)

        anyio.run(main)
        opened = server.connections
    assert 5 <= len(rounds) <= 50
    assert all([page.error for page in pages] == [None, "answered 503"] for pages in rounds)
    assert opened == 2, "each keeps its connection"
    gaps = [later[0].at_ns - earlier[0].at_ns for earlier, later in pairwise(rounds)]
    assert len({gap // 2_000_000 for gap in gaps}) > 1, "no regular beat"
