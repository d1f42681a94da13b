"""Preflight against real sockets: discovery, the model, and effects of what is asked for."""

from __future__ import annotations

import asyncio
import json
import time
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.client.dialects.base import RequestOptions
from loadgen.client.discovery import Answer, choose_model, discover, read_answers
from loadgen.client.fits import check_context
from loadgen.client.preflight import Prepared, without_refused
from loadgen.client.remedies import PreflightError
from loadgen.client.target import resolve
from loadgen.client.transport import Access, open_client
from loadgen.simulator.scripted import (
    DONE,
    FIN,
    C,
    Request,
    ScriptedServer,
    U,
    error_reply,
    json_reply,
    models_reply,
)
from loadgen.workload.plain import plain_workload
from tests.client.preflights import Handler, good, posts, ready, refused, run, words_of

NOTHING = Answer("http://h/v1/models")


# --- what is learnt ---------------------------------------------------------------------------------------------------


def test_a_good_server_is_prepared_with_all_it_told() -> None:
    result, requests = run(None)
    assert isinstance(result, Prepared)
    assert result.facts.model == "m"
    assert result.facts.forced_length is True
    assert result.facts.usage is True
    assert result.facts.continuous_usage is None
    assert result.facts.overhead_tokens == 8
    assert result.facts.warnings == ()
    assert result.options == RequestOptions("m", force_length=True)
    assert [(r.id, r.phase, r.step, r.outcome) for r in result.records] == [
        (f"p-{i:06d}", "preflight", 0, "ok") for i in (1, 2, 3, 4, 5)
    ]
    assert sum(r.method == "POST" for r in requests) == len(result.records)
    assert result.records[-1].output_tokens.count == 16
    assert result.deviation == 0
    assert result.exact == "usage"
    assert all(r.path.startswith("/v1/chat/completions") for r in requests if r.method == "POST")


def test_x02_the_probe_uses_the_runs_own_endpoint() -> None:
    def handler(request: Request) -> Any:
        chat = "chat" in request.path
        return error_reply(404, "Not Found") if chat else good(request, overhead=0) if request.json else None

    assert ready(handler, endpoint="completions").facts.overhead_tokens == 0
    assert "/v1/chat/completions answered 404" in refused(handler).message


@pytest.mark.parametrize(("overhead", "per_word"), [(0, 1.0), (8, 1.0), (31, 1.3), (5, 2.5)])
def test_t04_overhead_and_token_ratio_are_learnt_and_used(overhead: int, per_word: float) -> None:
    result = ready(posts(lambda r: good(r, overhead=overhead, per_word=per_word)), workload=plain_workload(1000, 4))
    assert result.calibration is not None
    assert result.facts.tokens_per_word == pytest.approx(per_word, rel=0.01)
    assert result.facts.overhead_tokens == pytest.approx(overhead + 10 * (per_word - 1), abs=1)
    assert abs(result.deviation or 0) < 0.005
    assert result.facts.warnings == ()
    assert any("1,000" in note for note in result.notes)


def test_t01_a_length_near_the_limit_is_not_overshot_by_the_probes() -> None:
    def handler(request: Request) -> Any:
        if request.method == "GET":
            return models_reply(["m"], max_model_len=4096) if "models" in request.path else None
        if 8 + 1.3 * words_of(request) + request.json["max_tokens"] > 4096:
            return error_reply(400, "This model's maximum context length is 4096 tokens.")
        return good(request, per_word=1.3)

    result = ready(handler, workload=plain_workload(4000, 16))
    assert result.facts.context_length == 4096
    assert result.records[-1].input_tokens.server == pytest.approx(4000, abs=2)


def test_a_context_too_small_is_said_before_any_request() -> None:
    def handler(request: Request) -> Any:
        return models_reply(["m"], max_model_len=2048) if "models" in request.path else None

    result, requests = run(handler, workload=plain_workload(1900, 200))
    assert isinstance(result, PreflightError)
    assert "1,900 tokens of input and 200 tokens of output" in result.message
    assert "--output-len to at most 148" in result.remedy
    assert "--input-len to at most 1848" in result.remedy
    assert all(r.method == "GET" for r in requests)
    assert not result.transient


