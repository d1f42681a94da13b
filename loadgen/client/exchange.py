"""One request: spec → record. It never raises for a failed request; a failed request is a record.

The order of things, once per request:
    1. the body is built and the timers start;   2. the transport stamps the first write (`sent_ns`) and every read;
    3. each read goes to the `Tally` with its stamp;   4. `[DONE]`, the end of the body, a failure or a timer ends it;
    5. the record is closed before the next await.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import anyio
import httpcore
import httpx
import orjson

from ..errors import Failure, FailureKind
from ..records import InputTokens, Outcome, OutputTokens, Record, RequestSpec, TimeoutKind
from .decode import decoder
from .dialects.base import Dialect, RequestOptions, asked_output
from .kernel import KernelTransport
from .probe import PROBE, Probe
from .secrets import scrub, secrets_of
from .tally import Tally

EXCERPT_BYTES = 2048
ERROR_BODY_BYTES = 65536
MAX_EVENT_BYTES = 8 << 20
MAX_WHOLE_BYTES = 64 << 20
# After [DONE] the last chunk is waited for this long, so that the connection can be used again.
LINGER_S = 0.25
PROMPT_WRITE_NS = 20_000  # a write that took no longer sent its first byte at `sent_ns`
CLIENT_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOMEM, errno.ENOBUFS, errno.EACCES}


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Four separate limits in seconds, each its own outcome."""

    connect: float = 10.0
    first_token: float = 600.0
    idle: float = 60.0
    total: float = 3600.0


class _Live:
    """A request in flight: its timers and what ends it."""

    __slots__ = ("idle_set", "limits", "offset", "phase", "scope", "start", "why")

    def __init__(self, limits: Timeouts) -> None:
        self.limits = limits
        self.start = anyio.current_time()
        self.offset = self.start - time.monotonic()  # the transport calls from outside of any task, where anyio has no time
        self.phase: TimeoutKind = "connect"
        self.scope = anyio.CancelScope(deadline=self.start + min(limits.connect, limits.total))
        self.idle_set = 0.0
        self.why: Literal["cut", "cancelled"] | None = None

    def now(self) -> float:
        return time.monotonic() + self.offset

    def sent(self) -> None:
        self._arm("first_token", self.limits.first_token)

    def token(self) -> None:
        # Moving a timer for each token costs more than the token: it is set 1/16 late and moved when that is used up.
        now = self.now()
        if self.phase == "first_token" or now - self.idle_set > self.limits.idle / 16:
            self.idle_set = now
            self._arm("idle", self.limits.idle * 17 / 16)

    def _arm(self, phase: TimeoutKind, limit: float) -> None:
        end = self.start + self.limits.total
        deadline = self.now() + limit
        self.phase = phase if deadline < end else "total"
        self.scope.deadline = min(deadline, end)


