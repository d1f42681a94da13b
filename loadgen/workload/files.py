"""Prompts and whole request bodies from a file: JSON Lines whose kind is seen by their content. The one reader of it.

    "text"                                              a prompt
    {"prompt": "text", "output_len": 64}                …with its output length (also output_tokens, max_tokens)
    {"messages": [...], …}                              a whole request body: chat,
    {"model": "m", "prompt": "text", …}                 completions, which names its model,
    {"model": "m", "input": …, …}                       responses, likewise,
    {"inputs": "text", …}                               TGI's own
    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {…}}      a line of an OpenAI batch
or, named *.txt, plain text with one prompt a line. Blank lines are left out.

1. A body's values are sent as they are written, numbers to the digit; of ours are `output_len` and `output_tokens`.
2. All lines are for one endpoint, which the url of a batch, or the body's keys, tell.
3. The head of the file is read and checked before the start. What follows it, in a large file, is read and checked as
   it is sent: a file of any size starts at once, and takes no more memory than its head.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import IO, Any

import orjson

from ..errors import UsageError
from ..records import Prompt
from .paths import asked

HEAD_BYTES, HEAD_LINES = 16 << 20, 100_000
LINE_BYTES = 64 << 20  # of one line, at the most
OUTPUT_KEYS = ("output_len", "output_tokens", "max_completion_tokens", "max_tokens", "max_output_tokens")
OWN_KEYS = ("output_len", "output_tokens")  # of ours, in no request body
# The ends of a batch's urls, and the key that only one endpoint's bodies have.
ENDPOINTS = {
    "/chat/completions": "chat",
    "/completions": "completions",
    "/responses": "responses",
    "/generate_stream": "generate_stream",
}
ENDPOINT_KEYS = {"messages": "chat", "prompt": "completions", "inputs": "generate_stream", "input": "responses"}
_DEEP = 100  # brackets; a body that has fewer is not too deep for the one that writes it


@dataclass(frozen=True, slots=True)
class PromptFile:
    """A file of prompts. `head` are those read before the start; the rest begins at byte `offset`, after `lines` lines.

    `endpoint` is the one that its requests are for, None where they fit any; a `batch` says so itself. `output_len` is
    the length of prompts that name none. `content_hash` is the SHA-256 of the first `offset` bytes, which is all of
    them if `complete`.
    """

    path: Path
    output_len: int | None
    head: tuple[Prompt, ...]
    size: int
    offset: int
    lines: int
    endpoint: str | None
    batch: bool
    content_hash: str
    notes: tuple[str, ...]
    spool: Any = field(default=None, repr=False)  # keeps the copy of what can be read only once

    @property
    def complete(self) -> bool:
        return self.offset >= self.size

    def prompts(self, worker: int = 0, workers: int = 1) -> Iterator[Prompt]:
        """The prompts in the file's order, over and over; of W workers, worker i gets the prompts i, i + W, …. Raises
        UsageError for a line that is none, where that is not known before."""
        if self.complete:
            yield from (self.head[i % len(self.head)] for i in count(worker, workers))
        turn = -worker  # whose the next prompt is
        with _opened(self.path) as file:
            while True:
                for prompt in self.head:
                    if turn % workers == 0:
                        yield prompt
                    turn += 1
                file.seek(self.offset)
                lines = _Lines(self.path, self.output_len, file, self.lines, self.endpoint)
                while (raw := lines.next()) is not None:
                    if turn % workers == 0:
                        yield lines.parse(raw)
                    turn += 1


def read_prompts(path: Path, output_len: int | None) -> PromptFile:
    """Open a file of prompts and read its head. Raises UsageError, naming the line, for one that is no prompt."""
    spool = None
    asked(path, "prompts file", "give a readable file to --prompts")
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe can be read once, and a run reads again
        spool = tempfile.NamedTemporaryFile(suffix=path.suffix)  # noqa: SIM115 - kept as long as the workload
        with _opened(path) as pipe:
            shutil.copyfileobj(pipe, spool)
        spool.flush()
    name, where = path.name, Path(spool.name) if spool else path
    digest = hashlib.sha256()
    head: list[Prompt] = []
    with _opened(where) as file:
        size = file.seek(0, 2)
        file.seek(0)
        lines = _Lines(path, output_len, file)
        while file.tell() < HEAD_BYTES and len(head) < HEAD_LINES:
            raw = lines.next(digest)
            if raw is None:
                break
            head.append(lines.parse(raw))
        offset = file.tell()
    if not head:
        what = "is empty: it holds no prompt" if not size else "holds no prompt"
        raise UsageError(f"the prompts file {path} {what}", _remedy(lines.plain))
    return PromptFile(
        where,
        output_len,
        tuple(head),
        size,
        offset,
        lines.number,
        lines.endpoint,
        lines.seen["batch"] > 0,
        digest.hexdigest(),
        tuple(_notes(name, len(head), offset >= size, lines)),
        spool,
    )


class _Lines:
    """The lines of a file from where it stands, numbered; `endpoint` is learnt from the first that tells."""

    def __init__(
        self, path: Path, output_len: int | None, file: IO[bytes], number: int = 0, endpoint: str | None = None
    ) -> None:
        self.path, self.output_len, self.file = path, output_len, file
        self.plain = path.suffix.lower() == ".txt"
        self.number = number
        self.endpoint = endpoint
        self.seen: Counter[str] = Counter()  # what there is to say of what was read
        self.ignored: set[str] = set()

    def next(self, digest: Any = None) -> bytes | None:
        """The next line that is not blank, None at the end of the file."""
        while raw := self.file.readline(LINE_BYTES + 1):
            if digest is not None:
                digest.update(raw)
            self.number += 1
            if self.number == 1:
                raw = raw.removeprefix(b"\xef\xbb\xbf")
            if len(raw) > LINE_BYTES:
                raise self._fault(f"it is longer than {LINE_BYTES >> 20} MiB")
            if line := raw.strip():
                self.cut = not raw.endswith(b"\n")
                return line
        return None

    def parse(self, line: bytes) -> Prompt:
        try:
            prompt = Prompt(text=_plain(line)) if self.plain else self._json(line)
        except ValueError as error:  # orjson's and Unicode's own are ValueErrors
            raise self._fault(_reason(error, line, cut=self.cut)) from None
        if prompt.output_tokens is None and self.output_len is not None:
            return replace(prompt, output_tokens=self.output_len)
        return prompt

    def _fault(self, reason: str) -> UsageError:
        return UsageError(f"line {self.number} of {self.path} is no prompt: {reason}", _remedy(self.plain))

    def _json(self, line: bytes) -> Prompt:
        orjson.loads(line)  # the stricter parser: no NaN, no half of a surrogate pair
        value = _exact(line.decode())
        if isinstance(value, str):
            if not value:
                raise ValueError("the text is empty")
            return Prompt(text=value)
        if not isinstance(value, dict):
            raise ValueError(f"it is {_kind(value)}, neither a text nor an object")
        if len(value.keys() & {"custom_id", "url", "body"}) > 1:
            return self._batch(value, line)
        whole = ENDPOINT_KEYS if "model" in value else ("messages", "inputs")
        key = next((key for key in whole if key in value), None)
        if key is not None:
            return self._body(value, ENDPOINT_KEYS[key], line)
        text = value.get("prompt")
        if not isinstance(text, str) or not text:
            raise ValueError("it has neither messages nor a prompt that is a text")
        self.ignored |= {key for key in value if key != "prompt" and key not in OUTPUT_KEYS}
        return Prompt(text=text, output_tokens=_output_length(value))

    def _batch(self, value: dict[str, Any], line: bytes) -> Prompt:
        name, url, body = value.get("custom_id"), value.get("url"), value.get("body")
        if name is not None and not isinstance(name, str):
            raise ValueError(f"custom_id is {_kind(name)}, not a text")
        if value.get("method", "POST") != "POST":
            raise ValueError(f"method is {value['method']!r}, not POST")
        if not isinstance(body, dict) or not body:
            raise ValueError("body is not an object with a request")
        if not isinstance(url, str):
            raise ValueError("url is not the path of an endpoint, as in /v1/chat/completions")
        path = url.partition("?")[0].rstrip("/")
        endpoint = next((one for end, one in ENDPOINTS.items() if path.endswith(end)), None)
        if endpoint is None:
            raise ValueError(f"url is {url[:80]}, which is not spoken here: {', '.join(ENDPOINTS)} are")
        self.seen["batch"] += 1
        return self._body(body, endpoint, line, name)

    def _body(self, body: dict[str, Any], endpoint: str, line: bytes, name: str | None = None) -> Prompt:
        if self.endpoint not in (None, endpoint):
            raise ValueError(f"it is for the endpoint {endpoint}, those before it are for {self.endpoint}")
        key = next(key for key, one in ENDPOINT_KEYS.items() if one == endpoint)
        what = body.get(key)
        if not what or not isinstance(what, list if key == "messages" else str | list):
            raise ValueError(f"{key} is not {'a list with an entry' if key == 'messages' else 'a text or a list'}")
        if "model" in body and not isinstance(body["model"], str | None):
            raise ValueError(f"model is {_kind(body['model'])}, not a name")
        output = _output_length(body) or _nested_length(body)
        if line.count(b"{") + line.count(b"[") > _DEEP:
            _writable(body)
        self.endpoint = endpoint
        self.seen["bodies"] += 1
        self.seen["unstreamed"] += body.get("stream") is False
        body = {k: v for k, v in body.items() if k not in OWN_KEYS}
        return Prompt(body=body, output_tokens=output, source_id=name)


def _plain(line: bytes) -> str:
    if b"\0" in line:
        raise ValueError(f"it holds NULs, as no text does{_other_encoding(line)}")
    return line.decode("utf-8")


def _whole(digits: str) -> Any:
    number = int(digits) if len(digits) < 21 else 1 << 64
    return number if -(2**63) <= number < 2**64 and digits != "-0" else orjson.Fragment(digits)


def _fraction(digits: str) -> Any:
    number = float(digits)
    return number if orjson.dumps(number).decode() == digits else orjson.Fragment(digits)


_DECODER = json.JSONDecoder(parse_int=_whole, parse_float=_fraction)


def _exact(text: str) -> Any:
    """JSON whose numbers come out as they went in; those that a parser would change are kept as they are written."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _writable(body: dict[str, Any]) -> None:
    try:
        orjson.dumps(body)
    except TypeError:
        raise ValueError("it is nested too deeply") from None


