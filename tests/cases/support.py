"""What the case tables share: one exchange or one step over any transport, whole commands, and a server that behaves.

The tables name no transport: they get a `make_sender` (see conftest.py), which is parametrised by the transport's name.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import anyio

from loadgen.analysis import summarise
from loadgen.cli.main import main as loadgen_main
from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.driver import StepPlan, run_step
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.retry import NO_RETRY, Retry
from loadgen.client.sender import Sender
from loadgen.client.transport import Access, open_client
from loadgen.errors import Exit
from loadgen.log.columns import columns
from loadgen.log.store import open_run
from loadgen.records import Prompt, Record, RequestSpec
from loadgen.report.facts import RunFacts
from loadgen.report.jsonout import step_object
from loadgen.report.text import Mark, render
from loadgen.results import Observation, Slo, StepSummary
from loadgen.simulator.scripted import CU, DONE, FIN, Action, C, J, Request, ScriptedServer, T, models_reply
from tests.cli.command import client_bound

TRANSPORTS = tuple(dict.fromkeys(("httpx", Access().transport)))  # ours is not there on every system
PROMPT = Prompt("hi")
MakeSender = Callable[..., AbstractAsyncContextManager[Sender]]
Handler = Callable[[Request], Any]


@asynccontextmanager
async def open_sender(
    transport: str,
    url: str,
    *,
    endpoint: str = "chat",
    options: RequestOptions | None = None,
    timeouts: Timeouts | None = None,
    connections: int = 4,
    access: Access | None = None,
    **limits: Any,
) -> AsyncIterator[Sender]:
    """A sender to the server at `url` (scheme, host and port); stamps of its records have their zero at the boot."""
    access = replace(access or Access(), httpx_pool=transport == "httpx")
    dialect = DIALECTS[endpoint]
    async with open_client(access, connections, tls=url.startswith("https")) as client:
        yield HttpxSender(
            client,
            f"{url}/v1{dialect.path}",
            dialect,
            options or RequestOptions("m"),
            zero_ns=0,
            timeouts=timeouts or Timeouts(10, 20, 20, 60),
            **limits,
        )


def spec(number: int = 0, prompt: Prompt = PROMPT) -> RequestSpec:
    return RequestSpec(f"s1-{number:06d}", prompt, step=1, concurrency=1, phase="measured")


def send(
    make_sender: MakeSender,
    script: Any,
    *,
    prompt: Prompt = PROMPT,
    sends: int = 1,
    server: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Record]:
    """`sends` requests one after the other against a scripted server; → their records."""

    async def main() -> list[Record]:
        async with ScriptedServer(script, **(server or {})) as fake, make_sender(fake.url, **options) as sender:
            records = [await sender.send(spec(n, prompt), time.monotonic_ns()) for n in range(sends)]
        assert fake.errors == []
        return records

    return anyio.run(main)


def send_one(make_sender: MakeSender, script: Any, **options: Any) -> Record:
    [record] = send(make_sender, script, **options)
    return record


def step(
    make_sender: MakeSender,
    handler: Handler,
    concurrency: int,
    requests: int,
    *,
    prompt: Prompt = PROMPT,
    warmup: int | None = None,
    max_error_rate: float = 1.0,
    retry: Retry = NO_RETRY,
    server: Mapping[str, Any] | None = None,
    **options: Any,
) -> tuple[list[Record], Observation, ScriptedServer]:
    """One closed-loop step of so many measured requests."""
    records: list[Record] = []
    plan = StepPlan(
        step=1,
        concurrency=concurrency,
        enough=lambda progress: False,
        warmup=concurrency if warmup is None else warmup,
        requests=requests,
        max_error_rate=max_error_rate,
        drain_s=5.0,
        retry=retry,
    )

    async def main() -> tuple[Observation, ScriptedServer]:
        async with (
            ScriptedServer(handler, **(server or {})) as fake,
            make_sender(fake.url, connections=concurrency, **options) as sender,
        ):
            seen = await run_step(
                sender, repeat(prompt), plan, on_record=records.append, clock=time.monotonic_ns, zero_ns=0
            )
        assert fake.errors == []
        return seen, fake

    seen, fake = anyio.run(main)
    return records, seen, fake


def ms(record: Record, stamp: str) -> float | None:
    """A stamp of the record in ms since its request was sent."""
    value = getattr(record, stamp)
    return None if value is None or record.sent_ns is None else (value - record.sent_ns) / 1e6


def near(seen: float | None, expected: float | None, early: float = 15.0, late: float = 150.0) -> bool:
    """Is a time (ms) the expected one, on a machine that may be busy? None is only None."""
    if seen is None or expected is None:
        return seen is expected
    return expected - early <= seen <= expected + late


def some(make_sender: MakeSender, script: Any, n: int = 3, **options: Any) -> list[Record]:
    return send(make_sender, script, sends=n, **options)


def summary_of(
    records: Sequence[Record], slo: Slo | None = None, observation: Observation | None = None
) -> StepSummary:
    return summarise(columns(records), 1, slo or Slo(), observation)


def texts(summary: StepSummary) -> tuple[str, dict[str, Any]]:
    """What the report says of a step, as text on one line and as JSON."""
    mark = Mark("measured")
    text = render(RunFacts("run"), [summary], {summary.step: mark}, details=True)
    return " ".join(text.split()), step_object(summary, mark)


# --- servers --------------------------------------------------------------------------------------------------------


def words_of(request: Request) -> list[str]:
    """The words of the prompt."""
    body = request.json
    text = body["prompt"] if "prompt" in body else "\n".join(m["content"] for m in body["messages"])
    return str(text).split()


def answer(
    request: Request,
    *,
    overhead: int = 8,
    cost: Callable[[str], float] = lambda word: 1.0,
    early: float = 1.0,
    obeys: Sequence[str] = ("ignore_eos", "min_tokens"),
    cached: int | None = None,
    most: int = 1_000_000,
) -> Iterator[Action]:
    """As a well-behaved engine answers: as many tokens as the body asks for, a share `early` of them unless it
    holds one of the fields that the engine `obeys`; usage and per-event usage as asked. `cost` is what a word costs in
    tokens."""
    body = request.json
    yield T(5)
    asked = body.get("max_tokens") or body.get("max_completion_tokens") or 5
    forced = any(body.get(name) for name in obeys)
    n = min(most, asked if forced else max(1, round(asked * early)))
    options = body.get("stream_options") or {}
    continuous = options.get("continuous_usage_stats")
    yield from (CU("a ", k + 1) if continuous else C("a ") for k in range(n))
    yield FIN("length" if n == asked else "stop")
    if options.get("include_usage"):
        prompt = overhead + round(sum(map(cost, words_of(request))))
        usage: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": n, "total_tokens": prompt + n}
        if cached is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield J({"id": "r", "choices": [], "usage": usage})
    yield DONE


def posts(reply: Callable[[Request], Any], models: Sequence[str] = ("m",), **fields: Any) -> Handler:
    """A handler that answers POSTs so, and GETs as a server with these models."""

    def handler(request: Request) -> Any:
        if request.method == "POST":
            return reply(request)
        return models_reply(models, **fields) if request.path.split("?")[0].endswith("/v1/models") else None

    return handler


@asynccontextmanager
async def raw_server(parts: Sequence[bytes | float]) -> AsyncIterator[str]:
    """A server that answers each request with these bytes, framing and all, waiting so many ms where a number stands,
    and then closes; → its URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(int(v) for n, _, v in (h.partition(b":") for h in head.split(b"\r\n")) if n.lower() == LENGTH)
            await reader.readexactly(size)
            for part in parts:
                if isinstance(part, bytes):
                    writer.write(part)
                    await writer.drain()
                else:
                    await asyncio.sleep(part / 1e3)
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
    finally:
        server.close()


