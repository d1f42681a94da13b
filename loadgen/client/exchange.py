"""One request: spec → record. It never raises for a failed request; a failed request is a record.

The order of things, once per request:
    1. the body is built and the timers start;   2. the transport stamps the first write (`sent_ns`) and every read;
    3. each read goes to the `Tally` with its stamp;   4. `[DONE]`, the end of the body, a failure or a timer ends it;
    5. the record is closed before the next await.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal, NamedTuple

import anyio
import httpx
import orjson

from ..errors import Failure, FailureKind
from ..records import InputTokens, Outcome, OutputTokens, Record, RequestSpec, TimeoutKind
from ..workload.tokenizer import LocalTokenizer
from .connection import GRACE_S
from .counting import TEXT_BYTES, count_answer
from .decode import decoder
from .dialects.base import Dialect, RequestOptions, asked_choices, asked_output
from .failures import (
    describe,
    error_message,
    failure_kind,
    forget,
    reason_phrase,
    redirected,
    transport_errors,
    untraced,
)
from .kernel import KernelTransport
from .limits import Live, Timeouts
from .probe import PROBE, Probe, nothing
from .retry import retry_after_s
from .secrets import scrub, secrets_of
from .tally import Tally

__all__ = ["HttpxSender", "Timeouts"]

EXCERPT_BYTES = 2048
ERROR_BODY_BYTES = 65536
MAX_EVENT_BYTES = 8 << 20
MAX_WHOLE_BYTES = 64 << 20
ANSWER_BYTES = 8 << 20  # of an answer that goes into the next turn
REFUSAL_S = 5.0  # how long the body of a refusal is waited for
# The end of a kept connection crosses the request on its way at most a round trip after this was sent, plus what either
# side takes to notice. Whoever ends it later had the request.
CROSSED_NS = 50_000_000
PROMPT_WRITE_NS = 20_000  # a write that took no longer sent its first byte at `sent_ns`


class HttpxSender:
    """`Sender` over an httpx client. `zero_ns` is the run's start on CLOCK_MONOTONIC: records are relative to it. `run`
    goes before each request's id on the wire: servers take that for their own id, which must not come twice.
    `tokenizer` counts the answers whose server does not."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        url: str,
        dialect: Dialect,
        options: RequestOptions,
        *,
        zero_ns: int,
        timeouts: Timeouts | None = None,
        run: str = "",
        max_event_bytes: int = MAX_EVENT_BYTES,
        tally: type[Tally] = Tally,
        tokenizer: LocalTokenizer | None = None,
    ) -> None:
        self._client = client
        self._url = httpx.URL(url)
        self._dialect = dialect
        self._options = options
        self._zero = zero_ns
        self._run = f"{run}-" if run else ""
        self._timeouts = timeouts or Timeouts()
        if not options.stream:  # the whole answer is what is waited for
            self._timeouts = replace(self._timeouts, first_token=math.inf)
        self._max_event_bytes = max_event_bytes
        self._tally = tally
        self._tokenizer = tokenizer
        self._live: set[Live] = set()
        self._ours = client._transport if isinstance(client._transport, KernelTransport) else None
        self._head: bytes | None = None
        self._id_line = True
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
        asked, choices = asked_output(fields), asked_choices(fields)
        events = None if asked is None else asked * choices
        end = await self._attempt(spec, body, scheduled_ns, events)
        if end.stale:  # the server closed a kept connection as the request left: it was not seen, so send it again
            end = await self._attempt(spec, body, scheduled_ns, events)
        end.asked, end.choices = asked, choices
        model = fields.get("model")
        end.model = model if isinstance(model, str) else None
        record = scrub(self._record(spec, scheduled_ns, end), self._secrets)
        then = spec.prompt.then
        if then is not None and then.keeps and record.outcome == "ok":
            then.heard(end.tally.answer())
        if self._tokenizer is not None and record.output_tokens.source not in ("usage", "token_ids"):
            texts = end.tally.texts()
            if texts:
                record = await count_answer(record, texts, self._tokenizer)
        return record

    async def _attempt(self, spec: RequestSpec, body: bytes, scheduled_ns: int, asked_events: int | None) -> _End:
        live = Live(self._timeouts)
        then = spec.prompt.then
        text_bytes = ANSWER_BYTES if then is not None and then.keeps else 0 if self._tokenizer is None else TEXT_BYTES
        tally = self._tally(self._dialect, 0, self._max_event_bytes, EXCERPT_BYTES, text_bytes)
        tally.asked_events = asked_events

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
        except transport_errors() as error:
            end.broke(error)
            untraced(error)
        finally:
            probe.on_sent = nothing  # or probe and function would keep each other, as nothing collects cycles in a step
            live.close()
            self._live.discard(live)
            PROBE.reset(token)
        if live.scope.cancelled_caught and not end.settled:
            end.done_ns = time.monotonic_ns()
            if live.why:
                end.outcome = live.why
            else:
                end.outcome, end.timeout = "timeout", live.phase
        return end

    async def _exchange(self, spec: RequestSpec, body: bytes, scheduled_ns: int, live: Live, end: _End) -> None:
        if self._ours is not None:
            await self._through_ours(self._ours, spec, body, scheduled_ns, live, end)
        else:
            await self._through_httpx(spec, body, scheduled_ns, live, end)

    async def _through_ours(
        self, ours: KernelTransport, spec: RequestSpec, body: bytes, scheduled_ns: int, live: Live, end: _End
    ) -> None:
        """Our transport feeds the tally as the bytes come: this task wakes for the headers and for the end."""
        wire = self._wire(self._run + spec.id, body)
        answer = await ours.exchange(self._url, wire, end.probe, end.tally, live.token, scheduled_ns)
        try:
            status, fields = answer.head.result()
            reply = _Reply.of(status, fields, self._dialect.media)
            end.status = status
            if reply.streamed or reply.whole:
                await answer.end
            else:
                with anyio.move_on_after(REFUSAL_S):  # what it is, is known; its body is for people to read
                    await answer.end
            if reply.streamed:
                end.tally.close(end.probe.last_read_ns, ended_cleanly=True)
                end.settle(end.probe.last_read_ns)
            else:
                end.unstreamed(reply, b"".join(answer.body), self._url)
        finally:
            ours.abandon(answer)

    async def _through_httpx(self, spec: RequestSpec, body: bytes, scheduled_ns: int, live: Live, end: _End) -> None:
        early_s = (scheduled_ns - time.monotonic_ns()) / 1e9
        if early_s > 0:
            await anyio.sleep(early_s)
        request = self._client.build_request(
            "POST", self._url, content=body, headers=self._own_headers(self._run + spec.id)
        )
        response = await self._client.send(request, stream=True)
        try:
            if end.probe.first_read_ns is None and response.http_version != "HTTP/2":
                raise httpx.RemoteProtocolError("the connection held an answer that nobody asked for")
            reply = _Reply.of(response.status_code, response.headers.raw, self._dialect.media)
            end.status = reply.status
            if reply.streamed:
                await self._stream(response, reply, live, end)
                return
            payload = bytearray()
            with anyio.move_on_after(math.inf if reply.whole else REFUSAL_S):
                async for chunk in response.aiter_raw():
                    payload += chunk
                    if len(payload) > (MAX_WHOLE_BYTES if reply.whole else ERROR_BODY_BYTES):
                        break
            end.unstreamed(reply, bytes(payload), self._url)
        finally:
            with anyio.CancelScope(shield=True):
                await response.aclose()
            forget(response)

    async def _stream(self, response: httpx.Response, reply: _Reply, live: Live, end: _End) -> None:
        probe, tally = end.probe, end.tally
        tally.sent_ns = probe.sent_ns or 0
        decode = decoder(reply.encoding)
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
                with anyio.move_on_after(GRACE_S):
                    async for _ in chunks:
                        pass
                return
        tally.close(probe.last_read_ns, ended_cleanly=True)
        end.settle(probe.last_read_ns)

    def _own_headers(self, request_id: str) -> dict[str, str]:
        accept = self._dialect.media if self._options.stream else "application/json"
        own = {"content-type": "application/json", "accept": accept, "x-request-id": request_id}
        return {name: value for name, value in own.items() if name not in self._theirs}

    def _wire(self, request_id: str, body: bytes) -> bytes:
        """A request as bytes. All but its id and length is the same for every request, and httpx says it once."""
        if self._head is None:
            request = self._client.build_request("POST", self._url, headers=self._own_headers("?"))
            varying = (b"content-length", b"x-request-id" if "x-request-id" not in self._theirs else b"")
            fields = [pair for pair in request.headers.raw if pair[0].lower() not in varying]
            lines = b"".join(b"%s: %s\r\n" % pair for pair in fields)
            self._head = b"POST %s HTTP/1.1\r\n%s" % (self._url.raw_path, lines)
            if "x-request-id" not in self._theirs:
                self._head += b"x-request-id: "
            self._id_line = "x-request-id" not in self._theirs
        identity = request_id.encode("ascii", "replace") + b"\r\n" if self._id_line else b""
        return b"%s%scontent-length: %d\r\n\r\n%s" % (self._head, identity, len(body), body)

    def _record(self, spec: RequestSpec, scheduled_ns: int, end: _End) -> Record:
        probe = end.probe

        def run_ns(stamp: int | None) -> int | None:
            return None if stamp is None else stamp - self._zero

        asked = None if end.asked is None else end.asked * end.choices
        usage_asked = self._options.usage
        if end.whole is not None:
            result = end.tally.whole(end.whole, end.done_ns, end.asked, usage_asked=usage_asked)
        else:
            end.tally.close(end.done_ns, ended_cleanly=False)
            result = end.tally.result(end.asked, usage_asked=usage_asked)
        outcome: Outcome = end.outcome or result.outcome
        flags = result.flags
        if outcome in ("cut", "cancelled"):  # what was still to come is no fault of the server's
            flags = tuple(flag for flag in flags if flag not in ("usage_missing", "short_output"))
        failure = end.failure or (result.error if outcome in ("incomplete", "empty", "error") else None)
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
            output_tokens=OutputTokens(asked, result.output_count, result.output_source, end.choices),
            first_event_tokens=result.first_event_tokens,
            events=result.events,
            outcome=outcome,
            flags=flags,
            finish_reason=result.finish_reason,
            status=end.status,
            error=failure,
            timeout=end.timeout,
            excerpt=result.excerpt if outcome not in ("ok", "cut", "cancelled") else None,
            server_id=result.server_id,
            peer=probe.peer,
            sent_bound_us=-(-probe.write_ns // 1000) if probe.write_ns > PROMPT_WRITE_NS else None,
            model=end.model,
            source_id=spec.prompt.source_id,
            session=spec.prompt.session,
            turn=spec.prompt.turn,
            shared=spec.prompt.shared,
        )


