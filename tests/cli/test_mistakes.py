"""A newcomer's mistakes: each one sentence that names the fault, one that says what to do, and the right exit code."""

from __future__ import annotations

import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from loadgen.simulator.scripted import Raw, Request, ThreadedServer, error_reply, json_reply, models_reply, reply
from tests.cli.command import ROOT, Call, Said, answer, generations, run, serve

WORKED = ROOT / "tests" / "data" / "worked-example.csv"
NOWHERE = "http://127.0.0.1:9"  # the discard port: nothing listens
SECRET = "sk-very-secret-0123456789"


pytestmark = pytest.mark.usefixtures("elsewhere")


def is_one_sentence(said: Said, code: int, *words: str) -> None:
    """The fault, then the remedy; nothing on stdout, no traceback, no control characters."""
    assert said.code == code, said.err
    assert said.out == ""
    told = [line for line in said.err.splitlines() if not line.startswith("… ")]
    assert len(told) == 2, said.err
    assert told[0].startswith("loadgen: ") and told[1].startswith("  → ")
    assert len(told[1]) > 8, "a remedy says something"
    assert not re.search(r"Traceback|Error\(|[\x00-\x08\x0b-\x1f\x7f]", said.err), said.err
    for word in words:
        assert word in said.err, said.err


# --- what was typed -------------------------------------------------------------------------------------------------

SLO_TEXTS = [
    ("", "empty"),
    ("ttft_p95", "has no limit"),
    ("foo=5ms", "'foo'"),
    ("p95=500ms", "'p95'"),
    ("ttft_95=500ms", "'ttft_95'"),
    ("ttft_p95=-5ms", "not a time above zero"),
    ("ttft_p95=0", "not a time above zero"),
    ("ttft_p95=5 parsecs", "'parsecs'"),
    ("ttft_p95=5furlongs", "unknown unit"),
    ("ttft_p95=abc", "no number"),
    ("ttft_p95=", "no number"),
    ("ttft_p100=5ms", "percentile 100"),
    ("ttft_p0=5ms", "percentile 0"),
    ("ttft_p95>500ms", "above its limit"),
    ("ttft_p95=0,5s", "comma"),
    ("attainment=95%", "no objective that bounds each request"),
    ("tpot=50ms attainment=100%", "not an attainment"),
    ("ttft=5ms ttft=6ms", "given twice"),
    ("itl=5ms", "many ITLs"),
]

LEVEL_LISTS = [
    "",
    " ",
    "a",
    "0,1",
    "1,1",
    "8,4",
    "1.5",
    "-1",
    "1;2",
    "1-8",
    "²",
    "1,,x",
    "1e3",
    "٣",
    "1,2" + "0" * 5000,
]

