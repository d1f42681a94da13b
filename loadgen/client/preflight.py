"""All that is settled before any load: what the server is, that it answers, and that asking has the effect it should.

In order: discovery; the model; does the shape fit the context; two small requests that teach what our text costs
(`workload.prompts.fit`); one request of the run's own shape. Each is a real streamed request with a record of its own.

Effect, not acceptance: a server may take `ignore_eos` and stop early, take `stream_options` and send no usage. What is
refused outright is left out for the whole run; what has no effect is said.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count

import anyio
import httpx

from ..records import Prompt, Record, RequestSpec, ServerFacts
from ..workload.plain import PlainWorkload
from ..workload.prompts import EVERY_WORD, OPENING_WORDS, Calibration, count_words, fit, make_text
from .dialects.base import Dialect, RequestOptions, asked_output
from .discovery import Discovery, choose_model, context_of, discover
from .remedies import Context, PreflightError, explain, explain_record, names_model, server_words, too_long
from .secrets import secrets_of
from .sender import Sender
from .target import Target, holds_secret, mask

MakeSender = Callable[[RequestOptions, Dialect], Sender]

RETRY_S = 0.5  # a single 429 or 503 does not make a server unusable
SHORT_OUTPUT = 4  # tokens; of the requests that only teach the cost of text
OUTPUT_CAP = 256  # a longer output need not be waited for where the context length is known
DEVIATION_LIMIT = 0.05  # of the input length; above it there is a warning
CONTINUOUS_KINDS = ("vllm", "sglang", "simulator")
BACKOFF_S = (0.25, 5.0)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run is started with. `options` are those that the server takes; `records` the requests of the preflight;
    `calibration` what a word costs, None where not learnt; `deviation` by how much the server's count of the last
    prompt differs from what was asked for (0.01 is 1 % more); `notes` are lines for the screen."""

    target: Target
    facts: ServerFacts
    options: RequestOptions
    records: tuple[Record, ...]
    calibration: Calibration | None = None
    deviation: float | None = None
    notes: tuple[str, ...] = ()


async def preflight(
    target: Target,
    dialect: Dialect,
    options: RequestOptions,
    workload: PlainWorkload,
    *,
    client: httpx.AsyncClient,
    make_sender: MakeSender,
    nonce: str,
    now_ns: Callable[[], int] = time.monotonic_ns,
    ids: Iterator[int] | None = None,
    proxy: str | None = None,
) -> Prepared:
    """Settle all that a run needs. `options.model` is empty when the model is to be found out; `options.force_length`
    and `options.usage` are tried and kept if the server takes them. `ids` numbers the records, for a caller that tries
    more than once; `proxy` is the one in between, for the words of an error. Raises PreflightError (a TargetError) with
    the records of the requests sent until then.
    """
    found = await discover(client, target)
    context = replace(_context(target, client, found, options), proxy=proxy)
    _check_listing(found, context, options)
    # TGI's own API names no model: the server has one.
    own = options.model or str(found.flags.get("model_id", "")) if target.endpoint == "generate_stream" else None
    model, notes, warnings = (own, (), ()) if own is not None else choose_model(found, options.model or None)
    length = context_of(found, model)
    check_context(length, workload.max_input_tokens, workload.max_output_tokens)
    wanted = replace(
        options,
        model=model,
        continuous_usage=options.continuous_usage or (options.usage and found.kind in CONTINUOUS_KINDS),
    )
    prober = _Prober(dialect, wanted, make_sender, replace(context, model=model), now_ns, ids or count(1))
    facts = ServerFacts(found.kind, found.version, model, length, flags=found.flags)
    learnt = _Learnt(list(notes), list(warnings))
    try:
        if workload.sized:
            await _calibrate(prober, learnt, length, nonce)
        prompt = shape_prompt(workload, learnt.calibration, length, nonce)
        record = await prober.ask(prompt)
    except PreflightError as error:
        error.records = tuple(prober.records)
        if error.status == 400 and nearly_full(length, workload):
            error.remedy = "input and output fill the whole context: lower --input-len or --output-len by some percent"
        raise
    if workload.sized:
        _check_length(learnt, prompt, record, length, workload)
    elif prompt.local_tokens and record.input_tokens.server:
        _check_ratio(learnt, prompt.local_tokens, record.input_tokens.server)
    facts, kept = _effects(facts, prober, options, prompt, record, learnt)
    return Prepared(
        target=target,
        facts=replace(facts, warnings=tuple(learnt.warnings)),
        options=kept,
        records=tuple(prober.records),
        calibration=learnt.calibration,
        deviation=learnt.deviation,
        notes=(*target.notes, *([f"through the proxy {proxy}"] if proxy else []), *learnt.notes),
    )