class _Reply(NamedTuple):
    """What the head of an answer says of its body."""

    status: int
    kind: str  # the content type, without its parameters
    encoding: str
    location: str
    retry_after_s: float | None
    media: str  # the content type of a stream

    @classmethod
    def of(cls, status: int, fields: Iterable[tuple[bytes, bytes]], media: str) -> _Reply:
        known = {name.lower(): value.decode("latin-1") for name, value in fields}
        kind = known.get(b"content-type", "").split(";")[0].strip().lower()
        asked = known.get(b"retry-after")
        wait_s = None if asked is None else retry_after_s(asked, known.get(b"date", ""))
        return cls(status, kind, known.get(b"content-encoding", ""), known.get(b"location", ""), wait_s, media)

    @property
    def streamed(self) -> bool:
        return self.status == 200 and self.kind in (self.media, "")

    @property
    def whole(self) -> bool:
        return self.status == 200 and self.kind == "application/json"


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
        self.asked: int | None = None  # output tokens of each choice, by the body as it was sent
        self.choices = 1
        self.model: str | None = None  # that the body names
        self.reset: Failure | None = None  # how a stream broke off; of interest where the tally calls it incomplete

    def settle(self, stamp_ns: int) -> None:
        self.settled = True
        self.done_ns = stamp_ns or time.monotonic_ns()

    def unstreamed(self, reply: _Reply, payload: bytes, url: httpx.URL) -> None:
        """An answer that is no event stream: a whole completion (its times are those of a non-streamed answer), or a
        refusal. `payload` is the body as it came."""
        try:
            decode = decoder(reply.encoding)
            payload = decode(payload) if decode else payload
        except httpx.DecodingError:
            if reply.status == 200:
                raise
            payload = b""  # what a refusal is, is known; its words are not
        if reply.whole:
            self.whole = payload
            self.settle(self.probe.last_read_ns)
            return
        text = payload[:ERROR_BODY_BYTES].decode("utf-8", "replace")
        if reply.status == 200:
            what = "an event stream" if "event-stream" in reply.media else f"{reply.media}, as this API streams"
            hint = "; this looks like Ollama's own API: use its /v1 address, or --endpoint ollama_chat"
            hint = hint if "ndjson" in reply.kind else ""
            self.fail("content_type", f"the answer is {reply.kind}, not {what}{hint}", excerpt=text)
        elif 300 <= reply.status < 400 and (reply.location or reply.status != 304):
            self.fail("redirect", redirected(str(url), reply.location), reply.status, text)
        elif 200 <= reply.status < 300:
            why = f"{reason_phrase(reply.status)}: an answer has status 200"
            self.fail("http", why, reply.status, text)
        else:
            self.fail("http", error_message(payload) or reason_phrase(reply.status), reply.status, text)
            if self.failure is not None and reply.retry_after_s is not None:
                self.failure = replace(self.failure, retry_after_s=reply.retry_after_s)

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
        elif self.status == 200 and kind in ("reset", "protocol") and not isinstance(error, httpx.DecodingError):
            # A stream that had said that it ended did end, whatever the connection does after that.
            self.tally.close(time.monotonic_ns(), ended_cleanly=False)
            self.settle(time.monotonic_ns())
            self.reset = Failure("reset", message)
        else:
            kept = self.probe.connect is None and self.probe.first_read_ns is None
            self.fail(kind, message)
            broke_ns = self.probe.broke_ns or self.done_ns
            crossed = broke_ns - (self.probe.sent_ns or broke_ns) <= CROSSED_NS + 2 * self.probe.round_ns
            self.stale = kept and crossed and kind in ("reset", "protocol")
