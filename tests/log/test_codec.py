from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import Failure, LogError
from loadgen.log import codec
from loadgen.records import Connect, OutputTokens, Record
from loadgen.results import (
    ClientHealth,
    Decided,
    Distribution,
    Estimate,
    Lag,
    ObjectiveCheck,
    Observation,
    Percentile,
    StepSummary,
    Stop,
    Window,
)
from tests.log.record_strategies import OBSERVATION, RECORD, any_record


@given(any_record)
def test_every_record_comes_back_as_it_was(record: Record) -> None:
    line = codec.encode_record(record)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert codec.decode_record(line) == record


@given(any_record)
def test_the_line_is_strict_json_for_another_reader(record: Record) -> None:
    obj = json.loads(codec.encode_record(record), parse_constant=lambda name: pytest.fail(name))
    assert obj["outcome"] == record.outcome
    assert obj["input_tokens"]["server"] == record.input_tokens.server


def test_the_line_is_the_documented_one() -> None:
    assert codec.encode_record(RECORD).decode() == (
        '{"id":"s3-000123","step":3,"concurrency":64,"phase":"measured","worker":0,"scheduled_ns":1,"sent_ns":2,'
        '"connect":null,"first_byte_ns":3,"first_token_ns":4,"first_content_ns":5,"last_token_ns":6,"done_ns":7,'
        '"input_tokens":{"asked":512,"local":null,"server":512,"cached":null},'
        '"output_tokens":{"asked":200,"count":200,"source":"usage"},'
        '"events":{"gap_us":[48211,10022],"tokens":[1,null],"bounded":[[1,9310]]},'
        '"outcome":"ok","flags":[],"finish_reason":"length","status":200,"error":null,"server_id":"chatcmpl-1",'
        '"peer":"10.0.0.7:8000"}\n'
    )


def test_without_a_token_log_events_are_left_out() -> None:
    line = codec.encode_record(dataclasses.replace(RECORD, events=None))
    assert b"events" not in line
    assert codec.decode_record(line).events is None


def test_unknown_keys_and_flags_are_passed_over_and_optional_keys_may_be_missing() -> None:
    line = (
        b'{"id":"a","step":1,"concurrency":2,"phase":"measured","scheduled_ns":0,"done_ns":9,"outcome":"error",'
        b'"flags":["bounded","of_a_later_version"],"connect":{"tcp_us":7,"quic_us":8},"new":{"x":[1]},'
        b'"error":{"kind":"http","message":"busy","retry_after":3}}'
    )
    record = codec.decode_record(line)
    assert record.flags == ("bounded",)
    assert record.connect == Connect(None, 7, None)
    assert record.error == Failure("http", "busy")
    assert record.sent_ns is None and record.output_tokens == OutputTokens() and record.worker == 0


GOOD = json.loads(codec.encode_record(RECORD))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"id": None}, "id is missing"),
        ({"id": 7}, "id must be text"),
        ({"outcome": "fine"}, "outcome is 'fine', not one of ok, empty"),
        ({"phase": None}, "phase is missing"),
        ({"sent_ns": 1.5}, "sent_ns must be an integer"),
        ({"sent_ns": True}, "sent_ns must be an integer"),
        ({"done_ns": "7"}, "done_ns must be an integer"),
        ({"input_tokens": 512}, "input_tokens must be an object"),
        ({"output_tokens": {"source": "guess"}}, "source is 'guess'"),
        ({"flags": "bounded"}, "flags must be a list"),
        ({"events": [1]}, "events must be an object"),
        ({"events": {"gap_us": [1, 2], "tokens": [1]}}, "2 gaps but 1 token counts"),
        ({"events": {"gap_us": [1.5], "tokens": [1]}}, "gap_us must hold integers"),
        ({"events": {"gap_us": [1], "tokens": [1], "bounded": [[3, 1]]}}, "an event that is not there"),
        ({"events": {"gap_us": [1], "tokens": [1], "bounded": [3]}}, "pairs of integers"),
        ({"error": {"kind": "gremlins", "message": ""}}, "kind is 'gremlins'"),
    ],
)
def test_a_wrong_line_is_named_with_its_fault(change: dict[str, object], told: str) -> None:
    with pytest.raises(LogError) as caught:
        codec.decode_record(json.dumps({**GOOD, **change}).encode(), "requests.jsonl", 17)
    assert caught.value.message.startswith("requests.jsonl line 17: ")
    assert told in caught.value.message


