from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from loadgen.errors import UsageError
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.presets import PRESETS
from loadgen.simulator.process import SimulatorProcess
from loadgen.simulator.server import bind

CAPTURES = Path(__file__).parent.parent / "data" / "captures"
CONFIG = EngineConfig(step_ms=2, decode_ms=0, prefill_ms=0.001, overhead_ms=0, max_batch=4, context_length=2048)
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = "Write a short story about a program that measures time."


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with SimulatorProcess(CONFIG) as simulator:
        yield simulator.url


def call(
    url: str, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=10)
    try:
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, path, raw, headers or {})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def post(url: str, path: str, **body: Any) -> Any:
    status, _, raw = call(url, "POST", path, body)
    assert status == 200, raw
    return json.loads(raw)


def data_of(stream: bytes) -> list[str]:
    events = stream.decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


def events(url: str, path: str, **body: Any) -> list[str]:
    status, headers, raw = call(url, "POST", path, {"stream": True, **body})
    assert status == 200 and headers["content-type"] == "text/event-stream; charset=utf-8"
    return data_of(raw)


def captured(name: str) -> tuple[dict[str, Any], list[str]]:
    """A real server's answer, its chunks put together, and the request that it answered."""
    request = json.loads((CAPTURES / f"{name}.request.json").read_text())
    body, stream = (CAPTURES / f"{name}.raw").read_bytes().split(b"\r\n\r\n", 1)[1], b""
    while body:
        size, _, body = body.partition(b"\r\n")
        stream += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    return request, data_of(stream)


def shape(value: Any, key: str = "") -> Any:
    """A value's form: its keys in order and its kinds of values; the values that carry meaning are kept."""
    if isinstance(value, dict):
        return [(name, shape(inner, name)) for name, inner in value.items()]
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    if key in ("object", "role", "finish_reason", "index", "completion_tokens") or value == "":
        return value
    return type(value).__name__


@pytest.mark.parametrize(
    "name",
    [
        "vllm-chat-usage",
        "vllm-chat-nousage",
        "vllm-chat-continuous-usage",
        "vllm-comp-usage",
        "vllm-comp-nousage",
        "vllm-comp-tokenids",
    ],
)
def test_streams_have_the_real_servers_envelopes(url: str, name: str) -> None:
    request, real = captured(name)
    path = CHAT if "messages" in request else COMPLETIONS
    ours = events(url, path, **{**request, "model": "simulated", "ignore_eos": True})
    assert [shape(json.loads(event)) for event in ours[:-1]] == [shape(json.loads(event)) for event in real[:-1]]
    assert ours[-1] == real[-1] == "[DONE]"


@pytest.mark.parametrize("name", ["vllm-chat-nonstream", "vllm-comp-nonstream"])
def test_whole_answers_carry_the_real_servers_fields(url: str, name: str) -> None:
    request = json.loads((CAPTURES / f"{name}.request.json").read_text())
    real = json.loads((CAPTURES / f"{name}.raw").read_bytes().split(b"\r\n\r\n", 1)[1])
    ours = post(
        url, CHAT if "messages" in request else COMPLETIONS, **{**request, "model": "simulated", "ignore_eos": True}
    )
    assert ours.keys() <= real.keys()
    assert shape(ours["usage"]) == shape(real["usage"])
    assert ours["choices"][0].keys() <= real["choices"][0].keys()
    assert ours["choices"][0].get("message", {}).keys() == real["choices"][0].get("message", {}).keys()


@pytest.mark.parametrize("name", ["badjson", "badmodel", "badparam", "toolong", "notfound"])
def test_errors_have_the_real_servers_shape(url: str, name: str) -> None:
    head, real = (CAPTURES / f"vllm-err-{name}.raw").read_bytes().split(b"\r\n\r\n", 1)
    sent: dict[str, Any] = {
        "badjson": b'{"model": "simulated", "messages": [',
        "badmodel": {"model": "no-such-model", "messages": [{"role": "user", "content": TEXT}]},
        "badparam": {"messages": [{"role": "user", "content": TEXT}], "temperature": -1},
        "toolong": {"messages": [{"role": "user", "content": "word number " * 1500}], "max_tokens": 8},
        "notfound": {},
    }
    status, headers, raw = call(url, "POST", "/v1/nothing" if name == "notfound" else CHAT, sent[name])
    assert (status, headers["content-type"]) == (int(head.split()[1]), "application/json")
    ours, theirs = json.loads(raw), json.loads(real)
    assert shape(ours) == shape(theirs)
    if "error" in theirs:
        for field in ("type", "code") if name == "badjson" else ("type", "code", "param"):
            assert ours["error"][field] == theirs["error"][field]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"n": 2}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": ["hello"]}, "messages"),
        ({"messages": None}, "messages"),
    ],
    ids=str,
)
def test_a_bad_parameter_is_named(url: str, wrong: dict[str, Any], param: str) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], **wrong}
    status, _, raw = call(url, "POST", CHAT, body)
    assert status == 400
    error = json.loads(raw)["error"]
    assert error["param"] == param and param in error["message"]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"\\ud800"}',
        b"[" * 100_000,
        b'{"model":"simulated","messages":[],"n":' + b"[" * 1000 + b"]" * 1000 + b"}",
    ],
    ids=["half a surrogate pair", "endless nesting", "deep nesting"],
)
def test_a_body_that_python_cannot_write_is_a_bad_one(url: str, raw: bytes) -> None:
    status, _, answer = call(url, "POST", CHAT, raw)
    assert status == 400 and json.loads(answer)["error"]["code"] == 400