@pytest.mark.parametrize(
    ("length", "inputs", "outputs", "fits"),
    [(None, 10**9, 10**9, True), (100, 50, 50, True), (100, 50, 51, False), (100, None, 100, True),
     (100, None, 101, False), (100, 101, None, False), (100, 200, 200, False)],
)  # fmt: skip
def test_check_context(length: int | None, inputs: int | None, outputs: int | None, fits: bool) -> None:
    if fits:
        check_context(length, inputs, outputs)
    else:
        with pytest.raises(PreflightError, match="do not fit"):
            check_context(length, inputs, outputs)


def test_a_count_that_does_not_follow_the_text_is_not_believed() -> None:
    result = ready(posts(lambda r: [C("a"), C("b"), FIN("stop"), U(3, 2), DONE]))
    assert result.calibration is None
    assert any("does not follow the text" in w for w in result.facts.warnings)


def test_t06_a_length_that_is_forced_is_checked_by_its_effect() -> None:
    assert ready(posts(lambda r: good(r, early=0.6))).facts.forced_length is True


def test_a_length_that_cannot_be_forced_is_said_and_the_seen_one_planned_with() -> None:
    def handler(request: Request) -> Any:
        yield from (C("a"), C("b"), C("c"), FIN("stop"), U(8 + words_of(request), 3), DONE)

    result = ready(posts(handler))
    assert result.facts.forced_length is False
    assert result.facts.observed_output_tokens == 3
    assert any("3 output tokens where 16 were asked for" in w for w in result.facts.warnings)


STRICT_WORDS = {
    "named": "Unsupported parameter: {}",
    "unnamed": "extra fields not permitted",
    "mistral": '{{"detail":[{{"type":"extra_forbidden","loc":["body","{}"]}}]}}',
}


@pytest.mark.parametrize("words", STRICT_WORDS.values(), ids=STRICT_WORDS)
@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(
    ("forbidden", "force", "usage"),
    [(("ignore_eos", "min_tokens"), False, True), (("ignore_eos", "min_tokens", "stream_options"), False, False)],
)
def test_a_strict_server_is_asked_without_what_it_refuses(
    words: str, status: int, forbidden: tuple[str, ...], force: bool, usage: bool
) -> None:
    def handler(request: Request) -> Any:
        bad = next((name for name in forbidden if name in request.json), None)
        return error_reply(status, words.format(bad)) if bad else good(request, early=0.5)

    result, requests = run(posts(handler))
    assert isinstance(result, Prepared), str(result)
    assert result.options == RequestOptions("m", force_length=force, usage=usage)
    assert result.facts.forced_length is False
    assert result.facts.usage is usage
    assert any("refuses ignore_eos" in w for w in result.facts.warnings)
    assert len(result.records) == sum(r.method == "POST" for r in requests)
    # Once it is known what is refused, it is asked for no more.
    accepted = [i for i, record in enumerate(result.records) if record.outcome == "ok"]
    assert accepted == list(range(accepted[0], len(result.records)))


def test_usage_alone_is_given_up_where_it_alone_is_refused() -> None:
    def handler(request: Request) -> Any:
        if "stream_options" in request.json:
            return error_reply(400, "unknown field stream_options")
        return good(request)

    result = ready(posts(handler))
    assert result.options == RequestOptions("m", force_length=True, usage=False)
    assert result.facts.forced_length is True  # by the finish reason: events are not counted as tokens
    assert any("refuses stream_options" in w for w in result.facts.warnings)


def test_a_refusal_for_another_reason_is_not_tried_around() -> None:
    words = "This model's maximum context length is 50 tokens. However, you requested 80 tokens"
    error = refused(posts(lambda r: error_reply(400, words)))
    assert words in error.message
    assert "--input-len" in error.remedy
    assert len(error.records) == 1
    every = RequestOptions("m", continuous_usage=True, force_length=True)
    assert without_refused(every, words) is None
    assert without_refused(RequestOptions("m", usage=False), "unknown field") is None


