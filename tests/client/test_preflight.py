"""Preflight against real sockets: discovery, the model, effects of what is asked for, and the words of each failure."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import anyio
import pytest
import trustme

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import Dialect, RequestOptions
from loadgen.client.discovery import Answer, choose_model, discover, read_answers
from loadgen.client.exchange import HttpxSender, Timeouts
from loadgen.client.fits import check_context
from loadgen.client.preflight import Prepared, preflight, wait_ready, without_refused
from loadgen.client.remedies import PreflightError
from loadgen.client.target import resolve
from loadgen.client.transport import Access, open_client
from loadgen.errors import Exit
from loadgen.simulator.scripted import (
    CU,
    DONE,
    FIN,
    RST,
    C,
    Head,
    J,
    Raw,
    Request,
    ScriptedServer,
    ThreadedServer,
    U,
    error_reply,
    json_reply,
    models_reply,
    reply,
)
from loadgen.workload.plain import PlainWorkload, plain_workload

Handler = Callable[[Request], Any]
NOTHING = Answer("http://h/v1/models")


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
     {"data": [{"id": [], "parent": 4}]}, {"models": "a"}],
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


# --- failures ---------------------------------------------------------------------------------------------------------


def html(status: int, text: str) -> list[Any]:
    return [Head(status, {"Content-Type": "text/html"}), Raw(f"<html><h1>{text}</h1></html>".encode())]


def moved(where: str) -> Any:
    return json_reply({}, 307, Location=where)


WRONG_FIELD = {"detail": [{"loc": ["body", "n"], "msg": "too big", "type": "value_error"}]}
TGI = {"error": "`inputs` must have less than 9 tokens. Given: 16", "error_type": "validation"}
PAGE = b"<html><title>404 Not here</title><p>nginx"

FAILURES: list[tuple[str, Any, list[str], list[str], bool]] = [
    ("401", lambda r: error_reply(401, "no key"), ["401: no key"], ["no key was sent", "LOADGEN_API_KEY"], False),
    ("403", lambda r: error_reply(403, "no"), ["answered 403"], ["--api-key-env", "--api-key-file"], False),
    ("402", lambda r: error_reply(402, "pay"), ["answered 402"], ["credit"], False),
    ("404 path", lambda r: json_reply({"detail": "Not Found"}, 404), ["404: Not Found"], ["check the path"], True),
    ("404 model", lambda r: error_reply(404, "The model `m` is unknown."), ["unknown"], ["--model: m"], True),
    ("400", lambda r: error_reply(400, "temperature must be"), ["400: temperature must be"], ["--dry-run"], False),
    ("400 too long", lambda r: error_reply(400, "maximum context length is 5"), ["context"], ["--input-len"], False),
    ("400 name", lambda r: error_reply(400, "use 'max_completion_tokens' instead"), ["400"], ["--extra-body"], False),
    ("422 list", lambda r: json_reply(WRONG_FIELD, 422), ["422: body.n: too big"], ["--dry-run"], False),
    ("422 TGI", lambda r: json_reply(TGI, 422), ["422: `inputs` must have"], ["--input-len"], False),
    ("400 string", lambda r: json_reply({"error": "bad seed"}, 400), ["400: bad seed"], ["--extra-body"], False),
    ("400 text", lambda r: reply(b"no such tool", 400, "text/plain"), ["400: no such tool"], ["--dry-run"], False),
    ("404 page", lambda r: reply(PAGE, 404, "text/html"), ["404: 404 Not here"], ["path"], True),
    ("moved path", lambda r: moved("/v2/chat"), ["307: redirected to http://", "/v2/chat"], ["give http://"], False),
    ("moved to TLS", lambda r: moved(f"https://{r.headers['host']}{r.path}"), ["https://"], ["write https://"], False),
    ("moved nowhere", lambda r: json_reply({}, 302), ["302: redirected to nowhere"], ["check the address"], False),
    ("429", lambda r: error_reply(429, "slow down"), ["429: slow down"], ["limit"], True),
    ("500", lambda r: error_reply(500, "boom"), ["500: boom"], ["log"], True),
    ("503", lambda r: error_reply(503, "Loading model"), ["503: Loading model"], ["--wait-ready"], True),
    ("502 page", lambda r: html(502, "Bad Gateway"), ["answered 502", "Bad Gateway"], ["--wait-ready"], True),
    ("200 page", lambda r: html(200, "Welcome to nginx"), ["no event stream", "Welcome to nginx"], ["port"], False),
    ("redirect", lambda r: moved("https://other/v1?key=s3cret"), ["307", "https://other/v1"], ["points to"], False),
    ("in stream", lambda r: [J({"error": {"message": "died", "code": 500}}), DONE], ["died"], ["log"], True),
    ("reset", lambda r: [RST], ["broke"], ["log"], True),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "said", "advised", "transient"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES]
)
def test_r07_each_failure_shows_url_status_words_and_remedy(
    answer: Any, said: list[str], advised: list[str], transient: bool
) -> None:
    error = refused(posts(answer))
    assert "http://127.0.0.1:" in error.message
    assert "/v1/chat/completions" in error.message
    assert [part for part in said if part not in error.message] == []
    assert [part for part in advised if part not in error.remedy] == []
    assert error.transient is transient
    assert "s3cret" not in error.message
    assert error.records
    assert all(record.outcome != "ok" and record.phase == "preflight" for record in error.records)


def test_a_wrong_model_names_those_there_are() -> None:
    error = refused(posts(lambda r: error_reply(404, "The model `x` does not exist.")), model="x")
    assert "--model: m" in error.remedy


def test_a_wrong_path_tells_what_was_tried() -> None:
    error = refused(lambda r: json_reply({"detail": "Not Found"}, 404), model="m", suffix="/nowhere")
    assert "/nowhere/v1/chat/completions answered 404" in error.message
    assert "/nowhere/v1/models answered 404" in error.remedy
    unnamed = refused(lambda r: json_reply({"detail": "Not Found"}, 404))
    assert "/v1/models answered 404" in unnamed.message
    assert "--model" in unnamed.remedy


@pytest.mark.parametrize("status", [401, 403, 429, 503, 307])
def test_a_model_list_that_is_refused_is_told_at_once(status: int) -> None:
    error = refused(lambda r: error_reply(status, "for a reason"))
    assert f"/v1/models answered {status}" in error.message
    assert error.records == ()
    assert ready(lambda r: good(r) if r.json else error_reply(status, "no"), model="m").facts.model == "m"


def test_a_key_that_is_refused_is_not_shown() -> None:
    def handler(request: Request) -> Any:
        return error_reply(401, f"bad key {request.headers['authorization']}") if request.json else None

    error = refused(handler, access=Access(headers={"authorization": "Bearer sk-s3cret"}))
    assert "s3cret" not in str(error)
    assert "refused" in error.remedy
    assert "no key was sent" not in error.remedy


def free_port() -> int:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_server_that_is_down() -> None:
    error = refused(None, url=f"http://127.0.0.1:{free_port()}")
    assert "connection refused" in error.message
    assert "port" in error.remedy
    assert error.transient


def test_a_host_that_does_not_exist() -> None:
    error = refused(None, url="http://no-such-host.invalid:8000")
    assert "no-such-host.invalid" in error.message
    assert "spelling" in error.remedy


def certificate(tmp_path: Path) -> tuple[ssl.SSLContext, str]:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return context, str(path)


def test_x07_an_unknown_certificate_and_both_ways_out(tmp_path: Path) -> None:
    context, ca_file = certificate(tmp_path)
    error = refused(None, tls=context)
    assert "TLS" in error.message
    assert "--ca-file" in error.remedy
    assert "--insecure" in error.remedy
    assert not error.transient
    assert ready(None, tls=context, access=Access(ca_file=ca_file)).facts.model == "m"
    assert ready(None, tls=context, access=Access(insecure=True)).facts.model == "m"


def test_tls_spoken_to_a_plain_server() -> None:
    with closing(socket.socket()) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()

        def answer() -> None:
            connection, _ = sock.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        error = refused(None, url=f"https://127.0.0.1:{sock.getsockname()[1]}")
        thread.join(5)
    assert "does not speak TLS" in error.message
    assert "http://" in error.remedy


def test_a_tls_server_spoken_to_plainly(tmp_path: Path) -> None:
    context, _ = certificate(tmp_path)
    with ThreadedServer(posts(good), ssl=context) as server:
        error = refused(None, url=server.url.replace("https", "http"))
    assert "https://" in error.remedy


def test_a_server_that_never_answers_is_a_timeout() -> None:
    async def hang(request: Request) -> Any:
        await asyncio.sleep(30)
        yield DONE

    error = refused(posts(hang), timeouts=Timeouts(3, 0.2, 3, 9))
    assert "no token came in time" in error.message
    assert "--first-token-timeout" in error.remedy


# --- waiting ----------------------------------------------------------------------------------------------------------


def failing(*errors: PreflightError) -> tuple[Callable[[], Awaitable[Prepared]], list[float], Prepared]:
    """An attempt that fails with each error in turn and then succeeds; the times of the attempts; what it gives."""
    left: Iterator[PreflightError] = iter(errors)
    times: list[float] = []
    done = Prepared(resolve("h"), facts=None, options=RequestOptions("m"), records=())  # type: ignore[arg-type]

    async def attempt() -> Prepared:
        times.append(anyio.current_time())
        for error in left:
            raise error
        return done

    return attempt, times, done


def loading() -> PreflightError:
    return PreflightError("loading", "wait", transient=True)


def in_virtual_time(main: Callable[[], Awaitable[Any]]) -> Any:
    import trio.testing

    return anyio.run(main, backend="trio", backend_options={"clock": trio.testing.MockClock(autojump_threshold=0)})


def test_waiting_backs_off_within_bounds_and_tells_each_error() -> None:
    async def main() -> None:
        attempt, times, done = failing(*(loading() for _ in range(8)))
        told: list[float] = []
        assert await wait_ready(attempt, 60, lambda error, pause: told.append(pause)) is done
        assert told == [0.25, 0.5, 1, 2, 4, 5, 5, 5]
        gaps = [b - a for a, b in pairwise(times)]
        assert gaps == pytest.approx(told)

    in_virtual_time(main)


def test_waiting_ends_with_the_last_error() -> None:
    async def main() -> None:
        attempt, times, _ = failing(*(loading() for _ in range(100)))
        start = anyio.current_time()
        with pytest.raises(PreflightError, match="not ready within 20 s: loading"):
            await wait_ready(attempt, 20, lambda error, pause: None)
        assert anyio.current_time() - start == pytest.approx(20)
        assert times[-1] - start < 20

    in_virtual_time(main)


def test_an_attempt_that_hangs_does_not_outlast_the_wait() -> None:
    async def main() -> None:
        with pytest.raises(PreflightError, match="not ready within 3 s"):
            await wait_ready(anyio.sleep_forever, 3, lambda error, pause: None)  # type: ignore[arg-type]

    in_virtual_time(main)


def test_what_waiting_does_not_heal_ends_it_at_once() -> None:
    async def main() -> None:
        attempt, times, _ = failing(loading(), PreflightError("answered 401", "key"))
        with pytest.raises(PreflightError, match="answered 401"):
            await wait_ready(attempt, 60, lambda error, pause: None)
        assert len(times) == 2

    in_virtual_time(main)


def test_a_server_that_starts_late_is_met() -> None:
    async def main() -> None:
        server = ScriptedServer(posts(good), port=free_port())
        target = resolve(server.url)
        ids = count(1)
        seen: list[str] = []
        async with open_client(Access(), 4, tls=False) as client:

            def make_sender(wanted: RequestOptions, dialect: Dialect) -> HttpxSender:
                return HttpxSender(client, target.url, dialect, wanted, zero_ns=0)

            async def attempt() -> Prepared:
                return await preflight(
                    target,
                    DIALECTS["chat"],
                    RequestOptions("", force_length=True),
                    plain_workload(16, 4),
                    client=client,
                    make_sender=make_sender,
                    nonce="n",
                    ids=ids,
                )

            async with anyio.create_task_group() as group:

                async def later() -> None:
                    await anyio.sleep(0.3)
                    await server.start()

                group.start_soon(later)
                result = await wait_ready(attempt, 20, lambda error, pause: seen.append(error.message))
        await server.stop()
        assert result.facts.model == "m"
        assert seen
        assert "connection refused" in seen[0]

    anyio.run(main)