async def wait_ready(
    attempt: Callable[[], Awaitable[Prepared]], limit_s: float, on_error: Callable[[PreflightError, float], None]
) -> Prepared:
    """Repeat `attempt` (a preflight) until it succeeds, for at most `limit_s` seconds of the event loop's clock.

    `on_error` gets each passing error and the seconds until the next try. Raises PreflightError: at once for one that
    waiting does not heal, else the last one, saying how long was waited.
    """
    end = anyio.current_time() + limit_s
    pause, longest = BACKOFF_S
    last = PreflightError("the server did not answer", "is the address right?", transient=True)
    while True:
        with anyio.CancelScope(deadline=end):
            try:
                return await attempt()
            except PreflightError as error:
                if not error.transient:
                    raise
                last = error
                left = end - anyio.current_time()
                if left > 0:
                    on_error(error, min(pause, left))
                    await anyio.sleep(pause)
        if anyio.current_time() >= end:
            late = PreflightError(
                f"not ready within {limit_s:g} s: {last.message}", last.remedy, transient=True, status=last.status
            )
            late.records = last.records
            raise late
        pause = min(pause * 2, longest)


def check_context(length: int | None, inputs: int | None, outputs: int | None) -> None:
    """Raise PreflightError when input and output (tokens; None is unknown) cannot fit a context of `length` tokens."""
    if length is None or (inputs or 0) + (outputs or 0) <= length:
        return
    fixes = []
    if outputs and (inputs or 0) < length:
        fixes.append(f"--output-len to at most {length - (inputs or 0)}")
    if inputs and (outputs or 0) < length:
        fixes.append(f"--input-len to at most {length - (outputs or 0)}")
    parts = [f"{n:,} tokens of {name}" for n, name in ((inputs, "input"), (outputs, "output")) if n]
    raise PreflightError(
        f"{' and '.join(parts)} do not fit the model's context of {length:,} tokens",
        f"lower {' or '.join(fixes)}" if fixes else "lower --input-len and --output-len",
    )


def nearly_full(length: int | None, workload: PlainWorkload) -> bool:
    """Could a prompt of ours that comes out 3 % too long go over the context?"""
    most = (workload.max_input_tokens or 0) * 1.03 + (workload.max_output_tokens or 0)
    return length is not None and most > length


def shape_prompt(workload: PlainWorkload, calibration: Calibration | None, length: int | None, nonce: str) -> Prompt:
    """A prompt of the run's own shape, the longest where it varies, of a text that the run itself does not use."""
    if workload.input_len is None or workload.output_len is None:
        return next(workload.stream(0, nonce))
    inputs, outputs = workload.input_len.high, workload.output_len.high
    words = (calibration or Calibration()).words(inputs)
    output = outputs if length is None else min(outputs, OUTPUT_CAP)
    return Prompt(text=make_text(words, f"preflight {nonce} shape"), input_tokens=inputs, output_tokens=output)


def without_refused(options: RequestOptions, words: str) -> RequestOptions | None:
    """The options less what the server's words of refusal name; where they name none of ours, less forced length and
    per-event usage, then less usage. None when nothing is left to do without, or the words tell of something else."""
    continuous = options.continuous_usage
    if continuous and "continuous_usage_stats" in words:
        return replace(options, continuous_usage=False)
    if options.force_length and ("ignore_eos" in words or "min_tokens" in words):
        return replace(options, force_length=False)
    if (options.usage or continuous) and ("stream_options" in words or "include_usage" in words):
        return replace(options, usage=False, continuous_usage=False)
    if too_long(words) or (names_model(words) and "not permitted" not in words):
        return None
    if options.force_length or continuous:
        return replace(options, force_length=False, continuous_usage=False)
    return replace(options, usage=False) if options.usage else None