def test_per_event_usage_is_kept_only_where_it_comes() -> None:
    def server(per_event: bool, owner: str) -> Handler:
        def handler(request: Request) -> Any:
            if request.method == "GET":
                models = {"data": [{"id": "m", "owned_by": owner}]}
                return json_reply(models) if "models" in request.path else None
            return good(request, per_event=per_event)

        return handler

    told = ready(server(True, "vllm"))
    assert (told.facts.kind, told.facts.continuous_usage, told.options.continuous_usage) == ("vllm", True, True)
    silent = ready(server(False, "vllm"))
    assert (silent.facts.continuous_usage, silent.options.continuous_usage) == (False, False)
    unknown = ready(server(True, "me"))
    assert (unknown.facts.kind, unknown.facts.continuous_usage, unknown.options.continuous_usage) == (None, None, False)


def test_no_usage_at_all_is_said() -> None:
    result = ready(posts(lambda r: good(r, usage=False)))
    assert result.facts.usage is False
    assert result.calibration is None
    assert result.facts.forced_length is True
    assert any("no usage" in w for w in result.facts.warnings)
    assert any("estimates" in w for w in result.facts.warnings)


def test_given_prompts_are_sent_as_they_are(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi there"}], "max_tokens": 3}) + "\n")
    result, requests = run(None, workload=plain_workload(prompts_file=path))
    assert isinstance(result, Prepared)
    assert [r.json["messages"][0]["content"] for r in requests if r.method == "POST"] == ["hi there"]
    assert result.calibration is None


def test_a_long_output_is_not_waited_for_where_the_context_is_known() -> None:
    def handler(request: Request) -> Any:
        if request.method == "GET":
            return models_reply(["m"], max_model_len=9000) if "models" in request.path else None
        return good(request)

    assert ready(handler, workload=plain_workload(64, 4000)).records[-1].output_tokens.count == 256


def test_one_passing_failure_is_forgiven() -> None:
    seen = count()

    def handler(request: Request) -> Any:
        return error_reply(503, "busy") if next(seen) % 2 == 1 else good(request)

    result = ready(posts(handler))
    assert [r.outcome for r in result.records].count("error") >= 1
    assert result.facts.forced_length is True


@pytest.mark.parametrize("end", [[FIN("stop"), DONE], []], ids=["empty", "incomplete"])
def test_answers_that_always_fail_in_themselves_are_left_to_the_run(end: list[Any]) -> None:
    result = ready(posts(lambda r: end if end else [C("a")]))
    assert any("every such request counts as failed" in w for w in result.facts.warnings)


# --- the model --------------------------------------------------------------------------------------------------------


def models(*entries: Any) -> Answer:
    return Answer("http://h/v1/models", 200, {"object": "list", "data": list(entries)})


def test_x04_the_model() -> None:
    one = read_answers(models({"id": "a"}), {})
    two = read_answers(models({"id": "llama-8b"}, {"id": "b"}), {})
    adapters = read_answers(models({"id": "a", "parent": None}, {"id": "x", "parent": "a"}), {})
    aliases = read_answers(models(*({"id": i, "root": "/r", "owned_by": "vllm"} for i in "ab")), {})
    none = read_answers(models(), {})
    missing = read_answers(Answer("http://h/v1/models", 404, None), {})
    assert choose_model(one, None)[0] == "a"
    assert choose_model(adapters, None)[0] == "a"
    assert choose_model(aliases, None)[0] == "a"
    assert choose_model(two, "b") == ("b", (), ())
    assert choose_model(missing, "b") == ("b", (), ())
    name, _, warnings = choose_model(two, "llama-8")
    assert name == "llama-8"
    assert "llama-8b, b" in warnings[0]
    assert "did you mean llama-8b?" in warnings[0]
    with pytest.raises(PreflightError, match="2 models: llama-8b, b"):
        choose_model(two, None)
    for found in (none, missing):
        with pytest.raises(PreflightError) as caught:
            choose_model(found, None)
        assert "--model" in caught.value.remedy


@pytest.mark.parametrize(
    "value",
    [None, 7, "x", [], {}, {"data": None}, {"data": {}}, {"data": [None, 1, "", {}, {"id": 3}, {"id": ""}]},
     {"data": [{"id": [], "parent": 4}]}, {"models": "a"}, {"data": [{"id": "half a character \ud83d"}]}],
)  # fmt: skip
def test_a_model_list_of_any_shape_is_no_crash(value: Any) -> None:
    bodies = {p: Answer(p, 200, value) for p in ("/version", "/info", "/props", "/get_server_info", "/api/version")}
    found = read_answers(Answer("http://h/v1/models", 200, value), bodies)
    assert found.models == ()


SERVERS: list[tuple[str, Any, dict[str, Any], tuple[str | None, str | None, int | None]]] = [
    ("vllm", {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 2048}]}, {"/version": {"version": "0.32.0"}},
     ("vllm", "0.32.0", 2048)),
    ("sglang", {"data": [{"id": "m", "owned_by": "sglang", "max_model_len": 8192}]},
     {"/get_server_info": {"version": "0.5", "tp_size": 2, "model_path": "x"}}, ("sglang", "0.5", 8192)),
    ("tgi", {"data": [{"id": "m", "owned_by": "m"}]},
     {"/info": {"model_id": "m", "version": "3.0", "max_total_tokens": 4096, "router": "r"}}, ("tgi", "3.0", 4096)),
    ("llama.cpp", {"data": [{"id": "m", "owned_by": "llamacpp", "meta": {"n_ctx_train": 9}}]},
     {"/props": {"build_info": "b42", "default_generation_settings": {"n_ctx": 512}}}, ("llama.cpp", "b42", 512)),
    ("ollama", {"data": [{"id": "m", "owned_by": "library"}]}, {"/api/version": {"version": "0.9"}},
     ("ollama", "0.9", None)),
    ("simulator", {"data": [{"id": "m", "owned_by": "loadgen-simulator", "max_model_len": 999}]},
     {"/version": {"version": "1.0"}}, ("simulator", "1.0", 999)),
    ("gateway", {"data": [{"id": "m", "context_length": 131072}]}, {}, (None, None, 131072)),
]  # fmt: skip