VALUES = [  # flag, text, words of the message
    *(("--duration", text, "--duration") for text in ("0", "abc", "-5s", "5x", "1h30", "inf", "", "1e3", "nan")),
    *(("--max-time", text, "--max-time") for text in ("soon", "0s", "-1")),
    *(("--wait-ready", text, "--wait-ready") for text in ("", "yes")),
    *(("--timeout", text, "--timeout") for text in ("0", "never")),
    *(("--requests", text, "--requests") for text in ("0", "-3", "1.5", "ten", "", "1.0001k", "1e3", "9" * 400)),
    *(("--max-requests", text, "--max-requests") for text in ("0", "x")),
    *(("--max-tokens", text, "--max-tokens") for text in ("0", "1.5", "5MM")),
    *(("-c", text, "whole number of at least 1") for text in ("0", "x", "-1", "1,2", "8.0", "", "٣")),
    *(("--warmup", text, "whole number of at least 0") for text in ("-1", "x")),
    *(("--seed", text, "whole number") for text in ("x", "-1", "1.5")),
    *(("--max-error-rate", text, "not a share") for text in ("2", "101%", "x", "nan", "-1%", "")),
    *(("--temperature", text, "not a number") for text in ("hot", "nan", "-1", "inf")),
    *(("--top-p", text, "from 0 to 1") for text in ("5", "-0.1", "nan")),
    *(("--input-len", text, "not a length in tokens") for text in ("0", "a-b", "200-100", "-5", "", "1.5")),
    *(("--output-len", text, "not a length in tokens") for text in ("0", "x")),
    *(("--header", text, "NAME: VALUE") for text in ("nocolon", ": x", "a b: c", "")),
    *(("--header", text, "line break or a letter outside ASCII") for text in ("X: é", "X: a\nY: b")),
    *(
        ("--extra-body", text, "not JSON")
        for text in ("{", "", "{'a': 1}", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 9999)
    ),
    ("--extra-body", '{"seed": 18446744073709551616}', "past 64 bits"),
    *(("--extra-body", text, "JSON object") for text in ("[1]", "3", "null", '"x"')),
    *(("--extra-body", text, "cannot be read") for text in ("@", "@/nonexistent", "@/tmp")),
    *(("--describe", text, "KEY=VALUE") for text in ("gpu", "=x", "")),
    *(("--price", text, "not a price") for text in ("abc", "-1/2", "nan", "inf", "1/2/3", "/", "")),
    *(("--proxy", text, "HTTP proxy") for text in ("foo", "socks5://x:1", "http://", "ftp://x:1", "http://x:y", "")),
    *(("--model", text, "UTF-8") for text in ("\udcff",)),
    *(("--endpoint", text, "'chat', 'completions'") for text in ("chats", "CHAT2", "")),
    ("--effort", "fast", "'quick', 'normal', 'thorough'"),
    ("--api-key-file", "/nonexistent", "No such file"),
    ("--api-key-file", "/tmp", "directory"),
    ("--api-key-env", "LOADGEN_NO_SUCH_VARIABLE", "LOADGEN_NO_SUCH_VARIABLE"),
    ("--ca-file", "/nonexistent", "does not exist"),
    ("--client-cert", "/nonexistent", "does not exist"),
    ("--prompts", "/nonexistent", "No such file"),
    ("--prompts", "/tmp", "directory"),
    ("--prompts", "/dev/null", "holds no prompt"),
    ("--output", "", "--output is empty"),
]

COMBINATIONS = [
    ([], "nothing to measure", "--simulate"),
    ([""], "the address of the server is empty", "http://HOST:PORT"),
    ([NOWHERE, "--simulate"], "exclude each other", "leave one"),
    ([NOWHERE, "ftp://more"], "scheme ftp", "http://HOST:PORT"),
    ([NOWHERE, "--duration", "5s", "--requests", "9"], "exclude each other", "leave one"),
    ([NOWHERE, "--max-cost", "5"], "--max-cost needs prices", "--price 0.15/0.60"),
    ([NOWHERE, "--price", "1/2"], "--price does nothing without --max-cost", "--max-cost"),
    ([NOWHERE, "--max-cost", "0", "--price", "1/2"], "not a number above 0", "--help"),
    ([NOWHERE, "--max-cost", "nan", "--price", "1/2"], "not a number above 0", "--help"),
    ([NOWHERE, "--same-text"], "--same-text needs a seed", "--seed"),
    ([NOWHERE, "--insecure", "--ca-file", str(WORKED)], "exclude each other", "leave one"),
    ([NOWHERE, "--proxy", "http://p:1", "--trust-env"], "exclude each other", "leave one"),
    ([NOWHERE, "--api-key-env", "A", "--api-key-file", "b"], "exclude each other", "leave one"),
    ([NOWHERE, "--slo"], "requires an argument", "--help"),
    ([NOWHERE, "--concurency", "4"], "no option --concurency", "did you mean --concurrency"),
    ([NOWHERE, "--conc", "4"], "no option --conc", "did you mean --concurrency"),
    ([NOWHERE, "--zzz"], "no option --zzz", "--help"),
    ([NOWHERE, "--endpoint", "chat", "--prompts", str(WORKED)], "line 1 of", "one JSON value a line"),
    ([NOWHERE + "/v1/completions", "--endpoint", "chat"], "is the completions endpoint", "leave one"),
    (["http://"], "names no host", "http://HOST:PORT"),
    (["ftp://x"], "scheme ftp", "http://HOST:PORT"),
    (["http:/x"], "not an address", "http://HOST:PORT"),
    (["localhost:abc"], "not a number from 1 to 65535", "http://HOST:PORT"),
    (["http://127.0.0.1:99999"], "not a number from 1 to 65535", "http://HOST:PORT"),
    (["http://no such host"], "space", "http://HOST:PORT"),
    ([f"http://me:{SECRET}@127.0.0.1:9"], "user name or password", "--header"),
]