def _output_length(value: dict[str, Any]) -> int | None:
    for key in OUTPUT_KEYS:
        length = value.get(key)
        if length is None:
            continue
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            shown = repr(length) if isinstance(length, str | int | float) else _kind(length)
            raise ValueError(f"{key} is {shown}, not a number of tokens")
        return length
    return None


def _nested_length(body: dict[str, Any]) -> int | None:
    for place, key in (("parameters", "max_new_tokens"), ("options", "num_predict")):  # TGI's own, Ollama's own
        inner = body.get(place)
        length = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(length, int) and not isinstance(length, bool) and length > 0:
            return length
    return None


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("rb")
    except OSError as error:
        raise UsageError(
            f"the prompts file {path} cannot be read: {error.strerror or error}", "give a readable file to --prompts"
        ) from None


def _notes(name: str, n: int, complete: bool, lines: _Lines) -> Iterator[str]:
    if complete:
        has = f"{name} has {n:,} prompt{'s' if n > 1 else ''}"
        yield f"{has}: past the end it is sent from its beginning again, maybe out of the server's cache"
    else:
        yield f"the first {n:,} lines of {name} are checked; the rest is, as it is sent"
    if lines.ignored:
        keys = ", ".join(sorted(lines.ignored)[:20])
        yield f"keys of {name} that are not used: {keys} (a line with messages, or with a model, is sent whole)"
    if lines.seen["unstreamed"]:
        yield f"{lines.seen['unstreamed']:,} bodies of {name} say stream: false; they are sent with stream: true"


def _reason(error: ValueError, line: bytes, *, cut: bool) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"not UTF-8{_other_encoding(line)}"
    if not isinstance(error, orjson.JSONDecodeError):
        return str(error)
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return f"not JSON in UTF-8{_other_encoding(line)}"
    if line[:1] == b"[":
        return "a list over several lines is not JSON Lines (jq -c '.[]' makes it that)"
    why = f"not JSON ({error.msg})"
    return f"{why}; the file ends in the middle of it" if cut and line[:1] in b'{"' else why


def _other_encoding(line: bytes) -> str:
    return " (it looks like UTF-16)" if line[:2] in (b"\xff\xfe", b"\xfe\xff") or line.count(0) > len(line) // 4 else ""


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return str(orjson.dumps(value).decode())
    if isinstance(value, list):
        return "a list"
    return "an object" if isinstance(value, dict) else "a text" if isinstance(value, str) else "a number"


def _remedy(plain: bool) -> str:
    if plain:
        return "write one prompt a line, in UTF-8"
    return (
        'write one JSON value a line: "text", {"prompt": "text", "output_len": 64}, a whole request body, or a line of'
        " an OpenAI batch; name plain text *.txt"
    )
