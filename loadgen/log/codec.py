"""The records as JSON: one line each, strict JSON, keys in one order, units in names. No I/O here.

A line of requests.jsonl carries a `Record`. Keys that only some records need (`first_event_tokens`, `timeout`,
`excerpt`, `sent_bound_us`, `attempts`, `model`, `source_id`, `session`, `turn`, `shared`, and `events` where no token
log was kept) are left out where they are None, as `choices` is where it is 1; every other key is always there. Reading
ignores keys it does not know, so that an older reader can read a newer log.

A line of steps.jsonl carries one step: the driver's `Observation`, which nothing else can give back, and the summary of
that moment, which is there for people and is always derived again from the records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar, cast, get_args

import orjson

from ..errors import Failure, FailureKind, LogError
from ..records import (
    FLAGS,
    OUTCOMES,
    PHASES,
    TOKEN_SOURCES,
    Attempt,
    Connect,
    Events,
    InputTokens,
    OutputTokens,
    Record,
    TimeoutKind,
)
from ..results import (
    Came,
    ClientHealth,
    Decided,
    Estimate,
    Lag,
    LevelResult,
    Observation,
    StepSummary,
    Stop,
    Verdict,
    Window,
)

VERDICTS: tuple[str, ...] = get_args(Verdict)
_SAID = ("pass", "fail", "marginal")
_CAME: tuple[str, ...] = get_args(Came)
_TIMEOUTS: tuple[str, ...] = get_args(TimeoutKind)
_FAILURE_KINDS: tuple[str, ...] = get_args(FailureKind)
_T = TypeVar("_T")
_INT64 = range(-(2**63), 2**63)


# --- writing --------------------------------------------------------------------------------------------------------


def record_object(record: Record) -> dict[str, Any]:
    """A record as a JSON object, keys in the order of the log."""
    connect, error = record.connect, record.error
    tokens_in, tokens_out = record.input_tokens, record.output_tokens
    line: dict[str, Any] = {
        "id": record.id,
        "step": record.step,
        "concurrency": record.concurrency,
        "phase": record.phase,
        "worker": record.worker,
        "scheduled_ns": record.scheduled_ns,
        "sent_ns": record.sent_ns,
        "connect": None
        if connect is None
        else {"dns_us": connect.dns_us, "tcp_us": connect.tcp_us, "tls_us": connect.tls_us},
        "first_byte_ns": record.first_byte_ns,
        "first_token_ns": record.first_token_ns,
        "first_content_ns": record.first_content_ns,
        "last_token_ns": record.last_token_ns,
        "done_ns": record.done_ns,
        "input_tokens": {
            "asked": tokens_in.asked,
            "local": tokens_in.local,
            "server": tokens_in.server,
            "cached": tokens_in.cached,
        },
        "output_tokens": {"asked": tokens_out.asked, "count": tokens_out.count, "source": tokens_out.source},
    }
    if tokens_out.choices != 1:
        line["output_tokens"]["choices"] = tokens_out.choices
    if record.first_event_tokens is not None:
        line["first_event_tokens"] = record.first_event_tokens
    if record.events is not None:
        events = record.events
        line["events"] = {"gap_us": events.gap_us, "tokens": events.tokens, "bounded": events.bounded}
    line["outcome"] = record.outcome
    line["flags"] = record.flags
    line["finish_reason"] = record.finish_reason
    line["status"] = record.status
    line["error"] = None if error is None else failure_object(error)
    if record.timeout is not None:
        line["timeout"] = record.timeout
    if record.excerpt is not None:
        line["excerpt"] = record.excerpt
    line["server_id"] = record.server_id
    line["peer"] = record.peer
    if record.sent_bound_us is not None:
        line["sent_bound_us"] = record.sent_bound_us
    if record.attempts:
        line["attempts"] = [
            {"sent_ns": one.sent_ns, "status": one.status, "wait_ms": one.wait_ms} for one in record.attempts
        ]
    if record.model is not None:
        line["model"] = record.model
    if record.source_id is not None:
        line["source_id"] = record.source_id
    if record.session is not None:
        line["session"] = record.session
    if record.turn is not None:
        line["turn"] = record.turn
    if record.shared is not None:
        line["shared"] = record.shared
    return line


def failure_object(error: Failure) -> dict[str, Any]:
    """A record's `error` as a JSON object."""
    told = {"kind": error.kind, "message": error.message, "code": error.code, "excerpt": error.excerpt}
    return told if error.retry_after_s is None else {**told, "retry_after_s": error.retry_after_s}