@pytest.mark.parametrize(("text", "words"), SLO_TEXTS)
@pytest.mark.parametrize("verb", ["run", "sweep"])
def test_objectives_that_cannot_be_meant(call: Call, verb: str, text: str, words: str) -> None:
    is_one_sentence(call(verb, NOWHERE, "--slo", text), 2, words)


@pytest.mark.parametrize("text", LEVEL_LISTS)
def test_lists_of_levels_that_cannot_be_meant(call: Call, text: str) -> None:
    is_one_sentence(call("sweep", NOWHERE, "--levels", text), 2, "--levels")


@pytest.mark.parametrize(("flag", "text", "words"), VALUES)
def test_values_that_cannot_be_meant(call: Call, tmp_path: Path, flag: str, text: str, words: str) -> None:
    is_one_sentence(call("run", NOWHERE, flag, text), 2, words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("args", "fault", "remedy"), COMBINATIONS)
def test_what_cannot_be_meant_together(call: Call, tmp_path: Path, args: list[str], fault: str, remedy: str) -> None:
    said = call("run", *args)
    is_one_sentence(said, 2, fault)
    assert remedy in said.err.splitlines()[-1]
    assert SECRET not in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("args", "fault", "remedy"),
    [
        (["sweep", NOWHERE, "--start", "8", "--max-level", "4"], "is below the first", "--max-level"),
        (["sweep", NOWHERE, "--factor", "1"], "not a number above 1", "--help"),
        (["sweep", NOWHERE, "--factor", "nan"], "not a number above 1", "--help"),
        (["sweep", NOWHERE, "--levels", "1,2", "--start", "2"], "exclude each other", "leave one"),
        (["sweep", NOWHERE, "--levels", "1,2", "--max-level", "4"], "exclude each other", "leave one"),
        (["sweep", NOWHERE, "--demo"], "simulated server", "--simulate"),
        (["sweep", NOWHERE, "--repeats", "3"], "3 repeats do not tell", "at least 5"),
        (["sweep", NOWHERE, "--repeats", "999999999"], "from 1 to 100", "--help"),
        (["sweep", NOWHERE, "--repeats", "5", "--rate", "5"], "exclude each other", "leave one"),
        (["sweep", NOWHERE, "--precision", "2"], "not a share", "--help"),
        (["sweep", NOWHERE, "--precision", "0.1%"], "cannot be asked for to ±0.1 %", "from 1% to 50%"),
        (["sweep", NOWHERE, "--precision", "2%", "--repeats", "5"], "exclude each other", "leave one"),
        (["sweep", NOWHERE, "--precision", "2%", "--rate", "5"], "exclude each other", "leave one"),
        (["sweep", NOWHERE, "--precision", "2%", "--requests", "50"], "exclude each other", "leave one"),
        (
            ["sweep", NOWHERE, "--precision", "2%", "--levels", "1,2", "--slo", "ttft_p95=1s"],
            "without objectives",
            "leave --precision",
        ),
        (["sweep", NOWHERE, "--factor", "1.000001", "--max-level", "9" * 18], "too little", "1.01 to"),
        (["sweep", NOWHERE, "--rate", "1", "--factor", "1.000001"], "too little", "1.01 to"),
        (["sweep", NOWHERE, "--rate", "5", "--arrivals", "ramp:1-20:60s"], "cannot raise arrivals", "loadgen run"),
        (["plan", "--model", "qwen3-8b", "--utilisation", "nan"], "above 0 and at most 1", "--help"),
        (["plan", "--model", "qwen3-8b", "--utilisation", "0"], "above 0 and at most 1", "--help"),
        (["plan", "--model", "qwen3-8b", "--runtime", "inf"], "not a number from 0", "--help"),
        (["swep", NOWHERE], "no verb swep", "did you mean sweep?"),
        (["benchmark"], "no verb benchmark", "the verbs are sweep, run"),
        (["--verison"], "no option --verison", "did you mean --version?"),
        (["run", NOWHERE, "-c", "99999999"], "open files", "in flight"),
        (["simulate", "--port", "x"], "--port", "--help"),
        (["simulate", "--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1", "--host"),
        (["simulate", "--host", "no-such-host.invalid"], "cannot listen", "--host"),
    ],
)
def test_verbs_and_their_own_flags(call: Call, args: list[str], fault: str, remedy: str) -> None:
    said = call(*args)
    is_one_sentence(said, 2, fault)
    assert remedy in said.err.splitlines()[-1]


