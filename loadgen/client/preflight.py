"""All that is settled before any load: what the server is, that it answers, and that asking has the effect it should.

In order: discovery; the models; does the shape fit the context; what our text costs (`lengths`), mostly by small
requests; one request of the run's own shape. Each is a real streamed request with a record of its own.

Effect, not acceptance: a server may take `ignore_eos` and stop early, take `stream_options` and send no usage. What is
refused outright is left out for the whole run; what has no effect is said.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

import anyio
import httpx

from ..records import Prompt, Record, RequestSpec
from ..results import ServerFacts
from ..workload.plain import PlainWorkload
from ..workload.prompts import Calibration
from ..workload.tokenizer import LocalTokenizer
from .counting import counted
from .dialects.base import Dialect, RequestOptions, asked_output
from .discovery import Discovery, choose_model, context_of, discover, listed
from .fits import check_fits, least_input, nearly_full
from .lengths import PROBES, How, Learnt, check_length, check_ratio, learn_ids, learn_lengths
from .remedies import Context, PreflightError, explain, explain_record, names_model, server_words, too_long
from .secrets import secrets_of
from .sender import Sender
from .target import Target, holds_secret, mask
from .tokenize import KINDS, TokenizeApi

_T = TypeVar("_T")
MakeSender = Callable[[RequestOptions, Dialect], Sender]

RETRY_S = 0.5  # a single 429 or 503 does not make a server unusable
OUTPUT_CAP = 256  # a longer output need not be waited for where the context length is known
CONTINUOUS_KINDS = ("vllm", "sglang", "simulator")
BACKOFF_S = (0.25, 5.0)
MOST_MODELS = 16  # tried, of those that a file names


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run is started with. `options` are those that the server takes; `records` the requests of the preflight;
    `calibration` what a word costs, None where not learnt; `deviation` by how much the server's count of the last
    prompt differs from what was asked for (0.01 is 1 % more); `exact` by what lengths are met exactly, None is about;
    `notes` are lines for the screen."""

    target: Target
    facts: ServerFacts
    options: RequestOptions
    records: tuple[Record, ...]
    calibration: Calibration | None = None
    deviation: float | None = None
    exact: How | None = None
    notes: tuple[str, ...] = ()
    others: tuple[Target, ...] = ()  # further servers, see `peers`


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
    unix_socket: str | None = None,
    tokenizer: LocalTokenizer | None = None,
    token_ids: bool = False,
    probes: int = PROBES,
) -> Prepared:
    """Settle all that a run needs. `options.model` is empty when the model is to be found out; `options.force_length`
    and `options.usage` are tried and kept if the server takes them. `ids` numbers the records, for a caller that tries
    more than once; `proxy` or `unix_socket` is what is in between, for the words of an error; `tokenizer` a local one;
    `token_ids` sends these in place of text; `probes` is how many requests may be spent on exact lengths. Raises
    PreflightError (a TargetError) with the records of the requests sent until then.
    """
    found = await discover(client, target)
    context = replace(_context(target, client, found, options), proxy=proxy, unix_socket=unix_socket)
    _check_listing(found, context, options)
    # Where requests name no model, the server has one: what it is called is for people.
    own = options.model or str(found.flags.get("model_id", "")) if not dialect.names_model else None
    named = workload.named_models
    asked = options.model or (named[0] if named else None)
    if not asked and not found.models:  # the address may say it
        asked = target.deployment or None
    model, notes, warnings = (own, (), ()) if own is not None else choose_model(found, asked)
    length = context_of(found, model)
    check_fits(length, workload)
    wanted = replace(
        options,
        model=model,
        continuous_usage=options.continuous_usage or (options.usage and found.kind in CONTINUOUS_KINDS),
    )
    prober = _Prober(dialect, wanted, make_sender, replace(context, model=model), now_ns, ids or count(1), tokenizer)
    facts = ServerFacts(found.kind, found.version, model, length, flags=found.flags)
    learnt = Learnt(list(notes), list(warnings))
    if found.kind == "tgi" and isinstance(most := found.flags.get("max_concurrent_requests"), int):
        learnt.notes.append(f"the server takes at most {most:,} requests at once and refuses more with 429")
    try:
        if workload.sized:
            kind = found.kind if found.kind in KINDS else None
            api = TokenizeApi(client, target, kind, model) if kind is not None else None
            if token_ids:
                await learn_ids(learnt, api, tokenizer)
            else:
                await learn_lengths(
                    prober.ask, learnt, api=api, tokenizer=tokenizer, length=length, nonce=nonce, probes=probes
                )
        prompt = shape_prompt(workload, learnt.calibration, length, nonce)
        record = await prober.ask(prompt)
        if len(named) > 1:
            await _others(prober, learnt, found, workload, prompt)
    except PreflightError as error:
        error.records = tuple(prober.records)
        if error.status == 400 and nearly_full(length, workload):
            error.remedy = "input and output fill the whole context: lower --input-len or --output-len by some percent"
        raise
    if workload.sized:
        check_length(
            learnt,
            prompt,
            record,
            prober.records,
            short=least_input(workload, learnt.calibration),
            length=length,
            full=nearly_full(length, workload),
        )
    elif record.input_tokens.local and record.input_tokens.server:
        check_ratio(learnt, record.input_tokens.local, record.input_tokens.server)
    facts, kept = _effects(facts, prober, options, prompt, record, learnt)
    return Prepared(
        target=target,
        facts=replace(facts, warnings=tuple(learnt.warnings)),
        options=kept,
        records=tuple(prober.records),
        calibration=learnt.calibration,
        deviation=learnt.deviation,
        exact=learnt.exact,
        notes=(*target.notes, *([f"through the proxy {proxy}"] if proxy else []), *learnt.notes),
    )


