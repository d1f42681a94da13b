"""Every way in which a file can be damaged, for every kind of file that says what is sent: it works, or gets a sentence
with its path, and with the line where one is to blame."""

from __future__ import annotations

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.workload.files import read_prompts
from loadgen.workload.library import load_workload
from loadgen.workload.traces.looking import look
from loadgen.workload.traces.replayed import Choice
from tests.workload.traces.samples import SAMPLES

TOML = """name = "x"
[lengths.input]
kind = "fixed"
value = 20
[lengths.output]
kind = "uniform"
low = 3
high = 7
"""
BODY = '{"model":"m","messages":[{"role":"user","content":"hi %d"}],"max_tokens":5}\n'
FILES: dict[str, tuple[str, str]] = {  # text, and the end of its name
    "toml": (TOML, ".toml"),
    "prompts": ("".join(f'{{"prompt":"p {n}","output_len":4}}\n' for n in range(5)), ".jsonl"),
    "texts": ("one\ntwo\nthree\n", ".txt"),
    "bodies": ("".join(BODY % n for n in range(5)), ".jsonl"),
    **{f"trace {sample.name}": (sample.text, "") for sample in SAMPLES},
}


def read(kind: str, path: Path) -> object:
    if kind == "toml":
        return load_workload(str(path))
    if kind.startswith("trace"):
        found = look(Choice(str(path), timed=False, output_len=3))
        prompts = found.prompts("n", None)
        return found, [next(prompts) for _ in range(3)]
    return read_prompts(path, 3)