EVERY_NUMBER = {
    **GOOD,
    "connect": {"dns_us": 1, "tcp_us": 2, "tls_us": 3},
    "input_tokens": {"asked": 1, "local": 2, "server": 3, "cached": 4},
    "output_tokens": {"asked": 1, "count": 2, "source": "usage", "choices": 2},
    **dict.fromkeys(("first_event_tokens", "sent_bound_us", "session", "turn"), 1),
    "attempts": [{"sent_ns": 1, "status": 200, "wait_ms": 3}],
    "shared": [1, 2],
}


def numbers_in(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where the whole numbers are in a JSON value."""
    if type(value) is int:
        yield path
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from numbers_in(item, (*path, key))


@pytest.mark.parametrize("far", [2**63, 2**64 - 1, 2**64, -(2**63) - 1])
@pytest.mark.parametrize("path", [*numbers_in(EVERY_NUMBER)], ids=lambda path: ".".join(map(str, path)))
def test_a_number_past_64_bits_is_named_with_its_key(path: tuple[str | int, ...], far: int) -> None:
    line = copy.deepcopy(EVERY_NUMBER)
    place: Any = line
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = far
    name = [key for key in path if isinstance(key, str)][-1]
    with pytest.raises(LogError, match=f"^requests.jsonl line 17: [a-z_., ]*{name}"):
        codec.decode_record(json.dumps(line).encode(), "requests.jsonl", 17)


@pytest.mark.parametrize("path", [*numbers_in(codec.step_object(OBSERVATION))], ids=lambda path: ".".join(path))
def test_a_step_with_a_number_past_64_bits_is_refused(path: tuple[str, ...]) -> None:
    line = json.loads(codec.encode(codec.step_object(OBSERVATION)))
    place = line
    for key in path[:-1]:
        place = place[key]
    if path == ("step",):  # not read: the observation's own is
        return
    place[path[-1]] = 2**63
    with pytest.raises(LogError, match=f"steps.jsonl line 3: {path[-1]} must be an integer of 64 bits"):
        codec.decode_observation(json.dumps(line).encode(), "steps.jsonl", 3)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), st.none() | st.booleans() | st.floats() | st.text(), min_size=1))
def test_damage_is_an_error_of_ours_or_a_record(change: dict[str, object]) -> None:
    try:
        record = codec.decode_record({**GOOD, **change})
    except LogError:
        return
    assert isinstance(record, Record)


def test_words_no_json_can_hold_still_give_a_line() -> None:
    """A server may send lone surrogates and integers of any size; the record must not be lost for that."""
    record = dataclasses.replace(RECORD, outcome="error", error=Failure("server", "a\ud800b", code=10**30))
    back = codec.decode_record(codec.encode_record(record))
    assert back.error == Failure("server", "a?b", code=str(10**30))


HEALTHY = dataclasses.replace(
    OBSERVATION,
    health=ClientHealth(
        stamps="kernel",
        seconds=12.5,
        cpu_share=0.0,
        wait_share=0.25,
        reads=7,
        stamped=6,
        read_lag_us=Lag(6, 1.5, 80.0, 4096.0),
        gc_pause_max_us=1.5,
        retransmits=0,
        descriptors=12,
        descriptor_limit=1024,
    ),
)
OPEN = dataclasses.replace(OBSERVATION, concurrency=0, rate=12.5, max_in_flight=7, held_back=3, not_dispatched=2)


@pytest.mark.parametrize(
    "observation",
    [
        OBSERVATION,
        OPEN,
        HEALTHY,
        dataclasses.replace(OBSERVATION, window=None, detail="", looks=5),
        dataclasses.replace(OBSERVATION, decided=Decided("ttft_p95=1ms attainment=0.95", 99, {"ttft_p95=1ms": "pass"})),
    ],
)
def test_observations_come_back(observation: Observation) -> None:
    line = codec.encode(codec.step_object(observation))
    assert codec.decode_observation(line) == observation


def test_observations_of_an_older_log_are_of_closed_loops() -> None:
    line = codec.step_object(OBSERVATION)
    for key in ("rate", "max_in_flight", "held_back", "not_dispatched"):
        del line["observation"][key]
    assert codec.decode_observation(line) == OBSERVATION


@pytest.mark.parametrize(
    "health",
    [{"stamps": "sundial"}, {"stamps": "kernel", "reads": "many"}, {"stamps": "user", "loop_lag_us": {"n": 1}}],
)
def test_a_health_that_is_damaged_is_named(health: dict[str, object]) -> None:
    line = codec.step_object(OBSERVATION)
    line["observation"]["health"] = health
    with pytest.raises(LogError):
        codec.decode_observation(line)


def test_a_health_of_a_later_version_is_read_as_far_as_it_is_known() -> None:
    line = codec.step_object(HEALTHY)
    line["observation"]["health"]["mood"] = "good"
    assert codec.decode_observation(line) == HEALTHY


def test_stops_come_back() -> None:
    for peak in (None, Estimate(4157.0, 4095.0, 4219.0), Estimate(4157.0)):
        stop = Stop("slo:ttft_p95", 88, 92, peak, "88 hold, 92 do not")
        assert codec.decode_stop(json.loads(codec.encode(codec.stop_object(stop)))) == stop
        rate = dataclasses.replace(stop, held=12.5, broke=None, held_again=(96.0, 128.0))
        assert codec.decode_stop(json.loads(codec.encode(codec.stop_object(rate)))) == rate
    assert codec.decode_stop(None) is None
    assert codec.decode_stop({"reason": 3}) is None
    odd = codec.decode_stop({"reason": "slo", "held_again": ["8", 12, None]})
    assert odd is not None and odd.held_again == (12.0,)


def test_a_summary_is_strict_json_with_units_and_null_for_what_is_not_finite() -> None:
    summary = StepSummary(
        step=1,
        concurrency=2,
        window=Window(0, 10),
        requests={"ok": 2, "error": 1},
        flags={},
        errors=(("http 503", 1),),
        sent=3,
        judged=3,
        failed=1,
        input_tokens_mean=8.0,
        output_tokens_mean=4.0,
        output_asked_mean=None,
        output_throughput=Estimate(80.0, 70.0, 90.0),
        output_throughput_failed=None,
        output_throughput_classic=math.nan,
        total_throughput=None,
        request_throughput=None,
        attempt_rate=None,
        tokens_per_user=None,
        estimated_token_share=0.0,
        estimated_itl=False,
        cached_share=None,
        latency={"ttft": Distribution(2, None, None, 9.0, (Percentile(95.0, 9.0, None, None, 2, 2.0, False),))},
        goodput=None,
        attainment=None,
        concurrency_mean=None,
        concurrency_peak=None,
        littles_law_residual=None,
        objectives=(ObjectiveCheck("ttft_p95=1ms", "ttft", 0.05, None, math.inf, 3, "fail"),),
    )
    obj = json.loads(
        codec.encode(codec.step_object(OBSERVATION, summary)), parse_constant=lambda name: pytest.fail(name)
    )["summary"]
    assert obj["output_throughput_tok_s"] == {"value": 80.0, "low": 70.0, "high": 90.0}
    assert obj["output_throughput_classic_tok_s"] is None
    assert obj["latency_ms"]["ttft"]["percentiles"][0]["value"] == 9.0
    assert obj["objectives"][0]["value_ms"] is None
    assert obj["requests"] == {"ok": 2, "error": 1}