async def wait_ready(
    attempt: Callable[[], Awaitable[_T]], limit_s: float, on_error: Callable[[PreflightError, float], None]
) -> _T:
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


def shape_prompt(workload: PlainWorkload, calibration: Calibration | None, length: int | None, nonce: str) -> Prompt:
    """A prompt of the run's own shape, of a text that the run itself does not use: the longest of a range, the middle
    one of a definition."""
    models = workload.models
    model = models.names[0] if models is not None else None
    inputs, outputs = workload.usual
    if not workload.sized or inputs is None or outputs is None:
        first = next(workload.stream(0, nonce))
        return first if model is None else replace(first, model=model)
    output = outputs if length is None else min(outputs, OUTPUT_CAP)
    made = (calibration or Calibration()).prompt(inputs, f"preflight {nonce} shape")
    return replace(made, output_tokens=output, model=model)


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
        tokenizer: LocalTokenizer | None = None,
    ) -> None:
        self.dialect = dialect
        self.options = options
        self.records: list[Record] = []
        self._make_sender = make_sender
        self.context = context
        self._now_ns = now_ns
        self._ids = ids
        self._tokenizer = tokenizer
        self._accepted = False  # has the server taken these options once?

    async def ask(self, prompt: Prompt) -> Record:
        """One prompt: again without what the server refuses, and once again after a failure that may pass.

        An answer that is empty or incomplete twice is returned: the address is right, and the run will count such
        answers as failed. Raises PreflightError for any other failure.
        """
        options = self.options
        record = await self._send(prompt, options)
        while _refused(record) and not self._accepted:
            fewer = without_refused(options, server_words(record.error))
            if fewer is None:
                break
            options = fewer
            record = await self._send(prompt, options)
        if _may_pass(record):
            await anyio.sleep(RETRY_S)
            record = await self._send(prompt, options)
        if record.outcome not in ("ok", "empty", "incomplete"):
            raise explain_record(record, replace(self.context, model=prompt.model or self.context.model))
        self.options = options
        self._accepted = True
        return record

    async def _send(self, prompt: Prompt, options: RequestOptions) -> Record:
        if self._tokenizer is not None and prompt.local_tokens is None:
            prompt = counted(prompt, self._tokenizer)
        spec = RequestSpec(f"p-{next(self._ids):06d}", prompt, step=0, concurrency=1, phase="preflight")
        record = await self._make_sender(options, self.dialect).send(spec, self._now_ns())
        self.records.append(record)
        return record


async def _others(prober: _Prober, learnt: Learnt, found: Discovery, workload: PlainWorkload, prompt: Prompt) -> None:
    """One request to each of the other models. Raises PreflightError for one that fails."""
    names = workload.named_models
    for name in names[1:MOST_MODELS]:
        learnt.warnings.extend(choose_model(found, name)[2])
        check_fits(context_of(found, name), workload)
        own = next((p for p in workload.prompts if p.body and p.body.get("model") == name), prompt)
        await prober.ask(replace(prompt, model=name) if workload.models is not None else own)
    parents = {model.id: model.parent for model in found.models if model.parent}
    shown = [f"{name} (adapter on {parents[name]})" if name in parents else name for name in names]
    learnt.notes.append(f"models {listed(shown)}; lengths and limits learnt on {names[0]}")
    if len(names) > MOST_MODELS:
        learnt.notes.append(f"{len(names) - MOST_MODELS:,} of the {len(names):,} models of the file were not tried")


def _refused(record: Record) -> bool:
    """Was the request refused for what it asks? Some say so in a stream with status 200."""
    said = record.error.code if record.status == 200 and record.error is not None else record.status
    return record.outcome == "error" and said in (400, 422)


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
    # With a model named it is not needed: only where there is nobody to ask at all is it in vain to go on.
    passable = failure is not None and (failure.code == "timeout" or failure.kind in ("reset", "protocol"))
    if failure is not None and not (options.model and passable):
        raise explain(here, None, failure)
    if listing.status is not None and not options.model:
        status = listing.status
        if 300 <= status < 400 or status in (401, 402, 403, 407, 429) or status >= 500:
            raise explain(here, status, listing.as_failure())


def _effects(
    facts: ServerFacts, prober: _Prober, wanted: RequestOptions, prompt: Prompt, record: Record, learnt: Learnt
) -> tuple[ServerFacts, RequestOptions]:
    """What the options did, by the record of the run's own shape."""
    options = prober.options
    warn = learnt.warnings.append
    by = "the local tokenizer" if record.output_tokens.source == "tokenizer" else "events"
    if record.outcome != "ok":
        what = "held no output" if record.outcome == "empty" else "ended without [DONE] or a finish reason"
        warn(f"the answer {what}, twice: every such request counts as failed")
    if "not_streamed" in record.flags and options.stream:
        warn("the server answers without streaming: TTFT and TPOT cannot be measured")
    if wanted.usage and not options.usage:
        warn(f"the server refuses stream_options: tokens are counted by {by}")
    usage = record.output_tokens.source == "usage" or record.input_tokens.server is not None
    if options.usage and not usage and record.outcome == "ok":
        warn(f"the server reports no usage, though asked: tokens are counted by {by}")
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
    if prompt.body is not None and "min_tokens" not in prober.dialect.body(prompt, wanted):
        return facts, options  # the length is the body's own, and not forced
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