@pytest.mark.parametrize(
    ("path", "body", "tokens"),
    [
        (COMPLETIONS, {"prompt": "letter letters"}, 3),  # 6 letters are one token, 7 two
        (COMPLETIONS, {"prompt": "\n a\tb  c "}, 3),
        (COMPLETIONS, {"prompt": [5, 6, 7, 8]}, 4),
        (COMPLETIONS, {"prompt": [[5, 6, 7]]}, 3),
        (CHAT, {"messages": [{"role": "user", "content": "hello"}]}, 9),
        (CHAT, {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": "hello there"}]}, 18),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "one two"}]}]}, 10),
    ],
    ids=str,
)
def test_prompt_tokens_follow_the_documented_rule(url: str, path: str, body: dict[str, Any], tokens: int) -> None:
    assert post(url, path, max_tokens=1, **body)["usage"]["prompt_tokens"] == tokens


@pytest.mark.parametrize(
    ("options", "lowest", "highest", "reasons"),
    [
        ({"max_tokens": 20, "ignore_eos": True}, 20, 20, ("length",)),
        ({"max_completion_tokens": 7, "max_tokens": 20, "ignore_eos": True}, 7, 7, ("length",)),
        ({"max_tokens": 20, "min_tokens": 20}, 20, 20, ("length",)),
        ({"max_tokens": 40}, 1, 40, ("stop", "length")),
        ({"max_tokens": 40, "min_tokens": 35}, 35, 40, ("stop", "length")),
        ({}, 1, 2040, ("stop",)),
    ],
    ids=str,
)
def test_output_length(url: str, options: dict[str, Any], lowest: int, highest: int, reasons: tuple[str, ...]) -> None:
    answer = post(url, CHAT, messages=[{"role": "user", "content": "hi"}], **options)
    assert lowest <= answer["usage"]["completion_tokens"] <= highest
    choice = answer["choices"][0]
    assert choice["finish_reason"] in reasons
    assert len(choice["message"]["content"].split()) == answer["usage"]["completion_tokens"]


def test_answers_stop_by_themselves_around_three_fifths(url: str) -> None:
    lengths = [post(url, COMPLETIONS, prompt="a", max_tokens=10)["usage"]["completion_tokens"] for _ in range(40)]
    assert 5 <= sum(lengths) / len(lengths) <= 7  # 6, standard error 0.25
    assert len(set(lengths)) > 2


def test_pages(url: str) -> None:
    _, _, raw = call(url, "GET", "/v1/models")
    (model,) = json.loads(raw)["data"]
    assert (model["id"], model["max_model_len"], model["parent"]) == ("simulated", 2048, None)
    assert call(url, "GET", "/health")[0] == 200
    assert "version" in json.loads(call(url, "GET", "/version")[2])
    assert call(url, "GET", CHAT)[0] == 405
    assert call(url, "POST", "/health", {})[0] == 405
    assert call(url, "GET", "/nothing")[0] == 404


def metrics(url: str) -> dict[str, float]:
    lines = call(url, "GET", "/metrics")[2].decode().splitlines()
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.replace('engine="0",model_name="simulated"', ""): float(value) for name, value in samples.items()}


def test_metrics_count_what_was_done(url: str) -> None:
    before = metrics(url)
    for _ in range(3):
        events(url, COMPLETIONS, prompt=[1] * 10, max_tokens=7, ignore_eos=True)
    after = metrics(url)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["vllm:prompt_tokens_total{}"] == 30
    assert grown["vllm:generation_tokens_total{}"] == 21
    assert grown['vllm:request_success_total{,finished_reason="length"}'] == 3
    assert (after["vllm:num_requests_running{}"], after["vllm:num_requests_waiting{}"]) == (0, 0)
    assert after["loadgen:simulator_saturated{}"] in (0, 1) and after["loadgen:simulator_lag_seconds{}"] < 5
    assert grown["vllm:iteration_tokens_total_sum{}"] == 30 + 21
    assert grown["vllm:iteration_tokens_total_count{}"] == 21
    assert grown["loadgen:simulator_engine_busy_seconds_total{}"] == pytest.approx(3 * 7 * 0.002, rel=0.3)


def test_metrics_tell_the_engines_truth() -> None:
    """A prompt said twice is found in the prefix cache; drafted and accepted tokens, and the phases, are counted."""
    config = replace(CONFIG, prefix_cache=True, kv_blocks=200, speculate=2, acceptance=0.5)
    with SimulatorProcess(config) as simulator:
        for text in (TEXT * 20, TEXT * 20, "Something else, " + TEXT * 20):
            answer = post(simulator.url, CHAT, messages=[{"role": "user", "content": text}], max_tokens=40)
            assert answer["usage"]["completion_tokens"] >= 1
        seen = metrics(simulator.url)
        usage = {"stream_options": {"include_usage": True}, "max_tokens": 2}
        asked = {"messages": [{"role": "user", "content": TEXT * 20}], **usage}
        last = json.loads(events(simulator.url, CHAT, **asked)[-2])["usage"]
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    tokens = answer["usage"]["prompt_tokens"] - 3  # of one of the two equal prompts: three tokens of words less
    assert seen["vllm:prefix_cache_queries_total{}"] == 3 * tokens + 3
    assert seen["vllm:prefix_cache_hits_total{}"] == (tokens - 1) // 16 * 16
    assert 0 < seen["vllm:spec_decode_num_accepted_tokens_total{}"] < seen["vllm:spec_decode_num_draft_tokens_total{}"]
    assert last["prompt_tokens_details"] == {"cached_tokens": (tokens - 1) // 16 * 16}
    assert 0 <= seen["vllm:kv_cache_usage_perc{}"] < 1
    for phase in ("queue", "prefill", "decode", "inference"):
        name = f"vllm:request_{phase}_time_seconds"
        assert seen[f"{name}_count{{}}"] == seen[f'{name}_bucket{{,le="+Inf"}}'] == 3
    assert seen["vllm:spec_decode_num_draft_tokens_total{}"] == 2 * seen["vllm:spec_decode_num_drafts_total{}"]
    assert seen['vllm:cache_config_info{,block_size="16",num_gpu_blocks="200"}'] == 1
    whole, first = "vllm:e2e_request_latency_seconds_sum{}", "vllm:time_to_first_token_seconds_sum{}"
    assert seen[whole] == pytest.approx(seen[first] + seen["vllm:request_decode_time_seconds_sum{}"])
    total = sum(seen[f"vllm:request_{phase}_time_seconds_sum{{}}"] for phase in ("prefill", "decode"))
    assert seen["vllm:request_inference_time_seconds_sum{}"] == pytest.approx(total)


def test_two_pools_and_a_machine_serve_as_one_engine_does() -> None:
    config = replace(PRESETS["h100-llama-3.1-8b"], disaggregated=True, context_length=2048)
    with SimulatorProcess(config) as simulator:
        for length in (1, 30):
            text = events(simulator.url, COMPLETIONS, prompt=[1] * 50, max_tokens=length, ignore_eos=True)
            assert sum('"text":' in event for event in text) == length and text[-1] == "[DONE]"
        wait_for(simulator.url, running=0, waiting=0)


def test_the_context_ends_where_the_memory_does() -> None:
    """A request that the KV memory cannot hold is refused as too long, as a real server's context would be set."""
    with SimulatorProcess(replace(CONFIG, kv_blocks=10)) as simulator:
        (model,) = json.loads(call(simulator.url, "GET", "/v1/models")[2])["data"]
        assert model["max_model_len"] == 160
        status, _, raw = call(simulator.url, "POST", COMPLETIONS, {"prompt": [1] * 100, "max_tokens": 61})
        assert status == 400 and b"160 tokens" in raw
        assert post(simulator.url, COMPLETIONS, prompt=[1] * 100, max_tokens=60, ignore_eos=True)["usage"]


def wait_for(url: str, **wanted: float) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        seen = metrics(url)
        if all(seen[f"vllm:num_requests_{name}{{}}"] == value for name, value in wanted.items()):
            return
        time.sleep(0.02)
    raise AssertionError(f"never saw {wanted}; last {seen}")


def test_clients_that_leave_free_their_place(url: str) -> None:
    aborted = metrics(url)['vllm:request_success_total{,finished_reason="abort"}']
    body = json.dumps({"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
    address = urlsplit(url)
    clients = []
    for _ in range(6):
        client = socket.create_connection((address.hostname, address.port), timeout=5)
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        clients.append(client)
    wait_for(url, running=4, waiting=2)
    for client in clients:
        client.close()
    wait_for(url, running=0, waiting=0)
    assert metrics(url)['vllm:request_success_total{,finished_reason="abort"}'] == aborted + 6


def test_a_key_is_asked_for_when_set() -> None:
    with SimulatorProcess(CONFIG, api_key="s3cret") as simulator:
        assert call(simulator.url, "GET", "/health")[0] == 200
        body = {"prompt": "a", "max_tokens": 1}
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "s3cret"}, 401),
            ({"Authorization": "Bearer s3cret"}, 200),
        ):
            assert call(simulator.url, "POST", COMPLETIONS, body, headers)[0] == status
            assert call(simulator.url, "GET", "/v1/models", headers=headers)[0] == status


def test_an_address_in_use_is_one_sentence() -> None:
    message = r"cannot listen on 127\.0\.0\.1:\d+: address already in use"
    with bind("127.0.0.1", 0) as taken, pytest.raises(UsageError, match=message):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UsageError, match=r"cannot listen on no-such-host\.invalid"):
        bind("no-such-host.invalid", 0)