def encode(obj: Mapping[str, Any]) -> bytes:
    """One line of strict JSON with its newline. Never fails for what a server may have sent us: a lone surrogate
    becomes a question mark, an integer past 64 bits its text, NaN and infinity null."""
    try:
        return orjson.dumps(obj, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        return orjson.dumps(plain(obj), option=orjson.OPT_APPEND_NEWLINE)


def encode_record(record: Record) -> bytes:
    return encode(record_object(record))


def plain(value: Any) -> Any:
    """Dataclasses, mappings and sequences → dicts and lists of what JSON can hold."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if value in _INT64 else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    return plain(str(value))  # a path, a date: as text, rather than no manifest at all


# What `StepSummary` names without its unit.
_SUMMARY_UNITS = {
    "output_throughput": "output_throughput_tok_s",
    "output_throughput_failed": "output_throughput_failed_tok_s",
    "output_throughput_classic": "output_throughput_classic_tok_s",
    "total_throughput": "total_throughput_tok_s",
    "request_throughput": "request_throughput_req_s",
    "completion_rate": "completion_rate_req_s",
    "attempt_rate": "attempt_rate_req_s",
    "rate": "rate_req_s",
    "tokens_per_user": "tokens_per_user_tok_s",
    "latency": "latency_ms",
    "goodput": "goodput_req_s",
    "input_deviation": "input_deviation_share",
}


def summary_object(summary: StepSummary) -> dict[str, Any]:
    """A summary as a JSON object; a number that is not finite (failures reaching into a percentile) is null."""
    return {_SUMMARY_UNITS.get(key, key): value for key, value in plain(summary).items()}


def observation_object(observation: Observation) -> dict[str, Any]:
    return cast(dict[str, Any], plain(observation))


def stop_object(stop: Stop) -> dict[str, Any]:
    units = {"peak_throughput": "peak_throughput_tok_s", "peak_goodput": "peak_goodput_req_s"}
    return {units.get(k, k): v for k, v in plain(stop).items()}


def step_object(
    observation: Observation, summary: StepSummary | None = None, level: LevelResult | None = None
) -> dict[str, Any]:
    """A line of steps.jsonl. `level` is what the run made of the step."""
    said = {} if level is None else {"verdict": level.verdict, "broke": list(level.broke)}
    line = {"step": observation.step, **said, "observation": observation_object(observation)}
    return line if summary is None else {**line, "summary": summary_object(summary)}


# --- reading --------------------------------------------------------------------------------------------------------


class FaultError(Exception):
    """What is wrong with a line, without where it is."""


def decode_line(line: bytes, source: str, number: int) -> dict[str, Any]:
    """A line → its JSON object. Raises LogError, naming the line, for anything else."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise LogError(
            f"{source} line {number}: not JSON ({error})",
            "the file was changed or damaged; take that line out, or give the run folder as it was written",
        ) from error
    if not isinstance(value, dict):
        raise LogError(f"{source} line {number}: not a JSON object", "give a run folder, its requests.jsonl, or a CSV")
    return value


def decode_record(line: bytes | Mapping[str, Any], source: str = "log", number: int = 1) -> Record:
    """A line of requests.jsonl, or its object, → the record. Raises LogError naming source, line and fault."""
    obj = decode_line(line, source, number) if isinstance(line, bytes) else line
    try:
        return _record(obj)
    except FaultError as error:
        raise LogError(
            f"{source} line {number}: {error}",
            "a request's line needs id, step, concurrency, phase, scheduled_ns, done_ns and outcome; "
            "was this file written by loadgen?",
        ) from error