def test_without_a_verb_the_help_is_shown(call: Call) -> None:
    said = call()
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Usage: loadgen") and "Examples:" in said.err


@pytest.mark.parametrize("url", ["http://[::1", "[::1", "http://]", "http://[v1.x]:80", "http://[::1%25lo", "//["])
def test_half_an_address_is_a_sentence(call: Call, url: str) -> None:
    for verb in ("run", "sweep"):
        is_one_sentence(call(verb, url), 2, url.removeprefix("//")[:4], "")


def test_a_secret_in_a_bad_header_is_not_repeated(call: Call) -> None:
    for text in (f"Authorization: Bearer {SECRET}\nX: y", f"Bearer {SECRET}"):
        assert SECRET not in call("run", NOWHERE, "--header", text).err


@pytest.mark.parametrize(
    ("data", "number", "words"),
    [
        (b'"a"\n{bad\n', 2, "not JSON"),
        (b'"a"\n\n{"x": 1}\n', 3, "neither messages nor a prompt"),
        (b"\xff\xfe\n", 1, "not JSON"),
        (b"[1]\n", 1, "neither a text nor an object"),
        (b'{"prompt": ""}\n', 1, "prompt"),
        (b'{"prompt": "a", "output_len": 0}\n', 1, "output_len is 0"),
        (b'{"messages": []}\n', 1, "messages"),
    ],
)
def test_prompts_files_name_their_bad_line(call: Call, tmp_path: Path, data: bytes, number: int, words: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(data)
    is_one_sentence(call("run", NOWHERE, "--prompts", file), 2, f"line {number} of {file}", words)


# --- the output -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "/below"])
def test_an_output_that_is_a_file_is_refused_before_anything_is_sent(call: Call, tmp_path: Path, below: str) -> None:
    (tmp_path / "taken").write_text("mine")
    with ThreadedServer(serve()) as server:
        is_one_sentence(call("run", server.url, "-o", f"{tmp_path}/taken{below}"), 2, "taken is a file", "--output")
        assert server.requests == []
    assert (tmp_path / "taken").read_text() == "mine"


def test_x11_a_folder_that_cannot_be_made(call: Call) -> None:
    with ThreadedServer(serve()) as server:
        is_one_sentence(
            call("run", server.url, "-o", "/proc/loadgen"), 2, "/proc/loadgen cannot be written", "--output"
        )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_x11_a_folder_of_somebody_else(tmp_path: Path) -> None:
    """As an ordinary user: root may write anywhere."""
    tmp_path.chmod(0o755)
    with ThreadedServer(serve()) as server:
        # Interpreter and packages may lie where that user cannot read: they are loaded before it is made ordinary.
        code = "import os, sys, loadgen.cli.measure, loadgen.runner, loadgen.report.live, loadgen.cli.main as m"
        code += "; os.setuid(65534); m.main(sys.argv[1:])"
        said = run_code(code, "run", server.url, "-o", str(tmp_path / "results"))
        assert server.requests == []
    is_one_sentence(said, 2, str(tmp_path), "cannot be written", "--output")


def run_code(code: str, *args: str) -> Said:
    done = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, timeout=60, check=False)
    return Said(done.returncode, done.stdout.decode(), done.stderr.decode())