@dataclass(slots=True)
class _Learnt:
    notes: list[str]
    warnings: list[str]
    counts: list[tuple[int, int]] = field(default_factory=list)  # (words, prompt tokens by the server)
    calibration: Calibration | None = None
    deviation: float | None = None


class _Prober:
    """Sends the requests of a preflight, one after the other, and keeps their records."""

    def __init__(
        self,
        dialect: Dialect,
        options: RequestOptions,
        make_sender: MakeSender,
        context: Context,
        now_ns: Callable[[], int],
        ids: Iterator[int],
    ) -> None:
        self.dialect = dialect
        self.options = options
        self.records: list[Record] = []
        self._make_sender = make_sender
        self._context = context
        self._now_ns = now_ns
        self._ids = ids
        self._accepted = False  # has the server taken these options once?

    async def ask(self, prompt: Prompt) -> Record:
        """One prompt: again without what the server refuses, and once again after a failure that may pass.

        An answer that is empty or incomplete twice is returned: the address is right, and the run will count such
        answers as failed. Raises PreflightError for any other failure.
        """
        options = self.options
        record = await self._send(prompt, options)
        while record.status in (400, 422) and not self._accepted:
            fewer = without_refused(options, server_words(record.error))
            if fewer is None:
                break
            options = fewer
            record = await self._send(prompt, options)
        if _may_pass(record):
            await anyio.sleep(RETRY_S)
            record = await self._send(prompt, options)
        if record.outcome not in ("ok", "empty", "incomplete"):
            raise explain_record(record, self._context)
        self.options = options
        self._accepted = True
        return record

    async def _send(self, prompt: Prompt, options: RequestOptions) -> Record:
        spec = RequestSpec(f"p-{next(self._ids):06d}", prompt, step=0, concurrency=1, phase="preflight")
        record = await self._make_sender(options, self.dialect).send(spec, self._now_ns())
        self.records.append(record)
        return record


def _may_pass(record: Record) -> bool:
    if record.outcome in ("empty", "incomplete") or record.timeout == "idle":
        return True
    if record.status is not None and record.status != 200:
        return record.status == 429 or record.status >= 500
    return record.error is not None and record.error.kind in ("reset", "protocol", "server")


def _context(target: Target, client: httpx.AsyncClient, found: Discovery, options: RequestOptions) -> Context:
    keyed = any(holds_secret(name) and value for name, value in client.headers.items())
    return Context(
        url=target.display(),
        has_key=keyed or any(holds_secret(pair.partition("=")[0]) for pair in target.query.split("&")),
        model=options.model,
        models=[model.id for model in found.models],
        tried=[str(found.listing)] if found.listing.status not in (None, 200) else [],
        extra_fields=list(options.extra_body),
        secrets=secrets_of(client.headers, target.url, options.extra_body),
    )


def _check_listing(found: Discovery, context: Context, options: RequestOptions) -> None:
    """Raise for what the model list already shows to be hopeless."""
    listing = found.listing
    here = replace(context, url=mask(listing.url), tried=())
    failure = listing.failure
    if failure is not None and not (options.model and failure.code == "timeout"):
        raise explain(here, None, failure)
    if listing.status is not None and not options.model:
        status = listing.status
        if 300 <= status < 400 or status in (401, 402, 403, 429) or status >= 500:
            raise explain(here, status, listing.as_failure())


async def _calibrate(prober: _Prober, learnt: _Learnt, length: int | None, nonce: str) -> None:
    """Learn what text costs from two short requests, the second with every word of the list, if the context allows."""
    fitting = [n for n in (EVERY_WORD, 256, 128, 64) if length is None or 2 * n + 64 <= length]
    for words in (OPENING_WORDS, *(OPENING_WORDS + n for n in fitting[:1])):
        prompt = Prompt(make_text(words, f"preflight {nonce} {words}"), output_tokens=SHORT_OUTPUT)
        try:
            record = await prober.ask(prompt)
        except PreflightError as error:
            # The run's own shape may be shorter than this one: what it meets decides.
            if words == OPENING_WORDS or error.status not in (400, 413, 422):
                raise
            return
        if record.input_tokens.server is None:
            return
        learnt.counts.append((words, record.input_tokens.server))
    learnt.calibration = fit(learnt.counts)