def decode_observation(line: bytes | Mapping[str, Any], source: str = "log", number: int = 1) -> Observation:
    """A line of steps.jsonl, or its object, → the driver's observation of that step."""
    obj = decode_line(line, source, number) if isinstance(line, bytes) else line
    try:
        seen = _object(obj, "observation")
        window = _object(seen, "window")
        return Observation(
            step=_must(_int(seen, "step"), "step"),
            concurrency=_must(_int(seen, "concurrency"), "concurrency"),
            window=Window(_must(_int(window, "start_ns"), "start_ns"), _must(_int(window, "end_ns"), "end_ns"))
            if window
            else None,
            in_flight_integral_ns=_int(seen, "in_flight_integral_ns") or 0,
            in_flight_peak=_int(seen, "in_flight_peak") or 0,
            ended=cast(Any, _str(seen, "ended") or "complete"),
            detail=_str(seen, "detail") or "",
            rate=_float(seen, "rate"),
            max_in_flight=_int(seen, "max_in_flight"),
            held_back=_int(seen, "held_back") or 0,
            not_dispatched=_int(seen, "not_dispatched") or 0,
            health=_health(_object(seen, "health")) if seen.get("health") is not None else None,
            workers=_int(seen, "workers") or 1,
            looks=max(1, _int(seen, "looks") or 1),
            decided=_decided(_object(seen, "decided")) if seen.get("decided") is not None else None,
            cache_block=_int(seen, "cache_block"),
        )
    except FaultError as error:
        raise LogError(f"{source} line {number}: {error}", "delete steps.jsonl: it can be derived again") from error


def _decided(obj: Mapping[str, Any]) -> Decided:
    said = _object(obj, "verdicts")
    verdicts = {name: found for name in said if (found := _enum(said, name, _SAID))}
    return Decided(_must(_str(obj, "slo"), "decided.slo"), _must(_int(obj, "n"), "decided.n"), verdicts)


def _health(obj: Mapping[str, Any]) -> ClientHealth:
    """By the field's own type, so that a new figure needs no line here."""
    found: dict[str, Any] = {}
    for one in fields(ClientHealth):
        kind = str(one.type)
        if kind.startswith("Lag"):
            lag = _object(obj, one.name)
            found[one.name] = (
                Lag(_must(_int(lag, "n"), "n"), *(float(_must(_float(lag, key), key)) for key in ("p50", "p99", "max")))
                if lag
                else None
            )
        elif one.name == "stamps":
            found[one.name] = _must(_enum(obj, "stamps", ("kernel", "user")), "health.stamps")
        else:
            value = _int(obj, one.name) if kind.startswith("int") else _float(obj, one.name)
            if value is not None:
                found[one.name] = value
    return ClientHealth(**{"seconds": 0.0, **found})


def decode_stop(obj: Mapping[str, Any] | None) -> Stop | None:
    """The manifest's `stop` → how the sweep ended; None where there is none, or none that can be read."""
    if not isinstance(obj, Mapping) or not isinstance(obj.get("reason"), str):
        return None
    peak = obj.get("peak_throughput_tok_s", obj.get("peak_throughput"))
    try:
        value = _float(peak, "value") if isinstance(peak, Mapping) else None
        return Stop(
            reason=obj["reason"],
            held=_float(obj, "held"),
            broke=_float(obj, "broke"),
            peak_throughput=Estimate(value, _float(peak, "low"), _float(peak, "high"))
            if value is not None and isinstance(peak, Mapping)
            else None,
            sentence=_str(obj, "sentence") or "",
            limit=_float(obj, "limit"),
            band=_pair(obj.get("band")),
            first=cast("Came | None", _enum(obj, "first", _CAME)),
            peak_goodput=_float(obj, "peak_goodput_req_s"),
            unsteady=obj.get("unsteady") is True,
            held_again=_numbers(obj.get("held_again")),
        )
    except FaultError:
        return None


def _numbers(value: object) -> tuple[float, ...]:
    known = value if isinstance(value, list) else []
    return tuple(float(one) for one in known if isinstance(one, int | float))


