"""Each API over real sockets: what is sent, what is read, what is refused, and one that a user brings."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.client.dialects import DIALECTS, find_dialect
from loadgen.client.dialects.base import MalformedEvent, RequestOptions
from loadgen.client.exchange import Timeouts
from loadgen.client.sse import SSEEvent
from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.simulator.scripted import (
    EOF,
    Event,
    Hang,
    Head,
    J,
    Raw,
    Request,
    T,
    ThreadedServer,
    error_reply,
    json_reply,
    models_reply,
)
from tests.cases.support import MakeSender, Ran, answer, loadgen, ms, near, posts, send_one, went_well

QUICK = ("-c", "2", "--requests", "4", "--output-len", "4", "--input-len", "40")
LINES = Head(headers={"Content-Type": "application/x-ndjson"})


def typed(kind: str, **fields: Any) -> Event:
    return Event((f"event: {kind}", "data: " + json.dumps({"type": kind, **fields})))


def said(text: str) -> Event:
    return typed("response.output_text.delta", output_index=0, delta=text)


def ended(n: int, prompt: int = 9, reason: str | None = "max_output_tokens") -> Event:
    usage = {"input_tokens": prompt, "output_tokens": n}
    details = {"reason": reason} if reason else None
    status = "incomplete" if reason else "completed"
    whole = {"id": "resp_1", "object": "response", "status": status, "incomplete_details": details, "usage": usage}
    return typed(f"response.{status}", response=whole)


def line(**value: Any) -> Raw:
    return Raw(orjson.dumps(value) + b"\n")


# --- one request, both transports -------------------------------------------------------------------------------------

TGI = {"token": {"id": 1, "text": "a", "special": False}, "generated_text": None, "details": None}
TGI_LAST = {**TGI, "generated_text": "aa", "details": {"finish_reason": "length", "generated_tokens": 2, "prefill": []}}
STREAMS: dict[str, list[Any]] = {
    "responses": [typed("response.created", response={"status": "in_progress"}), T(40), said("a"), T(30), said("b"),
                  T(30), ended(2)],
    "generate_stream": [T(40), J(TGI), T(30), J(TGI_LAST), T(30), EOF],
    "ollama_chat": [LINES, T(40), line(message={"content": "a"}, done=False), T(30),
                    line(message={"content": "b"}, done=False), T(30),
                    line(message={"content": ""}, done=True, done_reason="length", prompt_eval_count=9, eval_count=2)],
    "ollama_generate": [LINES, T(40), line(response="a", done=False), T(30), line(response="b", done=False), T(30),
                        line(response="", done=True, done_reason="length", eval_count=2)],
}  # fmt: skip


@pytest.mark.parametrize("flush", ["action", 7])
@pytest.mark.parametrize("endpoint", STREAMS)
def test_a_stream_of_each_api(endpoint: str, flush: Any, make_sender: MakeSender) -> None:
    record = send_one(make_sender, STREAMS[endpoint], endpoint=endpoint, server={"flush": flush})
    assert (record.outcome, record.finish_reason, record.flags) == ("ok", "length", ())
    assert (record.output_tokens.count, record.output_tokens.source) == (2, "usage")
    assert record.events is not None and len(record.events.gap_us) == 2
    assert near(ms(record, "first_token_ns"), 40, late=2000)
    first, last = ms(record, "first_token_ns"), ms(record, "last_token_ns")
    assert first is not None and last is not None and last - first > 15


@pytest.mark.parametrize("endpoint", ["responses", "ollama_chat"])
def test_p21_the_api_s_own_end_is_the_end(endpoint: str, make_sender: MakeSender) -> None:
    """Though the server keeps the body open."""
    script = [*STREAMS[endpoint], Hang(30)]
    record = send_one(make_sender, script, endpoint=endpoint, timeouts=Timeouts(3, 5, 10, 10))
    assert (record.outcome, record.output_tokens.count) == ("ok", 2)
    assert record.done_ns - record.scheduled_ns < 5e9


@pytest.mark.parametrize("endpoint", STREAMS)
def test_a_stream_that_breaks_off(endpoint: str, make_sender: MakeSender) -> None:
    record = send_one(make_sender, [*STREAMS[endpoint][:-3], EOF], endpoint=endpoint)
    assert record.outcome == "incomplete"


@pytest.mark.parametrize(
    ("endpoint", "other"), [("chat", "ollama_chat"), ("ollama_chat", "responses"), ("ollama_chat", "generate_stream")]
)
def test_p27_the_framing_of_another_api_is_refused(endpoint: str, other: str, make_sender: MakeSender) -> None:
    record = send_one(make_sender, STREAMS[other], endpoint=endpoint)
    assert record.error is not None and (record.outcome, record.error.kind) == ("error", "content_type")


def test_a_line_of_300_kb_over_a_socket(make_sender: MakeSender) -> None:
    script = [LINES, line(response="a", done=False), line(context=list(range(60_000)), done=True, eval_count=1)]
    record = send_one(make_sender, script, endpoint="ollama_generate", server={"flush": 1500})
    assert (record.outcome, record.output_tokens.count) == ("ok", 1)


def test_p20_a_line_without_end_fails_that_request(make_sender: MakeSender) -> None:
    script = [LINES, *[Raw(b"x" * 60_000)] * 4, Hang(10)]
    record = send_one(make_sender, script, endpoint="ollama_chat", max_event_bytes=100_000)
    assert record.error is not None and record.error.kind == "event_too_long"


def test_p09_calls_are_shown_where_a_request_failed(make_sender: MakeSender) -> None:
    """Two calls that grow at once, one name in two parts, one without arguments; the last words are an error."""

    def call(index: int, **function: str) -> Any:
        return J({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": index, "function": function}]}}]})

    script = [
        call(0, name="get_", arguments=""), call(1, name="now", arguments=""), call(0, name="weather"),
        *(call(0, arguments=part) for part in ('{"city"', ":", '"Paris"', "}")), call(1, arguments=""),
        J({"error": {"message": "worker died"}}),
    ]  # fmt: skip
    record = send_one(make_sender, script)
    assert record.outcome == "error"
    assert record.excerpt == 'get_weather({"city":"Paris"})\nnow()'
    assert record.events is not None and len(record.events.gap_us) == 7


WHOLE: dict[str, Any] = {
    "chat": {"choices": [{"index": 0, "message": {"content": "a b"}, "finish_reason": "length"}],
             "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
    "completions": {"choices": [{"index": 0, "text": "a b", "finish_reason": "length"}],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
    "responses": {"id": "r", "object": "response", "status": "incomplete",
                  "incomplete_details": {"reason": "max_output_tokens"},
                  "usage": {"input_tokens": 9, "output_tokens": 4},
                  "output": [{"type": "message", "content": [{"type": "output_text", "text": "a b"}]}]},
    "ollama_chat": {"message": {"role": "assistant", "content": "a b"}, "done": True, "done_reason": "length",
                    "prompt_eval_count": 9, "eval_count": 4},
    "ollama_generate": {"response": "a b", "done": True, "done_reason": "length", "prompt_eval_count": 9,
                        "eval_count": 4},
}  # fmt: skip


@pytest.mark.parametrize("asked", [True, False], ids=["a stream asked for", "M19 none asked for"])
@pytest.mark.parametrize("endpoint", WHOLE)
def test_m19_whole_answers(endpoint: str, asked: bool, make_sender: MakeSender) -> None:
    seen: list[Request] = []

    def handler(request: Request) -> Any:
        seen.append(request)
        return [T(40), *json_reply(WHOLE[endpoint])]

    options = RequestOptions("m", stream=asked)
    record = send_one(make_sender, handler, endpoint=endpoint, options=options, timeouts=Timeouts(3, 5, 5, 20))
    assert (record.outcome, record.finish_reason, record.output_tokens.count) == ("ok", "length", 4)
    assert record.flags == ("not_streamed",)
    assert (record.first_token_ns, record.first_content_ns) == (None, None)
    assert near(ms(record, "last_token_ns"), 40, late=2000)
    assert seen[0].json["stream"] is asked
    assert seen[0].headers["accept"] == (DIALECTS[endpoint].media if asked else "application/json")


def test_m19_a_whole_answer_is_not_waited_for_as_a_first_token(make_sender: MakeSender) -> None:
    script = [T(300), *json_reply(WHOLE["chat"])]
    limits = Timeouts(3, 0.1, 0.1, 20)
    assert send_one(make_sender, script, options=RequestOptions("m", stream=False), timeouts=limits).outcome == "ok"
    assert send_one(make_sender, script, timeouts=limits).outcome == "timeout"


# --- whole commands ---------------------------------------------------------------------------------------------------


def responses_server(request: Request) -> Iterator[Any]:
    """Stops early unless the length is forced; one token a word, 8 around the text."""
    body = request.json
    n = body["max_output_tokens"] if body.get("ignore_eos") else 1
    yield T(20)
    yield from (said("a ") for _ in range(n))
    yield ended(n, 8 + len(body["input"].split()), "max_output_tokens" if n == body["max_output_tokens"] else None)


def ollama_server(request: Request) -> Iterator[Any]:
    body = request.json
    n = body["options"]["num_predict"]
    text = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
    yield LINES
    yield T(20)
    for _ in range(n):
        yield line(response="a ", message={"content": "a "}, done=False)
    count = 8 + len(text.split())
    yield line(message={"content": ""}, done=True, done_reason="length", prompt_eval_count=count, eval_count=n)


def tgi_server(request: Request) -> Iterator[Any]:
    parameters = request.json["parameters"]
    n, text = parameters["max_new_tokens"], request.json["inputs"]
    details = {"finish_reason": "length", "generated_tokens": n, "input_length": 8 + len(text.split())}
    yield T(20)
    yield from [J(TGI)] * (n - 1)
    yield J({**TGI, "generated_text": "a" * n, "details": details})


SERVERS = {
    "responses": (responses_server, "/v1/responses"),
    "ollama_chat": (ollama_server, "/api/chat"),
    "ollama_generate": (ollama_server, "/api/generate"),
}


def run(handler: Any, output: Path, *arguments: str, suffix: str = "") -> tuple[Ran, list[Request]]:
    with ThreadedServer(handler) as server:
        ran = loadgen("run", server.url + suffix, *QUICK, *arguments, output=output)
        assert server.errors == []
        return ran, list(server.requests)


@pytest.mark.parametrize("by_flag", [True, False], ids=["flag", "address"])
@pytest.mark.parametrize("endpoint", SERVERS)
def test_a_run_of_each_api(endpoint: str, by_flag: bool, tmp_path: Path) -> None:
    handler, path = SERVERS[endpoint]
    flags = ("--endpoint", endpoint) if by_flag else ()
    ran, requests = run(posts(handler), tmp_path, *flags, suffix="" if by_flag else path)
    went_well(ran)
    assert {request.path for request in requests if request.method == "POST"} == {path}
    records = ran.records("measured")
    assert {(r.outcome, r.output_tokens.count, r.input_tokens.server) for r in records} == {("ok", 4, 40)}
    assert ran.manifest["target"]["endpoint"] == endpoint
    if endpoint == "responses":
        assert ran.manifest["server"]["forced_length"] is True


def test_workers_speak_every_api(tmp_path: Path) -> None:
    ran, _ = run(posts(responses_server), tmp_path, "--endpoint", "responses", "--workers", "2")
    went_well(ran)
    assert {record.outcome for record in ran.records("measured")} == {"ok"}


@pytest.mark.parametrize("route", ["/generate_stream", "/v1/chat/completions"])
def test_tgi_tells_of_itself(route: str, tmp_path: Path) -> None:
    """An older one lists no models: its /info has all there is to know."""
    info = {"model_id": "org/m", "version": "2.4.0", "max_total_tokens": 4096, "max_concurrent_requests": 128,
            "router": "text-generation-router"}  # fmt: skip

    def handler(request: Request) -> Any:
        if request.method == "GET":
            return json_reply(info) if request.path == "/info" else error_reply(404, "not here")
        if request.path != route:
            return error_reply(404, "not here")
        return tgi_server(request) if request.path == "/generate_stream" else answer(request)

    ran, requests = run(handler, tmp_path, suffix=route)
    went_well(ran)
    server = ran.manifest["server"]
    assert (server["kind"], server["version"], server["model"]) == ("tgi", "2.4.0", "org/m")
    assert server["context_length"] == 4096
    assert server["flags"]["max_concurrent_requests"] == 128
    assert "at most 128 requests at once" in ran.said
    assert sum(request.path == route for request in requests) == len(ran.records())


def test_tgi_s_own_words_when_a_request_is_not_valid(tmp_path: Path) -> None:
    words = "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 64. Given: 61 `inputs` tokens"
    reply = json_reply({"error": words, "error_type": "validation"}, 422)
    ran, _ = run(posts(lambda request: reply), tmp_path, "--endpoint", "generate_stream")
    assert ran.code == 3
    assert words in ran.said and "lower --input-len" in ran.said


def test_m19_a_run_without_streams(tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        n, words = request.json["max_tokens"], len(request.json["messages"][0]["content"].split())
        usage = {"prompt_tokens": 8 + words, "completion_tokens": n}
        return [T(20), *json_reply({**WHOLE["chat"], "usage": usage})]

    ran, requests = run(posts(reply), tmp_path, "--no-stream")
    went_well(ran)
    assert all(request.json["stream"] is False and "stream_options" not in request.json
               for request in requests if request.method == "POST")  # fmt: skip
    [step] = ran.report()["steps"]
    assert step["median_ttft_ms"] is None and step["median_itl_ms"] is None and step["median_tpot_ms"] is None
    assert step["median_e2el_ms"] > 15
    assert step["output_throughput"] > 0
    assert "n/a (not streaming)" in ran.out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--no-stream", "--slo", "ttft_p95=1s"), "no ttft to judge"),
        (("--no-stream", "--endpoint", "generate_stream"), "always streams"),
        (("--endpoint", "embeddings"), "makes embeddings"),
        (("--endpoint", "rerank"), "ranks texts"),
        (("--endpoint", "chats"), "there is no endpoint"),
        (("--endpoint", "no_such_module:X"), "No module named"),
        (("--endpoint", "json:NOTHING"), "NOTHING"),
        (("--endpoint", "json:loads"), "has no path"),
    ],
)
def test_what_cannot_be_meant(flags: tuple[str, ...], says: str, tmp_path: Path) -> None:
    ran, requests = run(posts(answer), tmp_path, *flags)
    assert (ran.code, requests) == (2, [])
    assert says in ran.said and "→" in ran.err


# --- models that generate no text -------------------------------------------------------------------------------------

TEXTLESS: dict[str, tuple[Any, dict[str, Any]]] = {  # the answer to a POST, other pages
    "vllm": (error_reply(400, "The model does not support Chat Completions API"), {}),
    "ollama": (json_reply({"error": '"nomic-embed-text" does not support chat'}, 400), {}),
    "llama.cpp": (error_reply(501, "This server does not support completions. Start it without `--embeddings`"), {}),
    "by its name": (
        json_reply({"detail": "Not Found"}, 404),
        {"/v1/models": {"data": [{"id": "BAAI/bge-m3", "owned_by": "vllm"}]}},
    ),
    "by what it can do": (
        None, {"/v1/models": {"data": [{"id": "m", "capabilities": ["embed"], "owned_by": "infinity"}]}}),
    "text-embeddings-inference": (
        None,
        {"/info": {"model_id": "BAAI/bge", "model_type": {"embedding": {"pooling": "cls"}}, "version": "1.5"},
         "/v1/models": None},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTLESS)
def test_a_model_that_generates_no_text(case: str, tmp_path: Path) -> None:
    reply, pages = TEXTLESS[case]

    def handler(request: Request) -> Any:
        path = request.path
        if request.method == "POST":
            assert reply is not None, "it is known before anything is sent"
            return reply
        page = pages.get(path, models_reply(["m"]) if path == "/v1/models" else None)
        return page if isinstance(page, list) else json_reply(page) if page else error_reply(404, "Not Found")

    ran, _ = run(handler, tmp_path)
    assert ran.code == 3
    assert "embed" in ran.said and "name a model that generates text with --model" in ran.said


def test_a_model_that_embeds_is_left_aside_where_another_generates(tmp_path: Path) -> None:
    listing = {"data": [{"id": "e", "capabilities": ["embed"]}, {"id": "g", "capabilities": ["completion"]}]}

    def handler(request: Request) -> Any:
        return answer(request) if request.method == "POST" else json_reply(listing)

    ran, _ = run(handler, tmp_path)
    went_well(ran)
    assert ran.manifest["server"]["model"] == "g"
    assert "e left aside" in ran.said


# --- one that a user brings -------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()


def talk_server(request: Request) -> Iterator[Any]:
    """The imaginary server of the page."""
    assert request.path == "/talk"
    n, words = request.json["max_tokens"], len(request.json["text"].split())
    yield LINES
    yield T(20)
    yield line(think="hm", tokens=1)
    yield from [line(say=" a", tokens=1)] * (n - 1)
    yield Raw(b'{"end": "length", "in": %d, "out": %d}\n' % (8 + words, n))


@pytest.mark.parametrize("workers", ["1", "2"])
def test_the_documented_dialect_measures_its_server(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "talk.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "talk", raising=False)
    ran, _ = run(posts(talk_server), tmp_path / "runs", "--endpoint", "talk:Talk", "--workers", workers)
    went_well(ran)
    records = ran.records("measured")
    assert {(r.outcome, r.finish_reason, r.output_tokens.count, r.input_tokens.server) for r in records} == {
        ("ok", "length", 4, 40)
    }
    for record in records:
        assert record.events is not None and list(record.events.tokens) == [1, 1, 1, 1]
        assert record.first_token_ns is not None and record.first_content_ns is not None
        assert record.first_content_ns >= record.first_token_ns


def test_the_page_names_every_endpoint() -> None:
    for name, dialect in DIALECTS.items():
        assert f"| `{name}`" in PAGE and dialect.path in PAGE


def test_a_dialect_that_cannot_be_loaded_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_dialect.py").write_text("raise RuntimeError('not today')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(UsageError, match="RuntimeError: not today"):
        find_dialect("broken_dialect:X")


def test_a_prompt_s_own_body_reaches_each_api() -> None:
    own = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    for name in ("chat", "responses", "ollama_chat"):
        body = DIALECTS[name].body(Prompt(body=own), RequestOptions("m"))
        assert "x" in json.dumps(body) and "3" in json.dumps(body)


def test_a_fault_in_ones_own_dialect_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "faulty_dialect.py").write_text(
        "class X:\n"
        "    path, at_root, media, names_model, whole = '/x', True, 'application/x-ndjson', False, False\n"
        "    def body(self, prompt, options):\n"
        "        return {}['text']\n"
        "    def read(self, event):\n"
        "        return 1 / 0\n"
        "    def read_whole(self, payload):\n"
        "        return None\n"
    )
    monkeypatch.chdir(tmp_path)
    faulty = find_dialect("faulty_dialect:X")
    assert faulty.path == "/x"
    with pytest.raises(UsageError, match="faulty_dialect:X cannot make a body: KeyError: 'text'"):
        faulty.body(Prompt("a", 1), RequestOptions("m"))
    with pytest.raises(MalformedEvent, match="ZeroDivisionError"):
        faulty.read(SSEEvent("message", b"{}"))
    with pytest.raises(MalformedEvent, match="NoneType"):
        faulty.read_whole(b"{}")