def _check_length(learnt: _Learnt, prompt: Prompt, record: Record, length: int | None, workload: PlainWorkload) -> None:
    """Did the made text have the length asked for, by the server's count?"""
    server, asked = record.input_tokens.server, prompt.input_tokens
    if server is None or asked is None:
        learnt.warnings.append("the server reports no prompt tokens: input lengths are estimates by words")
        return
    learnt.counts.append((count_words(prompt.text), server))
    learnt.deviation = server / asked - 1
    if learnt.calibration is None:
        learnt.calibration = fit(learnt.counts)
    text = learnt.calibration
    if text is None and len(learnt.counts) > 1:
        pairs = ", ".join(f"{tokens} for {words} words" for words, tokens in learnt.counts)
        learnt.warnings.append(f"the server's count of prompt tokens does not follow the text: {pairs}")
        return
    seen = f"input of {asked:,} tokens asked for, {server:,} by the server's count"
    if text is not None:
        overhead = max(0, round(text.overhead_tokens))
        learnt.notes.append(f"{text.tokens_per_word:.2f} tokens a word, {overhead} around the text; {seen}")
    if abs(server - asked) > max(2, DEVIATION_LIMIT * asked):
        learnt.warnings.append(f"the input length is {learnt.deviation:+.0%} off: {seen}")
    if nearly_full(length, workload):
        learnt.warnings.append(
            f"input and output nearly fill the context of {length:,} tokens: some requests may be refused as too long"
        )


def _check_ratio(learnt: _Learnt, local: int, server: int) -> None:
    ratio = server / local
    seen = f"the server counts {server:,} prompt tokens where the local tokenizer counts {local:,} (ratio {ratio:.2f})"
    (learnt.warnings if abs(ratio - 1) > DEVIATION_LIMIT else learnt.notes).append(seen)


def _effects(
    facts: ServerFacts, prober: _Prober, wanted: RequestOptions, prompt: Prompt, record: Record, learnt: _Learnt
) -> tuple[ServerFacts, RequestOptions]:
    """What the options did, by the record of the run's own shape."""
    options = prober.options
    warn = learnt.warnings.append
    if record.outcome != "ok":
        what = "held no output" if record.outcome == "empty" else "ended without [DONE] or a finish reason"
        warn(f"the answer {what}, twice: every such request counts as failed")
    if "not_streamed" in record.flags:
        warn("the server answers without streaming: TTFT and TPOT cannot be measured")
    if wanted.usage and not options.usage:
        warn("the server refuses stream_options: tokens are counted by events")
    usage = record.output_tokens.source == "usage" or record.input_tokens.server is not None
    if options.usage and not usage and record.outcome == "ok":
        warn("the server reports no usage, though asked: tokens are counted by events")
    continuous = None
    if options.continuous_usage:
        continuous = record.events is not None and any(n is not None for n in record.events.tokens)
        options = replace(options, continuous_usage=continuous)
    facts = replace(
        facts,
        usage=usage,
        continuous_usage=continuous,
        overhead_tokens=max(0, round(learnt.calibration.overhead_tokens)) if learnt.calibration else None,
        tokens_per_word=round(learnt.calibration.tokens_per_word, 4) if learnt.calibration else None,
    )
    if not wanted.force_length:
        return facts, options
    if not options.force_length:
        warn("the server refuses ignore_eos and min_tokens: output lengths are its own")
    body = prober.dialect.body(prompt, options)
    choices = body.get("n") if isinstance(body.get("n"), int) else 1
    asked, seen = asked_output(body), record.output_tokens.count
    if asked is None or seen is None or record.outcome != "ok":
        return replace(facts, forced_length=None if options.force_length else False), options
    if record.output_tokens.source in ("usage", "token_ids"):
        met = seen == asked * (choices or 1)
    else:
        met = record.finish_reason == "length"  # events are not tokens: only the reason tells
    if not met:
        warn(f"the server gives {seen:,} output tokens where {asked:,} were asked for: plans use what was seen")
    observed = None if met else seen
    return replace(facts, forced_length=met and options.force_length, observed_output_tokens=observed), options