class HttpxSender:
    """`Sender` over an httpx client. `zero_ns` is the run's start on CLOCK_MONOTONIC: records are relative to it."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        dialect: Dialect,
        options: RequestOptions,
        *,
        zero_ns: int,
        timeouts: Timeouts | None = None,
        max_event_bytes: int = MAX_EVENT_BYTES,
        tally: type[Tally] = Tally,
    ) -> None:
        self._client = client
        self._url = httpx.URL(url)
        self._dialect = dialect
        self._options = options
        self._zero = zero_ns
        self._timeouts = timeouts or Timeouts()
        self._max_event_bytes = max_event_bytes
        self._tally = tally
        self._live: set[_Live] = set()
        self._secrets = secrets_of(client.headers, url, options.extra_body)
        # The user's own headers win; */* is what httpx itself would say.
        self._theirs = {name for name, value in client.headers.items() if value != "*/*"}

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        for live in self._live:
            live.why = outcome
            live.scope.cancel()

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        fields = self._dialect.body(spec.prompt, self._options)
        body = orjson.dumps(fields)
        end = await self._attempt(spec, body, scheduled_ns)
        if end.stale:  # a kept-alive connection the server had already closed: nothing was answered, so send it again
            end = await self._attempt(spec, body, scheduled_ns)
        end.asked = asked_output(fields)
        return scrub(self._record(spec, scheduled_ns, end), self._secrets)

    async def _attempt(self, spec: RequestSpec, body: bytes, scheduled_ns: int) -> _End:
        live = _Live(self._timeouts)
        tally = self._tally(self._dialect, 0, self._max_event_bytes, EXCERPT_BYTES)

        def sent() -> None:
            tally.sent_ns = probe.sent_ns or 0
            live.sent()

        probe = Probe(sent)
        end = _End(probe, tally)
        token = PROBE.set(probe)
        self._live.add(live)
        try:
            with live.scope:
                await self._exchange(spec, body, scheduled_ns, live, end)
        except (httpx.HTTPError, httpx.StreamError, httpcore.ProtocolError, OSError) as error:
            end.broke(error)
        finally:
            self._live.discard(live)
            PROBE.reset(token)
        if live.scope.cancelled_caught and not end.settled:
            end.done_ns = time.monotonic_ns()
            if live.why:
                end.outcome = live.why
            else:
                end.outcome, end.timeout = "timeout", live.phase
        return end

    async def _exchange(self, spec: RequestSpec, body: bytes, scheduled_ns: int, live: _Live, end: _End) -> None:
        own = {"content-type": "application/json", "accept": "text/event-stream", "x-request-id": spec.id}
        request = self._client.build_request(
            "POST",
            self._url,
            content=body,
            headers={name: value for name, value in own.items() if name not in self._theirs},
            extensions={
                "probe": end.probe,
                "tally": end.tally,
                "on_token": live.token,
                "send_at_ns": scheduled_ns,
                "timeout": self._client.timeout.as_dict(),
            },
        )
        early_s = (scheduled_ns - time.monotonic_ns()) / 1e9
        if early_s > 0 and not isinstance(self._client._transport, KernelTransport):
            await anyio.sleep(early_s)
        response = await self._client.send(request, stream=True)
        try:
            end.status = response.status_code
            kind = response.headers.get("content-type", "").split(";")[0].strip().lower()
            if response.status_code != 200:
                await self._refused(response, end)
            elif kind in ("text/event-stream", ""):
                await self._stream(response, live, end)
            elif kind == "application/json":
                await self._whole(response, end)
            else:
                excerpt = await _read_some(response, EXCERPT_BYTES)
                hint = "; this looks like Ollama's own API: use its /v1 address" if "ndjson" in kind else ""
                end.fail("content_type", f"the answer is {kind}, not an event stream{hint}", excerpt=excerpt)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()

    async def _stream(self, response: httpx.Response, live: _Live, end: _End) -> None:
        probe, tally = end.probe, end.tally
        answer = response.extensions.get("answer")
        if answer is not None:  # our transport has fed the tally as the bytes came, without waking this task
            await answer.end
            tally.close(probe.last_read_ns, ended_cleanly=True)
            return end.settle(probe.last_read_ns)
        tally.sent_ns = probe.sent_ns or 0
        decode = decoder(response.headers.get("content-encoding", ""))
        shared_reads = response.http_version == "HTTP/2"  # another task may have read for us: stamp here instead
        seen = 0
        chunks = response.aiter_raw()
        async for chunk in chunks:
            if shared_reads:
                probe.previous_read_ns, probe.last_read_ns = probe.last_read_ns, time.monotonic_ns()
            tally.feed(decode(chunk) if decode else chunk, probe.last_read_ns, probe.previous_read_ns)
            if tally.output_events > seen:
                seen = tally.output_events
                live.token()
            if tally.finished or tally.failed:
                end.settle(probe.last_read_ns)
                with anyio.move_on_after(LINGER_S):
                    async for _ in chunks:
                        pass
                return None
        tally.close(probe.last_read_ns, ended_cleanly=True)
        return end.settle(probe.last_read_ns)

    async def _whole(self, response: httpx.Response, end: _End) -> None:
        """A whole JSON completion though a stream was asked for: its times are those of a non-streamed answer."""
        payload = await _read_bytes(response, MAX_WHOLE_BYTES)
        end.whole = payload
        end.settle(end.probe.last_read_ns)

    async def _refused(self, response: httpx.Response, end: _End) -> None:
        payload = await _read_bytes(response, ERROR_BODY_BYTES)
        text = payload.decode("utf-8", "replace")
        if 300 <= response.status_code < 400:
            where = response.headers.get("location", "nowhere")
            end.fail("redirect", f"redirected to {where}, which is not followed", response.status_code, text)
        else:
            end.fail("http", error_message(payload) or response.reason_phrase, response.status_code, text)

    def _record(self, spec: RequestSpec, scheduled_ns: int, end: _End) -> Record:
        probe = end.probe

        def run_ns(stamp: int | None) -> int | None:
            return None if stamp is None else stamp - self._zero

        asked = end.asked
        usage_asked = self._options.usage
        if end.whole is not None:
            result = end.tally.whole(end.whole, end.done_ns, asked, usage_asked=usage_asked)
        else:
            end.tally.close(end.done_ns, ended_cleanly=False)
            result = end.tally.result(asked, usage_asked=usage_asked)
        outcome: Outcome = end.outcome or result.outcome
        failure = end.failure or (result.error if outcome not in ("cut", "cancelled", "ok") else None)
        if end.reset is not None and outcome in ("incomplete", "empty"):
            outcome, failure = "incomplete", end.reset
        done_ns = result.done_ns if end.outcome is None and result.done_ns else end.done_ns
        return Record(
            id=spec.id,
            step=spec.step,
            concurrency=spec.concurrency,
            phase=spec.phase,
            worker=spec.worker,
            scheduled_ns=scheduled_ns - self._zero,
            sent_ns=run_ns(probe.sent_ns),
            connect=probe.connect,
            first_byte_ns=run_ns(probe.first_read_ns),
            first_token_ns=run_ns(result.first_token_ns),
            first_content_ns=run_ns(result.first_content_ns),
            last_token_ns=run_ns(result.last_token_ns),
            done_ns=done_ns - self._zero,
            input_tokens=InputTokens(
                spec.prompt.input_tokens, spec.prompt.local_tokens, result.input_server, result.input_cached
            ),
            output_tokens=OutputTokens(asked, result.output_count, result.output_source),
            first_event_tokens=result.first_event_tokens,
            events=result.events,
            outcome=outcome,
            flags=result.flags,
            finish_reason=result.finish_reason,
            status=end.status,
            error=failure,
            timeout=end.timeout,
            excerpt=result.excerpt if outcome not in ("ok", "cut", "cancelled") else None,
            server_id=result.server_id,
            peer=probe.peer,
            sent_bound_us=-(-probe.write_ns // 1000) if probe.write_ns > PROMPT_WRITE_NS else None,
        )


class _End:
    """How a request ended, filled in as it happens."""

    def __init__(self, probe: Probe, tally: Tally) -> None:
        self.probe = probe
        self.tally = tally
        self.status: int | None = None
        self.outcome: Outcome | None = None  # None: the tally says
        self.failure: Failure | None = None
        self.timeout: TimeoutKind | None = None
        self.whole: bytes | None = None
        self.done_ns = 0
        self.settled = False
        self.stale = False
        self.asked: int | None = None  # output tokens, by the body as it was sent
        self.reset: Failure | None = None  # how a stream broke off; of interest where the tally calls it incomplete

    def settle(self, stamp_ns: int) -> None:
        self.settled = True
        self.done_ns = stamp_ns or time.monotonic_ns()

    def fail(
        self,
        kind: FailureKind,
        message: str,
        code: int | None = None,
        excerpt: str | None = None,
        outcome: Outcome = "error",
    ) -> None:
        self.failure = Failure(kind, message, code, excerpt[:EXCERPT_BYTES] if excerpt else None)
        self.outcome = outcome
        self.settle(time.monotonic_ns())

    def broke(self, error: BaseException) -> None:
        """The connection failed: before an answer it is an error, within a stream the answer is incomplete."""
        if self.settled:
            return  # after [DONE] or an error event: what the socket does then is of no interest
        kind = failure_kind(error)
        message = describe(error)
        if isinstance(error, httpx.ConnectTimeout):
            self.outcome, self.timeout = "timeout", "connect"
            self.settle(time.monotonic_ns())
        elif kind == "client":
            self.fail(kind, message, outcome="client_error")
        elif self.status == 200 and kind in ("reset", "protocol"):
            # A stream that had said that it ended did end, whatever the connection does after that.
            self.tally.close(time.monotonic_ns(), ended_cleanly=False)
            self.settle(time.monotonic_ns())
            self.reset = Failure("reset", message)
        else:
            self.stale = (
                self.probe.connect is None and self.probe.first_read_ns is None and kind in ("reset", "protocol")
            )
            self.fail(kind, message)


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it, groups opened."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if isinstance(one, BaseExceptionGroup):
            todo.extend(one.exceptions)
        todo += [one.__cause__, one.__context__]


def failure_kind(error: BaseException) -> FailureKind:
    """Which kind of fault an exception of the transport is."""
    for one in causes(error):
        if isinstance(one, socket.gaierror):
            return "dns"
        if isinstance(one, ssl.SSLError):
            return "tls"
        if isinstance(one, OSError) and one.errno in CLIENT_ERRNOS:
            return "client"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.ProxyError):
        return "connect"
    if isinstance(error, httpx.ProtocolError | httpcore.ProtocolError | httpx.DecodingError):
        return "protocol"
    return "reset"


def describe(error: BaseException) -> str:
    """The exception's own name and words; the system's where the library has none."""
    words = str(error)
    for one in causes(error):
        if isinstance(one, OSError) and one.strerror:
            words = one.strerror if not words or "All connection attempts failed" in words else words
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def error_message(payload: bytes) -> str | None:
    """The server's own words in a JSON error body of any of the usual shapes; None where there are none."""
    try:
        value: Any = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return None
    for key in ("error", "message", "detail"):
        if isinstance(value, dict) and value.get(key):
            inner = value[key]
            if isinstance(inner, dict) and isinstance(inner.get("message"), str):
                return str(inner["message"])
            return inner if isinstance(inner, str) else orjson.dumps(inner).decode()
    return None


async def _read_bytes(response: httpx.Response, limit: int) -> bytes:
    """The body up to `limit` bytes; a body that breaks off is what has come of it."""
    data = bytearray()
    decode = decoder(response.headers.get("content-encoding", ""))
    async for chunk in response.aiter_raw():
        data += decode(chunk) if decode else chunk
        if len(data) >= limit:
            break
    return bytes(data[:limit])


async def _read_some(response: httpx.Response, limit: int) -> str:
    return (await _read_bytes(response, limit)).decode("utf-8", "replace")
