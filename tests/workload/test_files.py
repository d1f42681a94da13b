"""Files of prompts, whole bodies and batches: what a line is, what is sent of it, and every mistake with its line."""

from __future__ import annotations

import json
import os
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.workload.files import HEAD_LINES, LINE_BYTES, read_prompts
from loadgen.workload.plain import plain_workload

HI = {"messages": [{"role": "user", "content": "hi"}]}


def read(path: Path, *lines: bytes | str, output_len: int | None = None, ends: bytes = b"\n") -> Any:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + ends for line in lines))
    return read_prompts(path, output_len)


def batch(url: str = "/v1/chat/completions", name: Any = "a", **changes: Any) -> str:
    whole = {"custom_id": name, "method": "POST", "url": url, "body": {"model": "m", **HI}, **changes}
    return json.dumps({key: value for key, value in whole.items() if value != "gone"})


KINDS: dict[str, tuple[str, Prompt, str | None]] = {
    "a chat body": (
        '{"messages":[{"role":"user"}],"tools":[]}',
        Prompt(body={"messages": [{"role": "user"}], "tools": []}),
        "chat",
    ),
    "a completions body": (
        '{"model":"m","prompt":"p","n":2}',
        Prompt(body={"model": "m", "prompt": "p", "n": 2}),
        "completions",
    ),
    "a completions body of token ids": (
        '{"model":"m","prompt":[1,2]}',
        Prompt(body={"model": "m", "prompt": [1, 2]}),
        "completions",
    ),
    "a responses body": ('{"model":"m","input":"p"}', Prompt(body={"model": "m", "input": "p"}), "responses"),
    "TGI's own": (
        '{"inputs":"p","parameters":{"max_new_tokens":7}}',
        Prompt(body={"inputs": "p", "parameters": {"max_new_tokens": 7}}, output_tokens=7),
        "generate_stream",
    ),
    "a line of a batch": (batch(), Prompt(body={"model": "m", **HI}, source_id="a"), "chat"),
    "a batch to a full address": (
        batch("https://api/v1/completions?api-version=1", body={"prompt": "p"}),
        Prompt(body={"prompt": "p"}, source_id="a"),
        "completions",
    ),
    "a batch without names": (batch(name="gone"), Prompt(body={"model": "m", **HI}), "chat"),
    "a batch without a method": (batch(method="gone"), Prompt(body={"model": "m", **HI}, source_id="a"), "chat"),
    "a length of ours beside a body": (
        '{"messages":[1],"max_tokens":5,"output_len":6}',
        Prompt(body={"messages": [1], "max_tokens": 5}, output_tokens=6),
        "chat",
    ),
    "a text": ('"p"', Prompt("p"), None),
    "a prompt and its length": ('{"prompt":"p","output_len":3}', Prompt("p", output_tokens=3), None),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_line_is(tmp_path: Path, kind: str) -> None:
    line, prompt, endpoint = KINDS[kind]
    file = read(tmp_path / "f.jsonl", line)
    assert file.head == (prompt,)
    assert (file.endpoint, file.batch, file.complete) == (endpoint, "batch" in kind, True)


WRONG: dict[str, tuple[str | bytes, str]] = {
    "null": ("null", "it is null, neither a text nor an object"),
    "a list": ("[1]", "it is a list"),
    "a list over several lines": ("[", "not JSON Lines"),
    "cut in the middle": ('{"messages": [{"role": "us', "not JSON"),
    "half of a surrogate pair": ('{"messages": ["\\ud800"]}', "surrogate"),
    "no number": ('{"messages": [NaN]}', "not JSON"),
    "a number that no server can read": ('{"messages": [1e999]}', "not JSON"),
    "not UTF-8": (b'{"messages": ["\xe9"]}', "not JSON in UTF-8"),
    "UTF-16": ('"a prompt"'.encode("utf-16"), "UTF-16"),
    "NULs": (b"\0" * 50, "not JSON"),
    "a model that is no name": ('{"model": 5, "messages": [1]}', "model is a number, not a name"),
    "no messages": ('{"model": "m", "messages": []}', "messages is not a list with an entry"),
    "a message that is no list": ('{"model": "m", "messages": "hi"}', "messages is not a list with an entry"),
    "too deep to write": ('{"messages": ' + "[" * 300 + "]" * 300 + "}", "nested too deeply"),
    "too deep to read": ('{"messages": ' + "[" * 1010 + "1.50" + "]" * 1010 + "}", "nested too deeply"),
    "far too deep": ('{"messages": ' + "[" * 9000 + "]" * 9000 + "}", "not JSON"),
    "a batch elsewhere": (batch("/v1/embeddings"), "url is /v1/embeddings, which is not spoken here"),
    "a batch that gets": (batch(method="GET"), "method is 'GET', not POST"),
    "a batch without a url": (batch(url="gone"), "url is not the path of an endpoint"),
    "a batch without a body": (batch(body="gone"), "body is not an object"),
    "a batch of an empty body": (batch(body={}), "body is not an object"),
    "a batch whose body is for another endpoint": (batch(body={"model": "m", "prompt": "p"}), "messages is not a list"),
    "a name that is no text": (batch(name=5), "custom_id is a number, not a text"),
    "another endpoint": ('{"model":"m","prompt":"p"}', "for the endpoint completions, those before it are for chat"),
    "another url": (batch("/v1/completions", body={"prompt": "p"}), "those before it are for chat"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_line_is_named_with_what_is_expected(tmp_path: Path, what: str) -> None:
    line, reason = WRONG[what]
    with pytest.raises(UsageError) as caught:
        read(tmp_path / "f.jsonl", json.dumps(HI), "", line, '"fine"')
    assert "line 3 of" in caught.value.message
    assert reason in caught.value.message
    assert "an OpenAI batch" in (caught.value.remedy or "")


def test_line_ends_byte_order_marks_and_blank_lines(tmp_path: Path) -> None:
    lines = (b'\xef\xbb\xbf"a"', b"", b'  "b"\t', b" ", '"c\u2028\x85d"')
    for ends in (b"\n", b"\r\n"):
        assert [p.text for p in read(tmp_path / "f.jsonl", *lines, ends=ends).head] == ["a", "b", "c\u2028\x85d"]


def test_a_file_that_breaks_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    path.write_bytes(b'"a"\n' + json.dumps(HI).encode()[:-9])
    with pytest.raises(UsageError, match=r"line 2 of .*; the file ends in the middle of it"):
        read_prompts(path, None)
    path.write_bytes(b'"a"\n"b"')  # only without its last line end, it is whole
    assert len(read_prompts(path, None).head) == 2


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "is empty"), (b"\n \r\n", "holds no prompt"), (b"\xef\xbb\xbf", "holds no")]
)
def test_a_file_without_a_prompt(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "f.jsonl").write_bytes(data)
    with pytest.raises(UsageError, match=why):
        read_prompts(tmp_path / "f.jsonl", None)


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"], ids=["too long", "a NUL"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(UsageError, match=r"the prompts file .* cannot be read"):
        read_prompts(Path(name), None)


