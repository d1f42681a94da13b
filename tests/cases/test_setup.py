"""Field cases X01 to X05 and X10: addresses, endpoints, models, keys, TLS and bodies, through whole commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen.simulator.scripted import (
    EOF,
    FIN,
    ROLE,
    C,
    Head,
    J,
    Raw,
    Request,
    T,
    ThreadedServer,
    U,
    error_reply,
    json_reply,
    models_reply,
)
from tests.cases.support import Ran, answer, loadgen, posts, went_well

QUICK = ("-c", "2", "--requests", "4", "--output-len", "4", "--input-len", "40")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def measure(
    handler: Callable[[Request], Any], output: Path, *arguments: str, suffix: str = "", verb: str = "run"
) -> tuple[Ran, list[Request]]:
    """A command against a scripted server; → what it came to, and the requests that the server got."""
    with ThreadedServer(handler) as server:
        ran = loadgen(verb, server.url + suffix, *QUICK, *arguments, output=output)
        assert server.errors == []
        return ran, list(server.requests)


def paths(requests: list[Request], method: str = "POST") -> set[str]:
    return {request.path for request in requests if request.method == method}


def nothing_sent(ran: Ran, requests: list[Request], code: int = 3) -> None:
    """It failed before any load, in a sentence, and left no folder."""
    assert ran.code == code
    assert ran.err.startswith("loadgen: ") or "\nloadgen: " in ran.err
    assert "→" in ran.err, "a remedy is named"
    assert sum(request.method == "POST" for request in requests) <= 3
    assert not list(ran.output.glob("*"))


# --- X01, X02: address and endpoint -----------------------------------------------------------------------------------

# What is added to the server's address → the path that requests must go to.
FORMS = {
    "": CHAT,
    "/": CHAT,
    "/v1": CHAT,
    "/v1/": CHAT,
    "//v1//": CHAT,
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/models": CHAT,
    "/docs": CHAT,
    "/pre/model-a": "/pre/model-a" + CHAT,
    "/pre/model-a/": "/pre/model-a" + CHAT,
    "/pre/model-a/v1": "/pre/model-a" + CHAT,
    "/pre/model-a/v1/chat/completions": "/pre/model-a" + CHAT,
    "/api/v3": "/api/v3/chat/completions",
    "/v1beta/openai": "/v1beta/openai/chat/completions",
    "/openai/deployments/m?api-version=2024-06-01": "/openai/deployments/m/chat/completions?api-version=2024-06-01",
    "?tenant=a": CHAT + "?tenant=a",
}


@pytest.mark.parametrize("suffix", FORMS)
def test_x01_every_form_of_the_address_is_the_one_right_url(suffix: str, tmp_path: Path) -> None:
    with ThreadedServer(posts(answer)) as server:
        ran = loadgen("run", server.url + suffix, *QUICK, "--model", "m", output=tmp_path)
        went_well(ran)
        assert paths(server.requests) == {FORMS[suffix]}
        assert server.url + FORMS[suffix] in ran.said
        assert ran.manifest["target"]["url"] == server.url + FORMS[suffix]
    base = FORMS[suffix].split("?")[0].removesuffix("/chat/completions").removesuffix("/completions")
    assert {path.split("?")[0] for path in paths(server.requests, "GET")} >= {base + "/models"}


def test_x01_without_a_scheme(tmp_path: Path) -> None:
    with ThreadedServer(posts(answer)) as server:
        ran = loadgen("run", server.url.removeprefix("http://"), *QUICK, output=tmp_path)
        went_well(ran)
        assert paths(server.requests) == {CHAT}


@pytest.mark.parametrize(
    ("suffix", "flags"),
    [
        ("/generate_stream", ()),
        ("", ("--endpoint", "generate_stream")),
        ("/v1", ("--endpoint", "generate_stream")),
    ],
)
def test_p25_the_native_tgi_address(suffix: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    def native(request: Request) -> list[Any]:
        n = request.json["parameters"]["max_new_tokens"]
        token = {"token": {"id": 1, "text": "a", "special": False}, "generated_text": None, "details": None}
        details = {"finish_reason": "length", "generated_tokens": n, "input_length": 9}
        return [*[J(token)] * (n - 1), J({**token, "generated_text": "a" * n, "details": details}), EOF]

    ran, requests = measure(posts(native), tmp_path, *flags, suffix=suffix)
    went_well(ran)
    assert paths(requests) == {"/generate_stream"}


@pytest.mark.parametrize("there", ["chat", "completions"])
@pytest.mark.parametrize("asked", ["chat", "completions", None])
def test_x02_only_one_endpoint_exists(there: str, asked: str | None, tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        return answer(request) if ("chat" in request.path) == (there == "chat") else error_reply(404, "Not Found")

    ran, requests = measure(posts(reply), tmp_path, *(("--endpoint", asked) if asked else ()))
    wanted = CHAT if (asked or "chat") == "chat" else COMPLETIONS
    assert paths(requests) == {wanted}, "the probe uses the endpoint of the run"
    if (asked or "chat") == there:
        went_well(ran)
    else:
        nothing_sent(ran, requests)
        assert f"{wanted} answered 404" in ran.said
        assert "--endpoint" in ran.said


# --- X04: the model ---------------------------------------------------------------------------------------------------

# The server's list, --model, the model that is sent (None: it must fail), what must be said.
MODELS: dict[str, tuple[Any, str | None, str | None, tuple[str, ...]]] = {
    "one": (["only"], None, "only", ("only",)),
    "none": ([], None, None, ("lists no model", "--model")),
    "two": (["a-1", "b-2"], None, None, ("a-1, b-2", "--model")),
    "two, one named": (["a-1", "b-2"], "b-2", "b-2", ("b-2",)),
    "two, another named": (["a-1", "b-2"], "c-3", "c-3", ("does not list the model c-3", "a-1, b-2")),
    "nearly right": (["llama-3.1-8b"], "llama-3.1-8B", "llama-3.1-8B", ("did you mean llama-3.1-8b?",)),
    "404": (404, None, None, ("answered 404", "--model")),
    "404, named": (404, "x", "x", ("x",)),
    "500": (500, None, None, ("answered 500",)),
    "a page": ("<html>", None, None, ("instead of a list of models",)),
    "no list": ({"data": 3}, None, None, ("--model",)),
    "one with an adapter": (
        {"data": [{"id": "base", "parent": None}, {"id": "lora", "parent": "base"}]}, None, "base", ("adapter",)),
    "adapters only": ({"data": [{"id": "lora", "parent": "base"}]}, None, "lora", ("lora",)),
    "listed by name": ({"models": [{"name": "own"}]}, None, "own", ("own",)),
    "names and no more": ({"data": ["own"]}, None, "own", ("own",)),
    "a list by itself": (b'[{"id": "own"}]', None, "own", ("own",)),
    "a byte order mark": (b'\xef\xbb\xbf{"data": [{"id": "own"}]}', None, "own", ("own",)),
    "NaN in it": (b'{"data": [{"id": "own", "max_model_len": NaN, "score": Infinity}]}', None, "own", ("own",)),
    "one name twice": (["own", "own"], None, "own", ("own",)),
    "names that are none": ({"data": [{"id": 5}, {"id": None}, {"id": ""}, 7, None]}, None, None, ("lists no model",)),
    "a length that cannot be": ({"data": [{"id": "own", "max_model_len": -5}]}, None, "own", ("own",)),
    "letters that steer a terminal": ({"data": [{"id": "\x1b[31mown\x07"}]}, None, "\x1b[31mown\x07", ("own",)),
    "too many to show": ([f"m-{n}" for n in range(2000)], None, None, ("2000 models", "and 1990 more", "--model")),
}  # fmt: skip


@pytest.mark.parametrize("case", MODELS)
def test_x04_the_model(case: str, tmp_path: Path) -> None:
    listing, asked, sent, said = MODELS[case]

    def handler(request: Request) -> Any:
        if request.method == "POST":
            return answer(request)
        if not request.path.endswith("/models"):
            return None
        if isinstance(listing, int):
            return error_reply(listing, "no list here")
        if isinstance(listing, bytes):
            return [Head(200, {"Content-Type": "application/json"}), Raw(listing), EOF]
        return models_reply(listing) if isinstance(listing, list) else json_reply(listing)

    ran, requests = measure(handler, tmp_path, *(("--model", asked) if asked else ()))
    for words in said:
        assert words in ran.said
    assert not {"\x1b", "\x07"} & {*ran.said}
    if sent is None:
        nothing_sent(ran, requests)
        assert paths(requests) == set()
    else:
        went_well(ran)
        assert {request.json["model"] for request in requests if request.json} == {sent}
        assert ran.manifest["server"]["model"] == sent


def test_x04_a_model_the_server_refuses_names_those_it_has(tmp_path: Path) -> None:
    ran, requests = measure(
        posts(lambda request: error_reply(404, "The model `c` does not exist."), ["a", "b"]), tmp_path, "--model", "c"
    )
    nothing_sent(ran, requests)
    assert "does not exist" in ran.said
    assert "a, b" in ran.said


# --- X05: keys --------------------------------------------------------------------------------------------------------

# Environment, flags (FILE is a file with these bytes), the header that must come.
KEYS: dict[str, tuple[dict[str, str], tuple[str, ...], bytes, str | None]] = {
    "no key": ({}, (), b"", None),
    "an empty key": ({"LOADGEN_API_KEY": ""}, (), b"", None),
    "blanks": ({"LOADGEN_API_KEY": " \n"}, (), b"", None),
    "an empty file": ({}, ("--api-key-file", "FILE"), b"\n", None),
    "an empty variable": ({"MINE": ""}, ("--api-key-env", "MINE"), b"", None),
    "another service's key": ({"OPENAI_API_KEY": "sk-other"}, (), b"", None),
    "the key": ({"LOADGEN_API_KEY": "sk-1"}, (), b"", "Bearer sk-1"),
    "a line end after it": ({"LOADGEN_API_KEY": "sk-1\n"}, (), b"", "Bearer sk-1"),
    "of a variable": ({"LOADGEN_API_KEY": "sk-1", "MINE": "sk-2"}, ("--api-key-env", "MINE"), b"", "Bearer sk-2"),
    "of a file": ({}, ("--api-key-file", "FILE"), b"sk-3\r\n", "Bearer sk-3"),
    "a header wins": ({"LOADGEN_API_KEY": "sk-1"}, ("--header", "authorization: Basic eA=="), b"", "Basic eA=="),
}


@pytest.mark.parametrize("case", KEYS)
def test_x05_a_header_only_with_a_key(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environment, flags, content, header = KEYS[case]
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "key"
    file.write_bytes(content)
    ran, requests = measure(
        posts(answer), tmp_path / "runs", *(str(file) if flag == "FILE" else flag for flag in flags)
    )
    went_well(ran)
    assert {request.headers.get("authorization") for request in requests} == {header}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--api-key-env", "NOT_THERE"), "NOT_THERE"),
        (("--api-key-file", "/not/there"), "/not/there"),
        (("--header", "no colon"), "NAME: VALUE"),
    ],
)
def test_x05_a_key_that_cannot_be_had_is_a_mistake_of_usage(flags: tuple[str, ...], said: str, tmp_path: Path) -> None:
    ran, requests = measure(posts(answer), tmp_path, *flags)
    nothing_sent(ran, requests, code=2)
    assert said in ran.said


@pytest.mark.parametrize("status", [401, 403])
def test_x05_r07_a_key_that_lacks_is_told_before_any_load(status: int, tmp_path: Path) -> None:
    ran, requests = measure(lambda request: error_reply(status, "who are you?"), tmp_path)
    nothing_sent(ran, requests)
    assert f"answered {status}: who are you?" in ran.said
    assert "LOADGEN_API_KEY" in ran.said


# --- X10: the body ----------------------------------------------------------------------------------------------------

THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
# --extra-body → what must be in every body, and what must not.
BODIES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "X10": (
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, **THINKING},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, **THINKING},
        (),
    ),
    "merged deeply": (
        {"stream_options": {"x": 1}},
        {"stream_options": {"include_usage": True, "x": 1}, "stream": True},
        (),
    ),
    "the user wins": (
        {"max_tokens": 3, "min_tokens": 1, "ignore_eos": False, "temperature": 0.5, "model": "mine"},
        {"max_tokens": 3, "min_tokens": 1, "ignore_eos": False, "temperature": 0.5, "model": "mine"},
        (),
    ),
    "the other name of the length": ({"max_completion_tokens": 4}, {"max_completion_tokens": 4}, ("max_tokens",)),
    "usage not wanted": (
        {"stream_options": {"include_usage": False}}, {"stream_options": {"include_usage": False}}, ()),
    "lists are replaced": ({"stop": ["a"]}, {"stop": ["a"]}, ()),
    "null": ({"seed": None}, {"seed": None}, ()),
    "no stream": ({"stream": False}, {"stream": False}, ("stream_options",)),
}  # fmt: skip


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("case", BODIES)
def test_x10_extra_fields_are_merged_and_win(case: str, endpoint: str, tmp_path: Path) -> None:
    extra, wanted, absent = BODIES[case]

    def reply(request: Request) -> Any:
        if request.json.get("stream"):
            return answer(request)
        text = {"message": {"content": "a"}} if "chat" in request.path else {"text": "a"}
        usage = {"prompt_tokens": 40, "completion_tokens": 4}
        return json_reply({"choices": [{"index": 0, **text, "finish_reason": "length"}], "usage": usage})

    ran, requests = measure(
        posts(reply), tmp_path, "--endpoint", endpoint, "--extra-body", json.dumps(extra), "--temperature", "0"
    )
    went_well(ran)
    bodies = [request.json for request in requests if request.method == "POST"]
    for body in bodies:
        assert body | wanted == body
        assert not {*absent} & {*body}
    dry = loadgen("run", "http://127.0.0.1:9", "--extra-body", json.dumps(extra), "--dry-run", "--endpoint", endpoint)
    assert dry.code == 0
    shown = json.loads(dry.out)
    assert shown["url"] == "http://127.0.0.1:9" + (CHAT if endpoint == "chat" else COMPLETIONS)
    assert shown["body"] | wanted == shown["body"]


def test_x10_fields_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "extra.json"
    file.write_text(json.dumps(THINKING))
    ran, requests = measure(posts(answer), tmp_path / "runs", "--extra-body", f"@{file}")
    went_well(ran)
    assert all(request.json | THINKING == request.json for request in requests if request.json)


@pytest.mark.parametrize("text", ["{", "[1]", "3", '{"a": 1} x', "", "@/not/there", "{'a': 1}", '{"a": NaN}'])
def test_x10_a_body_that_is_no_json_object_fails_at_the_start(text: str, tmp_path: Path) -> None:
    ran, requests = measure(posts(answer), tmp_path, "--extra-body", text)
    assert requests == []
    assert ran.code == 2
    assert "--extra-body" in ran.err


# --- exit codes of what cannot be measured ----------------------------------------------------------------------------

ALWAYS: dict[str, tuple[Callable[[Request], Any], str]] = {
    "M10 empty at once": (lambda request: [ROLE], "incomplete"),
    "M10 an end without output": (lambda request: [ROLE, FIN("stop"), U(3, 0)], "empty"),
    "M07 a token, and no end": (lambda request: [C("a")], "incomplete"),
}


@pytest.mark.parametrize(("case", "verb"), [*((case, "run") for case in ALWAYS), ("M10 empty at once", "sweep")])
def test_no_success_is_no_success_of_the_command(case: str, verb: str, tmp_path: Path) -> None:
    handler, outcome = ALWAYS[case]
    with ThreadedServer(posts(handler)) as server:
        flags = ("--requests", "4", *(("--levels", "1,2") if verb == "sweep" else ("-c", "2")))
        ran = loadgen(verb, server.url, *flags, output=tmp_path)
    assert ran.code == 3
    assert {r.outcome for r in ran.records()} == {outcome}
    report = ran.report()
    assert all(step["output_throughput"] is None and step["median_ttft_ms"] is None for step in report["steps"])
    assert report["requests_failed"] == report["requests"]
    assert "output tokens/s" not in ran.out
    assert f"× {outcome}" in ran.out


def test_m07_one_request_of_one_token(tmp_path: Path) -> None:
    with ThreadedServer(posts(lambda request: [T(5), *answer(request)])) as server:
        flags = ("-c", "1", "--requests", "1", "--warmup", "0", "--output-len", "1")
        ran = loadgen("run", server.url, *flags, "--json", output=tmp_path)
    went_well(ran)
    [one] = ran.report()["steps"]
    assert one["completed"] == 1
    assert one["mean_tpot_ms"] is None
    assert one["mean_itl_ms"] is None
    assert one["mean_ttft_ms"] >= 4