LENGTH = b"content-length"


def send_raw(make_sender: MakeSender, parts: Sequence[bytes | float], **options: Any) -> Record:
    """One request against a `raw_server`."""

    async def main() -> Record:
        async with raw_server(parts) as url, make_sender(url, **options) as sender:
            return await sender.send(spec(), time.monotonic_ns())

    return anyio.run(main)


# --- commands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """What a command came to. `folder` is the one run folder that it left, if any."""

    code: int
    out: str
    err: str
    output: Path

    @property
    def folder(self) -> Path:
        [folder] = [path for path in self.output.iterdir() if path.is_dir()]
        return folder

    @property
    def said(self) -> str:
        """All that went to the screen, on one line."""
        return " ".join(f"{self.out} {self.err}".split())

    @property
    def manifest(self) -> dict[str, Any]:
        manifest: dict[str, Any] = json.loads((self.folder / "manifest.json").read_text())
        return manifest

    def records(self, *phases: str) -> list[Record]:
        return [r for r in open_run(self.folder).records() if not phases or r.phase in phases]

    def report(self) -> dict[str, Any]:
        """`loadgen report --json` of the run, as strict JSON."""
        again = loadgen("report", str(self.folder), "--json")
        assert again.code == 0, again.err
        return strict_json(again.out)


def loadgen(*arguments: str, output: Path = Path()) -> Ran:
    """A command line, run in this process. Commands that take one get `output` as their folder of runs."""
    given = [*arguments, "-o", str(output)] if arguments[0] in ("run", "sweep") else list(arguments)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    code = 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            loadgen_main(given)
        except SystemExit as stop:
            code = int(stop.code or 0)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    ran = Ran(code, *texts, output)
    assert "Traceback" not in ran.err, ran.err
    return ran


def went_well(ran: Ran) -> None:
    """The command ran to its end. Server and client share a machine here, so a run may find that it was the limit."""
    assert ran.code in (Exit.DONE, Exit.UNDECIDED), ran.err
    if ran.code == Exit.UNDECIDED:
        assert any(step["client_limit"] for step in ran.report()["steps"])


def disturbed(ran: Ran) -> bool:
    """Did the run find that this machine, which server and client share, was too busy to say anything of the server, if
    only at the first try of a level?"""
    levels = ran.manifest.get("levels") or ()
    return client_bound(ran.folder) or any(level["verdict"] == "invalid" for level in levels)


def strict_json(text: str) -> Any:
    """JSON without NaN and infinities."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def subprocess_arguments(*arguments: str) -> list[str]:
    """The command line of a loadgen of its own."""
    return [sys.executable, "-m", "loadgen", *arguments]


SECRET = "s3cret-Zq8Lk29x"
BASIC = base64.b64encode(f"user:{SECRET}".encode()).decode()


def everything(ran: subprocess.CompletedProcess[bytes], folder: Path) -> bytes:
    """Every byte on the screen and in the runs' folder, names included."""
    parts = [ran.stdout, ran.stderr]
    for path in sorted(folder.rglob("*")):
        parts += [str(path).encode(), path.read_bytes() if path.is_file() else b""]
    return b"\n".join(parts)