# --- the server -----------------------------------------------------------------------------------------------------


def only(*answers: object) -> object:
    return lambda request: answers[0]


def refusing(status: int, words: str) -> object:
    def handler(request: Request) -> object:
        return models_reply(["m"]) if request.method == "GET" else error_reply(status, words)

    return handler


def with_key(request: Request) -> object:
    if request.headers.get("authorization") != f"Bearer {SECRET}":
        return error_reply(401, "Incorrect API key provided")
    return models_reply(["m"]) if request.method == "GET" else answer(request)


def by_model(request: Request) -> object:
    if request.method == "GET":
        return models_reply(["llama-3.1-8b"]) if request.path == "/v1/models" else None
    if request.json["model"] != "llama-3.1-8b":
        return error_reply(404, f"The model `{request.json['model']}` does not exist.", "NotFoundError")
    return answer(request)


HTML = b"<html><head><title>Welcome to nginx!</title></head><body><h1>Welcome</h1></body></html>"

SERVERS = [  # handler, what follows its URL, more flags, fault, remedy
    (serve(), "/nope", [], "/nope/v1/models answered 404", "check the address"),
    (serve(), "/v1/nope", [], "answered 404", "check the address"),
    (serve(), "/v1/chat/nope", ["--model", "m"], "answered 404", "check the path"),
    (only(json_reply({"detail": "Not Found"}, 404)), "", ["--model", "m"], "answered 404", "check the path"),
    (only(reply(HTML)), "", [], "text/html instead of a list of models", "another program"),
    (only(reply(HTML)), "", ["--model", "m"], "no event stream", "check port and path"),
    (only(reply(b"\x00\x1b[31mred\x07", content_type="text/plain")), "", [], "instead of a list", "another program"),
    (by_model, "", ["--model", "llama"], "The model `llama` does not exist", "llama-3.1-8b"),
    (serve(listed=("a", "b")), "", [], "the server has 2 models: a, b", "--model"),
    (serve(listed=()), "", [], "lists no model", "--model"),
    (with_key, "", [], "answered 401: Incorrect API key provided", "no key was sent: put it into LOADGEN_API_KEY"),
    (refusing(402, "No credit left"), "", [], "answered 402: No credit left", ""),
    (refusing(403, "Forbidden here"), "", [], "answered 403: Forbidden here", ""),
    (refusing(400, "max_tokens is too large"), "", [], "answered 400: max_tokens is too large", ""),
    (refusing(500, "CUDA out of memory"), "", [], "answered 500: CUDA out of memory", ""),
    (refusing(307, "elsewhere"), "", [], "answered 307", ""),
]


@pytest.mark.parametrize(("handler", "path", "flags", "fault", "remedy"), SERVERS)
def test_a_server_that_cannot_be_measured(
    call: Call, tmp_path: Path, handler: object, path: str, flags: list[str], fault: str, remedy: str
) -> None:
    with ThreadedServer(handler) as server:  # type: ignore[arg-type]
        said = call("run", server.url + path, "--input-len", "32", "--output-len", "4", *flags)
    is_one_sentence(said, 3, fault)
    assert remedy in said.err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [], "no folder of a run that was none"


