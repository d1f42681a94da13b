"""A preflight against a scripted server, with the real client."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

import anyio

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import Dialect, RequestOptions
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.preflight import Prepared, preflight
from loadgen.client.remedies import PreflightError
from loadgen.client.target import resolve
from loadgen.client.transport import Access, open_client
from loadgen.errors import Exit
from loadgen.simulator.scripted import (
    CU,
    DONE,
    FIN,
    C,
    Request,
    ScriptedServer,
    U,
)
from loadgen.workload.plain import PlainWorkload, plain_workload

Handler = Callable[[Request], Any]


def words_of(request: Request) -> int:
    body = request.json
    text = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    return len(text.split())


def good(
    request: Request,
    *,
    overhead: int = 8,
    per_word: float = 1.0,
    early: float | None = None,
    usage: bool = True,
    per_event: bool = False,
) -> Any:
    """A well-behaved answer: as many tokens as asked for (a share `early` of them unless the length is forced)."""
    body = request.json
    n = body.get("max_tokens", 5)
    if early is not None and not body.get("ignore_eos"):
        n = max(1, int(n * early))
    continuous = per_event and (body.get("stream_options") or {}).get("continuous_usage_stats")
    yield from (CU("a ", k + 1) if continuous else C("a ") for k in range(n))
    yield FIN("length" if n == body.get("max_tokens") else "stop")
    if usage and "stream_options" in body:
        yield U(overhead + round(per_word * words_of(request)), n)
    yield DONE


def posts(answer: Callable[[Request], Any]) -> Handler:
    return lambda request: answer(request) if request.method == "POST" else None


def run(
    handler: Handler | None,
    *,
    url: str | None = None,
    workload: PlainWorkload | None = None,
    model: str = "",
    endpoint: str | None = None,
    access: Access | None = None,
    suffix: str = "",
    tls: ssl.SSLContext | None = None,
    timeouts: Timeouts | None = None,
    **options: Any,
) -> tuple[Prepared | PreflightError, list[Request]]:
    """One preflight against a scripted server, with the real client; the error is returned instead of raised."""

    async def main() -> tuple[Prepared | PreflightError, list[Request]]:
        async with ScriptedServer(handler or posts(good), ssl=tls) as server:
            target = resolve((url or server.url) + suffix, endpoint)
            async with open_client(
                access or Access(), 4, tls=target.url.startswith("https"), connect_timeout_s=3
            ) as client:

                def make_sender(wanted: RequestOptions, dialect: Dialect) -> HttpxSender:
                    limits = timeouts or Timeouts(3, 3, 3, 9)
                    return HttpxSender(client, target.url, dialect, wanted, zero_ns=0, timeouts=limits)

                wanted = RequestOptions(model, **{"force_length": True, **options})
                try:
                    result: Prepared | PreflightError = await preflight(
                        target,
                        DIALECTS[target.endpoint],
                        wanted,
                        workload or plain_workload(64, 16),
                        client=client,
                        make_sender=make_sender,
                        nonce="n",
                    )
                except PreflightError as error:
                    result = error
            assert server.errors == []
            return result, list(server.requests)

    return anyio.run(main)


def ready(*args: Any, **kwargs: Any) -> Prepared:
    result, _ = run(*args, **kwargs)
    assert isinstance(result, Prepared), str(result)
    return result


def refused(*args: Any, **kwargs: Any) -> PreflightError:
    result, _ = run(*args, **kwargs)
    assert isinstance(result, PreflightError), result
    assert result.exit_code == Exit.TARGET
    assert result.remedy
    assert "\n" not in result.message
    return result