# --- values as they are written -------------------------------------------------------------------------------------

DIGITS = ["0", "-0", "-0.0", "1.0", "1.50", "1e2", "1E+2", "0.1", "1e-7", "9007199254740993", "18446744073709551615"]
DIGITS += ["18446744073709551616", "-9223372036854775808", "-9223372036854775809", "1" * 60, "0.1234567890123456789"]

numbers = st.sampled_from(DIGITS) | st.integers().map(str) | st.floats(allow_nan=False, allow_infinity=False).map(repr)
texts = st.text(st.characters(exclude_categories=["Cs"])).map(lambda s: json.dumps(s, ensure_ascii=False))
leaves = numbers | texts | st.sampled_from(["true", "false", "null"])


def _list(items: list[str]) -> str:
    return f"[{','.join(items)}]"


def _object(items: dict[str, str]) -> str:
    return "{" + ",".join(f"{name}:{value}" for name, value in items.items()) + "}"


values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4).map(_list) | st.dictionaries(texts, inner, max_size=4).map(_object),
)


@given(values)
def test_values_come_out_as_they_went_in_to_the_digit(tmp_path_factory: pytest.TempPathFactory, value: str) -> None:
    line = f'{{"z":{value},"messages":[{value}],"a":0}}'
    [prompt] = read(tmp_path_factory.mktemp("f") / "f.jsonl", line).head
    # Escapes may be written otherwise, values may not: what has none is the same to the byte.
    assert json.loads(orjson.dumps(prompt.body)) == json.loads(line)
    if "\\" not in line and "\x7f" not in line:
        assert orjson.dumps(prompt.body).decode() == line


# --- large files ----------------------------------------------------------------------------------------------------


def test_a_large_file_starts_at_once_and_is_read_as_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    n = HEAD_LINES + 7
    path.write_bytes(b"".join(b'"%d"\n' % i for i in range(n)))
    file = read_prompts(path, None)
    assert (len(file.head), file.complete, file.lines) == (HEAD_LINES, False, HEAD_LINES)
    whole = [int(p.text) for p in islice(file.prompts(), n + 5)]
    assert whole == [i % n for i in range(n + 5)]
    parts = [islice(file.prompts(worker, 3), n // 2) for worker in range(3)]
    assert [int(p.text) for turn in zip(*parts, strict=True) for p in turn] == [i % n for i in range(n // 2 * 3)]
    workload = plain_workload(prompts_file=path)
    assert (workload.complete, workload.max_output_tokens, workload.manifest()["prompts"]) == (False, None, None)
    assert workload.manifest()["hashed_bytes"] < workload.manifest()["bytes"] == path.stat().st_size


def test_a_wrong_line_far_down_is_named_when_it_is_reached(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes(b'"a"\n' * (HEAD_LINES + 1) + b"null\n")
    prompts = read_prompts(path, None).prompts()
    assert sum(1 for _ in islice(prompts, HEAD_LINES + 1)) == HEAD_LINES + 1
    with pytest.raises(UsageError, match=f"line {HEAD_LINES + 2} of .* it is null"):
        next(prompts)


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path) -> None:
    path = tmp_path / "nul.jsonl"
    with path.open("wb") as file:
        file.truncate(LINE_BYTES * 16)  # a gigabyte of NULs, which takes no room on the disk
    with pytest.raises(UsageError, match=f"line 1 of .* longer than {LINE_BYTES >> 20} MiB"):
        read_prompts(path, None)


def test_a_pipe_is_read_once_and_sent_as_often_as_needed(tmp_path: Path) -> None:
    path = tmp_path / "pipe.jsonl"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b'"a"\n"b"\n',))
    writer.start()
    file = read_prompts(path, None)
    writer.join()
    assert [p.text for p in islice(file.prompts(), 3)] == ["a", "b", "a"]
    assert [p.text for p in read_prompts(file.path, None).head] == ["a", "b"]  # as another process reads it


def test_what_is_not_as_written_is_said(tmp_path: Path) -> None:
    file = read(tmp_path / "f.jsonl", json.dumps({**HI, "stream": False}), json.dumps(HI), '{"prompt":"p","id":1}')
    assert any("1 bodies of f.jsonl say stream: false" in note for note in file.notes)
    assert any("not used: id" in note for note in file.notes)