def test_a_wrong_key_is_refused_and_not_shown(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = SECRET[::-1]
    monkeypatch.setenv("LOADGEN_API_KEY", wrong)
    with ThreadedServer(with_key) as server:  # type: ignore[arg-type]
        said = call("run", server.url)
    is_one_sentence(said, 3, "answered 401", "the key that was sent is refused")
    assert wrong not in said.err


@pytest.mark.parametrize("key", ["", " \n"])
def test_an_empty_key_is_no_key(call: Call, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("LOADGEN_API_KEY", key)
    with ThreadedServer(with_key) as server:  # type: ignore[arg-type]
        is_one_sentence(call("run", server.url), 3, "no key was sent")
        assert all("authorization" not in request.headers for request in server.requests)


@pytest.fixture
def deaf() -> Iterator[str]:
    """A port that takes connections into its queue and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def test_nothing_listens(call: Call, tmp_path: Path) -> None:
    said = call("run", NOWHERE)
    is_one_sentence(said, 3, f"nothing answers at {NOWHERE}", "connection refused", "--wait-ready")
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_does_not_resolve(call: Call) -> None:
    is_one_sentence(call("run", "http://no-such-host.invalid:8000"), 3, "no-such-host.invalid", "spelling")


def test_a_server_that_takes_the_connection_and_is_silent(call: Call, deaf: str, tmp_path: Path) -> None:
    said = call("run", f"http://{deaf}", "--max-time", "500ms")
    is_one_sentence(said, 3, "did not end within --max-time", "raise --max-time")
    assert list(tmp_path.iterdir()) == []


def test_https_to_a_server_that_speaks_http(call: Call) -> None:
    with ThreadedServer([Raw(b"")]) as server:
        address = server.url.removeprefix("http://")
        said = call("run", f"https://{address}", "--max-time", "500ms")
    assert said.code == 3 and len(said.err.splitlines()) == 3


def test_http_to_a_server_that_speaks_https_and_a_certificate_nobody_knows(call: Call, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ThreadedServer(serve(), ssl=context) as server:
        plain = server.url.replace("https://", "http://")
        is_one_sentence(call("run", plain), 3, f"the connection to {plain}", "write https://")
        is_one_sentence(call("run", server.url), 3, "certificate verify failed", "--ca-file", "--insecure")
        is_one_sentence(call("run", server.url, "--ca-file", str(WORKED)), 2, "CA file", "PEM")
    assert list(tmp_path.iterdir()) == []


def test_a_shape_that_does_not_fit_the_context(call: Call) -> None:
    def handler(request: Request) -> object:
        return models_reply(["m"], max_model_len=300) if request.method == "GET" else answer(request)

    with ThreadedServer(handler) as server:  # type: ignore[arg-type]
        said = call("run", server.url, "--input-len", "290", "--output-len", "20")
        is_one_sentence(said, 3, "290 tokens of input and 20 tokens of output", "context of 300", "--output-len")
        assert generations(server.requests) == []


# --- logs -----------------------------------------------------------------------------------------------------------

HEADER = b"request_id,start_ts,first_token_ts,end_ts,input_tokens,output_tokens\n"
FILES = [
    (b"", "is empty"),
    (b"garbage\n", "lacks the columns"),
    (b"\x1b]0;title\x07\x1b[2J\n", "lacks the columns"),
    (bytes(range(256)) * 64, "not UTF-8"),
    (b"\x00" * 5000, "lacks the columns"),
    (b"\x1f\x8b\x08\x00\xff\xff", "not UTF-8"),
    (b"{}\n", "line 1: id is missing"),
    (b'{"kind":"request"}\n', "line 1: id is missing"),
    (b"[1,2]\n", "lacks the columns"),
    (b'{"id": nonsense}\n', "line 1"),
    (b'{"id":"' + b"x" * (20 << 20) + b'"}\n', "step is missing"),
    (HEADER, "no rows"),
    (HEADER + b"r1,1,2\n", "r1"),
    (HEADER + b"r1,0,0.5,1,10,0\n", "output_tokens"),
    (HEADER + b"r1,0,2,1,10,5\n", "r1"),
    (HEADER + b"r1,a,2,3,10,5\n", "not a number"),
]


@pytest.mark.parametrize(("data", "words"), FILES)
@pytest.mark.parametrize("verb", ["report", "export"])
def test_files_that_are_no_log(call: Call, tmp_path: Path, verb: str, data: bytes, words: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(data)
    said = call(verb, file)
    assert said.code == 2 and words in said.err
    assert len(said.err.splitlines()) == 2 and len(said.err) < 2000
    assert "Traceback" not in said.err and not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said.err)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/nonexistent", "does not exist"),
        (".", "not a run folder"),
        ("/proc/self/mem", "cannot be read"),
        ("a" * 300, "cannot be read"),
        ("a\0b", "cannot be read"),
        ("/dev/null", "is empty"),
        (str(WORKED) + "/x", "cannot be read"),
    ],
)
@pytest.mark.parametrize("verb", ["report", "export"])
def test_paths_where_no_log_is(call: Call, verb: str, path: str, words: str) -> None:
    is_one_sentence(call(verb, path), 2, words)


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (["report"], "Missing argument"),
        (["report", WORKED, "--slo", "x"], "has no limit"),
        (["report", WORKED, "--step", "7"], "no step 7"),
        (["report", WORKED, "--step", "x"], "whole number"),
        (["export", WORKED, "-o", "/nonexistent/x"], "cannot be written"),
        (["export", WORKED, "-o", "/tmp"], "cannot be written"),
        (["export", WORKED, "-o", WORKED], "is the log itself"),
        (["export", WORKED, "-o", ""], "--output is empty"),
        (["export", WORKED, "-o", "/dev/full"], "cannot be written"),
        (["export", WORKED, "--format", "xml"], "'csv', 'jsonl'"),
    ],
)
def test_readers_flags(call: Call, args: list[object], fault: str) -> None:
    is_one_sentence(call(*args), 2, fault)


@pytest.mark.parametrize("name", ["requests.jsonl", "manifest.json"])
@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("export", "RUN", "-o"), "-o"),
        (("check", "RUN", "--against", str(WORKED), "--junit"), "--junit"),
        (("check", str(WORKED), "--against", "RUN", "--markdown"), "--markdown"),
    ],
    ids=["export", "junit", "markdown"],
)
def test_a_run_is_not_written_over(call: Call, tmp_path: Path, words: tuple[str, ...], flag: str, name: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / name).write_text("what was measured")
    (tmp_path / "link").symlink_to(folder / name)
    for output in (folder / name, tmp_path / "link"):
        said = call(*(folder if word == "RUN" else word for word in words), output)
        is_one_sentence(said, 2, "a file of the run", f"another file with {flag}")
    assert (folder / name).read_text() == "what was measured"


@pytest.mark.parametrize("verb", ["report", "export"])
def test_r14_a_full_disk_behind_stdout(verb: str) -> None:
    with Path("/dev/full").open("wb") as full:
        said = run(verb, WORKED, stdout=full)
    assert said.code != 0 and "Traceback" not in said.err
    assert "No space left" in said.err, said.err


@pytest.mark.parametrize("urls", [(",", ","), ("http://localhost:99999",), ("http://localhost:8000", "http://a:x")])
def test_an_arms_address_is_looked_at_before_any_server_is_waited_for(call: Call, urls: tuple[str, ...]) -> None:
    said = call("experiment", "prefix-cache", *urls)
    assert said.code == 2 and said.err.count("\n") == 2


def test_a_name_that_no_look_up_takes_serves_no_metrics(call: Call) -> None:
    said = call("run", "http://127.0.0.1:9", "--metrics-port", "a..b:9464")
    assert said.code == 2 and "metrics cannot be served at a..b:9464" in said.err