def _pair(value: object) -> tuple[float, float] | None:
    match value:
        case [int() | float() as low, int() | float() as high]:
            return float(low), float(high)
    return None


def decode_levels(value: object) -> dict[int, tuple[str, tuple[str, ...]]]:
    """The manifest's `levels`, or lines of steps.jsonl → step → (verdict, broken objectives); what cannot be read is
    left out."""
    found: dict[int, tuple[str, tuple[str, ...]]] = {}
    for level in value if isinstance(value, list) else ():
        if isinstance(level, Mapping) and type(level.get("step")) is int and level.get("verdict") in VERDICTS:
            broke = level.get("broke")
            names = tuple(str(name) for name in broke) if isinstance(broke, list) else ()
            found[level["step"]] = (level["verdict"], names)
    return found


def decode_sent(line: Mapping[str, Any]) -> dict[int, int]:
    """A line of steps.jsonl → step → the measured requests that were in the log as it was written; none where it does
    not tell."""
    step, summary = line.get("step"), line.get("summary")
    sent = summary.get("sent") if isinstance(summary, Mapping) else None
    return {step: sent} if type(step) is int and type(sent) is int else {}


def _record(obj: Mapping[str, Any]) -> Record:
    tokens_in, tokens_out = _object(obj, "input_tokens"), _object(obj, "output_tokens")
    connect, error = _object(obj, "connect"), _object(obj, "error")
    flags = obj.get("flags") or []
    if not isinstance(flags, list | tuple):
        raise FaultError(f"flags must be a list, is {_shown(flags)}")
    return Record(
        id=_must(_str(obj, "id"), "id"),
        step=_must(_int(obj, "step"), "step"),
        concurrency=_must(_int(obj, "concurrency"), "concurrency"),
        phase=cast(Any, _must(_enum(obj, "phase", PHASES), "phase")),
        worker=_int(obj, "worker") or 0,
        scheduled_ns=_must(_int(obj, "scheduled_ns"), "scheduled_ns"),
        sent_ns=_int(obj, "sent_ns"),
        connect=Connect(_int(connect, "dns_us"), _int(connect, "tcp_us"), _int(connect, "tls_us"))
        if isinstance(obj.get("connect"), Mapping)
        else None,
        first_byte_ns=_int(obj, "first_byte_ns"),
        first_token_ns=_int(obj, "first_token_ns"),
        first_content_ns=_int(obj, "first_content_ns"),
        last_token_ns=_int(obj, "last_token_ns"),
        done_ns=_must(_int(obj, "done_ns"), "done_ns"),
        input_tokens=InputTokens(
            _int(tokens_in, "asked"), _int(tokens_in, "local"), _int(tokens_in, "server"), _int(tokens_in, "cached")
        ),
        output_tokens=OutputTokens(
            _int(tokens_out, "asked"),
            _int(tokens_out, "count"),
            cast(Any, _enum(tokens_out, "source", TOKEN_SOURCES)),
            max(1, _int(tokens_out, "choices") or 1),
        ),
        first_event_tokens=_int(obj, "first_event_tokens"),
        events=_events(obj),
        outcome=cast(Any, _must(_enum(obj, "outcome", OUTCOMES), "outcome")),
        flags=tuple(flag for flag in flags if flag in FLAGS),  # a newer version's flag is not ours to judge
        finish_reason=_str(obj, "finish_reason"),
        status=_int(obj, "status"),
        error=decode_failure(error) if isinstance(obj.get("error"), Mapping) else None,
        timeout=cast(Any, _enum(obj, "timeout", _TIMEOUTS)),
        excerpt=_str(obj, "excerpt"),
        server_id=_str(obj, "server_id"),
        peer=_str(obj, "peer"),
        sent_bound_us=_int(obj, "sent_bound_us"),
        attempts=_attempts(obj.get("attempts") or []),
        model=_str(obj, "model"),
        source_id=_str(obj, "source_id"),
        session=_int(obj, "session"),
        turn=_int(obj, "turn"),
        shared=_two(obj, "shared"),
    )