@pytest.mark.parametrize(("listing", "pages", "expected"), [s[1:] for s in SERVERS], ids=[s[0] for s in SERVERS])
def test_servers_are_recognised(
    listing: Any, pages: dict[str, Any], expected: tuple[str | None, str | None, int | None]
) -> None:
    def handler(request: Request) -> Any:
        if request.method == "POST":
            return good(request)
        page = {"/pre/v1/models": listing, **{f"/pre{path}": value for path, value in pages.items()}}.get(request.path)
        return json_reply(page) if page else json_reply({"detail": "Not Found"}, 404)

    facts = ready(handler, suffix="/pre").facts
    assert (facts.kind, facts.version, facts.context_length) == expected


def test_vllm_tells_its_cache_settings() -> None:
    text = 'a 1\nvllm:cache_config_info{block_size="16",enable_prefix_caching="True",other="x",engine="0"} 1.0\n'
    listing = models({"id": "m", "owned_by": "vllm"})
    found = read_answers(listing, {"/metrics": Answer("x", 200, None, text)})
    assert found.flags == {"block_size": "16", "enable_prefix_caching": "True"}


def test_a_page_that_hangs_is_waited_for_only_so_long() -> None:
    async def main() -> None:
        async def hang(request: Request) -> Any:
            await asyncio.sleep(60)
            yield DONE

        def handler(request: Request) -> Any:
            return models_reply(["m"]) if "models" in request.path else hang(request)

        async with ScriptedServer(handler) as server, open_client(Access(), 8, tls=False) as client:
            start = time.monotonic()
            found = await discover(client, resolve(server.url), timeout_s=0.2)
            assert time.monotonic() - start < 5
            assert [m.id for m in found.models] == ["m"]

    anyio.run(main)