def numbers(data: bytes, value: bytes) -> bytes:
    """Its last number that is a length, replaced."""
    found = list(re.finditer(rb"(?<=[:,;= \[])\d+(?=[,;}\]\n\r]|$)", data))
    return data if not found else data[: found[-1].start()] + value + data[found[-1].end() :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda data: data,
    "empty": lambda data: b"",
    "blank": lambda data: b"\n \n\r\n\t\n",
    "NULs": lambda data: b"\0" * 100,
    "a NUL in it": lambda data: data[: len(data) // 2] + b"\0" + data[len(data) // 2 :],
    "cut in half": lambda data: data[: len(data) // 2],
    "cut before its end": lambda data: data.rstrip()[:-1],
    "BOM": lambda data: b"\xef\xbb\xbf" + data,
    "CRLF": lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    "CR": lambda data: data.replace(b"\r\n", b"\n").replace(b"\n", b"\r"),
    "blank lines": lambda data: b"\n\n" + data + b"\n\n\n",
    "UTF-16": lambda data: data.decode().encode("utf-16"),
    "UTF-16 without a BOM": lambda data: data.decode().encode("utf-16-le"),
    "Latin-1": lambda data: data + "é".encode("latin-1") + b"\n",
    "gzip": gzip.compress,
    "half a gzip": lambda data: gzip.compress(data)[: len(gzip.compress(data)) // 2],
    "zip": lambda data: b"PK\x03\x04" + data,
    "HTML": lambda data: b"<!DOCTYPE html><html><head><title>404</title></head></html>\n",
    "a git-lfs pointer": lambda data: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "negative": lambda data: numbers(data, b"-5"),
    "NaN": lambda data: numbers(data, b"NaN"),
    "Infinity": lambda data: numbers(data, b"Infinity"),
    "1e999": lambda data: numbers(data, b"1e999"),
    "a fraction": lambda data: numbers(data, b"1.5"),
    "far too large": lambda data: numbers(data, b"9" * 30),
    "thousands of digits": lambda data: numbers(data, b"9" * 5000),
    "a text for a number": lambda data: numbers(data, b'"many"'),
    "the first line twice": lambda data: data[: data.find(b"\n") + 1] + data,
    "upside down": lambda data: b"".join(reversed(data.splitlines(keepends=True))),
    "a very long line": lambda data: data + b"x" * (1 << 20) + b"\n",
    "deeply nested": lambda data: data + b"[" * 20_000 + b"\n",
    "random bytes": lambda data: bytes((37 * n * n + 11) % 256 for n in range(600)),
}
WORK = {"as it is", "BOM", "CRLF", "blank lines"}  # for every kind of file
REFUSED = {"empty", "blank", "UTF-16", "HTML", "random bytes", "half a gzip", "zip", "UTF-16 without a BOM"}
TRACE_WORKS = WORK | {"gzip"}


@pytest.mark.parametrize("kind", FILES)
def test_a_damaged_file_works_or_gets_a_sentence(kind: str, tmp_path: Path) -> None:
    text, end = FILES[kind]
    wrong = []
    for what, damage in DAMAGE.items():
        path = tmp_path / f"file{end}"
        path.write_bytes(damage(text.encode()))
        try:
            read(kind, path)
            if what in REFUSED and not (kind == "texts" and what in ("HTML", "zip")):
                wrong.append(f"{what}: works")
        except UsageError as told:
            if what in (TRACE_WORKS if kind.startswith("trace") else WORK):
                wrong.append(f"{what}: {told.message}")
            if not told.remedy or "\n" in told.message or path.name not in told.message or len(told.message) > 600:
                wrong.append(f"{what}: no sentence: {told.message[:300]!r}")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "kind", ["toml", "prompts", "texts", "bodies", "trace azure-2023", "trace mooncake", "trace weka"]
)
def test_what_is_no_readable_file_gets_a_sentence(kind: str, tmp_path: Path) -> None:
    end = FILES[kind][1]
    places = {
        "folder": tmp_path / f"folder{end}",
        "missing": tmp_path / f"missing{end}",
        "loop": tmp_path / f"loop{end}",
    }
    places["folder"].mkdir()
    places["loop"].symlink_to(places["loop"])
    if os.geteuid():
        places["locked"] = tmp_path / f"locked{end}"
        places["locked"].write_text(FILES[kind][0])
        places["locked"].chmod(0)
    for name, path in places.items():
        with pytest.raises(UsageError) as told:
            read(kind, path)
        assert told.value.remedy and "\n" not in told.value.message, name
    if kind.startswith("trace"):
        os.mkfifo(tmp_path / f"pipe{end}")
        with pytest.raises(UsageError, match="file"):
            read(kind, tmp_path / f"pipe{end}")


LINES = {
    "trace azure-2023": (b"2023-11-16 18:17:04.0319600,3180,8", b"2023-11-16 18:17:04.0319600,-1,8", 3),
    "trace mooncake": (b'"timestamp": 3000', b'"timestamp": "soon"', 2),
    "trace vidur": (b"1.5,200,6", b"1.5,nan,6", 3),
    "prompts": (b'"p 3"', b"NaN", 4),
    "bodies": (b'"max_tokens":5', b'"max_tokens":-5', 1),
    "toml": (b"value = 20", b"value = = 20", 4),
}


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("before", [0, 700], ids=["near the start", "far down"])
def test_the_line_that_is_to_blame_is_told(kind: str, before: int, tmp_path: Path) -> None:
    right, wrong, line = LINES[kind]
    text = FILES[kind][0].encode()
    path = tmp_path / f"file{FILES[kind][1]}"
    path.write_bytes(text.replace(right, wrong, 1))
    if before and kind == "toml":
        path.write_bytes(b"# a comment\n" * before + path.read_bytes())
        line += before
    elif before:
        head, body = text.split(b"\n", 1) if "mooncake" not in kind and kind.startswith("trace") else (b"", text)
        filler = body.split(b"\n", 1)[0] + b"\n"
        start = head + b"\n" if head else b""
        path.write_bytes(
            (start + filler * before + body).replace(right, wrong)
            if right not in filler
            else start + filler * before + body.replace(right, wrong, 1)
        )
        line += before
    with pytest.raises(UsageError, match=rf"line {line:,}\b"):
        read(kind, path)