def _two(obj: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    found = obj.get(key)
    if found is None:
        return None
    if not isinstance(found, list | tuple) or len(found) != 2 or not all(type(n) is int for n in found):
        raise FaultError(f"{key} must be two whole numbers, is {_shown(found)}")
    _bounded(key, found)
    return found[0], found[1]


def decode_failure(obj: Mapping[str, Any]) -> Failure:
    """A record's `error`. Raises FaultError."""
    code = obj.get("code")
    return Failure(
        kind=cast(Any, _must(_enum(obj, "kind", _FAILURE_KINDS), "error.kind")),
        message=_str(obj, "message") or "",
        code=code if code is None or (isinstance(code, int | str) and not isinstance(code, bool)) else str(code),
        excerpt=_str(obj, "excerpt"),
        retry_after_s=_float(obj, "retry_after_s"),
    )


def _attempts(found: Any) -> tuple[Attempt, ...]:
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        raise FaultError("attempts must be a list of objects")
    return tuple(Attempt(_int(one, "sent_ns"), _int(one, "status"), _int(one, "wait_ms")) for one in found)


def _events(obj: Mapping[str, Any]) -> Events | None:
    if obj.get("events") is None:
        return None
    events = _object(obj, "events")
    gaps, bounded = events.get("gap_us") or [], events.get("bounded") or []
    tokens = events.get("tokens") or [None] * len(gaps)
    # One pass in C over each list: a record has hundreds of events, and a run may have a million records.
    if not (isinstance(gaps, list) and isinstance(tokens, list) and isinstance(bounded, list)):
        raise FaultError("events must hold the lists gap_us, tokens and bounded")
    if set(map(type, gaps)) - {int} or set(map(type, tokens)) - {int, type(None)}:
        raise FaultError("events.gap_us must hold integers, events.tokens integers or null")
    if len(gaps) != len(tokens):
        raise FaultError(f"events has {len(gaps)} gaps but {len(tokens)} token counts")
    pairs = [tuple(pair) for pair in bounded if isinstance(pair, list | tuple)]
    if len(pairs) != len(bounded) or any(len(p) != 2 or set(map(type, p)) - {int} for p in pairs):
        raise FaultError("events.bounded must hold pairs of integers: [event index, bound in µs]")
    if any(not 0 <= index < len(gaps) for index, _ in pairs):
        raise FaultError("events.bounded names an event that is not there")
    _bounded("events.gap_us", gaps)
    _bounded("events.tokens", tokens if None not in tokens else [n for n in tokens if n is not None])
    _bounded("events.bounded", [bound for _, bound in pairs])
    return Events(gaps, tokens, cast(list[tuple[int, int]], pairs))


def _must(value: _T | None, key: str) -> _T:
    if value is None:
        raise FaultError(f"{key} is missing")
    return value


def _int(obj: Mapping[str, Any], key: str) -> int | None:
    value = obj.get(key)
    if value is None or (type(value) is int and value in _INT64):
        return value
    raise FaultError(f"{key} must be an integer{' of 64 bits' * (type(value) is int)}, is {_shown(value)}")


def _bounded(key: str, numbers: Sequence[int]) -> None:
    if numbers and not (min(numbers) in _INT64 and max(numbers) in _INT64):
        far = next(n for n in numbers if n not in _INT64)
        raise FaultError(f"{key} must hold integers of 64 bits, holds {far}")


def _float(obj: Mapping[str, Any], key: str) -> float | None:
    value = obj.get(key)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise FaultError(f"{key} must be a number, is {_shown(value)}")


def _str(obj: Mapping[str, Any], key: str) -> str | None:
    value = obj.get(key)
    if value is None or isinstance(value, str):
        return value
    raise FaultError(f"{key} must be text, is {_shown(value)}")


def _enum(obj: Mapping[str, Any], key: str, allowed: Sequence[str]) -> str | None:
    value = _str(obj, key)
    if value is not None and value not in allowed:
        raise FaultError(f"{key} is {_shown(value)}, not one of {', '.join(allowed)}")
    return value


def _object(obj: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = obj.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise FaultError(f"{key} must be an object, is {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"
