"""The plain workload: one shape from flags, or the prompts of a file.

A prompts file is JSON Lines; a line is one of
    "text"                                            a prompt
    {"prompt": "text", "output_len": 64}              …with its output length (also max_tokens, output_tokens)
    {"messages": [...], "temperature": 0, …}          a whole request body, sent as it is
or, named *.txt, plain text with one prompt a line. Blank lines are left out; any other bad line is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import orjson

from ..errors import UsageError
from ..records import Prompt
from .prompts import Calibration, LengthRange, PromptStream, parse_length

DEFAULT_INPUT_LEN = LengthRange(512, 512)
DEFAULT_OUTPUT_LEN = LengthRange(128, 128)
OUTPUT_KEYS = ("output_len", "output_tokens", "max_completion_tokens", "max_tokens")
OWN_KEYS = ("output_len", "output_tokens")  # of ours, in no request body


@dataclass(frozen=True, slots=True)
class PlainWorkload:
    """Either a shape (`input_len` and `output_len`) or given prompts (`prompts`, cycled in the file's order).

    `content_hash` is the SHA-256 of the file, or of the shape; `notes` are what a user should be told.
    """

    input_len: LengthRange | None
    output_len: LengthRange | None
    prompts: tuple[Prompt, ...] = ()
    source: str = ""
    content_hash: str = ""
    notes: tuple[str, ...] = ()

    @property
    def sized(self) -> bool:
        """Is the text made here, to a length that follows a calibration?"""
        return self.input_len is not None

    @property
    def max_input_tokens(self) -> int | None:
        """The longest input asked for; None where only a tokenizer could tell."""
        return self.input_len.high if self.input_len else None

    @property
    def max_output_tokens(self) -> int | None:
        """The longest output asked for; None where some prompt leaves it to the server."""
        if not self.prompts:
            return self.output_len.high if self.output_len else None
        asked = [p.output_tokens for p in self.prompts]
        return None if None in asked else max(n for n in asked if n is not None)

    @property
    def mean_output_tokens(self) -> float | None:
        """The mean output asked for; None where some prompt leaves it to the server."""
        if not self.prompts:
            return self.output_len.mean if self.output_len else None
        asked = [p.output_tokens for p in self.prompts if p.output_tokens is not None]
        return sum(asked) / len(asked) if len(asked) == len(self.prompts) else None

    def stream(
        self,
        seed: int,
        nonce: str,
        calibration: Calibration | None = None,
        *,
        worker: int = 0,
        workers: int = 1,
        same_text: bool = False,
    ) -> Iterator[Prompt]:
        """An endless iterator of prompts, the same for the same arguments, of which worker i of W gets the prompts
        i, i + W, …. Given prompts come as they are: neither seed nor nonce changes them."""
        if self.input_len and self.output_len:
            return PromptStream(
                seed,
                nonce,
                self.input_len,
                self.output_len,
                calibration,
                worker=worker,
                workers=workers,
                same_text=same_text,
            )
        prompts = self.prompts
        return (prompts[i % len(prompts)] for i in count(worker, workers))

    def describe(self) -> str:
        """One line for the screen."""
        if self.input_len:
            return f"made text · in {self.input_len} · out {self.output_len}"
        number = f"{len(self.prompts):,} prompt{'s' if len(self.prompts) != 1 else ''}"
        return f"{self.source} · {number} · out {_span([p.output_tokens for p in self.prompts])}"

    def manifest(self) -> dict[str, Any]:
        """The same for the manifest, with the hash of the content."""
        lengths = {"input_len": self.input_len, "output_len": self.output_len}
        return {
            "kind": "shape" if self.sized else "prompts",
            **{name: [r.low, r.high] if r else None for name, r in lengths.items()},
            "source": self.source or None,
            "prompts": len(self.prompts) or None,
            "content_sha256": self.content_hash,
        }


def plain_workload(
    input_len: str | int | None = None, output_len: str | int | None = None, prompts_file: str | Path | None = None
) -> PlainWorkload:
    """The workload of `--input-len`, `--output-len` and `--prompts`; None is a flag not given.

    With a prompts file, `--output-len` is for prompts that name no length of their own. Raises UsageError.
    """
    out = parse_length(output_len, "--output-len") if output_len is not None else None
    if prompts_file is None:
        inp = parse_length(input_len, "--input-len") if input_len is not None else DEFAULT_INPUT_LEN
        out = out or DEFAULT_OUTPUT_LEN
        shape = f"in {inp.low}-{inp.high} out {out.low}-{out.high}"
        return PlainWorkload(inp, out, content_hash=hashlib.sha256(shape.encode()).hexdigest())
    if input_len is not None:
        raise UsageError(
            "--input-len and --prompts exclude each other: given prompts have their own length",
            "leave one of the two out",
        )
    if out is not None and out.low != out.high:
        raise UsageError(
            f"--output-len {out.low}-{out.high} is a range, which given prompts cannot take",
            "give one number, or an output_len for each prompt in the file",
        )
    return _from_file(Path(prompts_file), out)


def _from_file(path: Path, out: LengthRange | None) -> PlainWorkload:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the prompts file {path} cannot be read: {error.strerror or error}", "give a readable file to --prompts"
        ) from None
    plain = path.suffix.lower() == ".txt"
    prompts: list[Prompt] = []
    ignored: dict[str, int] = {}
    for number, raw in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        line = raw.strip()
        if not line:
            continue
        try:
            prompt = Prompt(text=line.decode("utf-8")) if plain else _parse(line, ignored)
        except ValueError as error:  # orjson's and Unicode's own are ValueErrors
            raise UsageError(f"line {number} of {path} is no prompt: {_reason(error)}", _remedy(plain)) from None
        if prompt.output_tokens is None and out is not None:
            prompt = replace(prompt, output_tokens=out.low)
        prompts.append(prompt)
    if not prompts:
        raise UsageError(f"the prompts file {path} holds no prompt", _remedy(plain))
    has = f"{path.name} has {len(prompts):,} prompt{'s' if len(prompts) > 1 else ''}"
    notes = [f"{has}: past the end it is sent from its beginning again, maybe out of the server's cache"]
    if ignored:
        keys = ", ".join(sorted(ignored))
        notes.append(f"keys of {path.name} that are not used: {keys} (a line with messages is sent whole)")
    return PlainWorkload(
        None, out, tuple(prompts), path.name, hashlib.sha256(data).hexdigest() if data else "", tuple(notes)
    )


def _parse(line: bytes, ignored: dict[str, int]) -> Prompt:
    """One JSON line. Raises ValueError with the reason."""
    value = orjson.loads(line)
    if isinstance(value, str):
        if not value:
            raise ValueError("the text is empty")
        return Prompt(text=value)
    if not isinstance(value, dict):
        raise ValueError("it is neither a text nor an object")
    output = _output_length(value)
    if "messages" in value:
        if not isinstance(value["messages"], list) or not value["messages"]:
            raise ValueError("messages is not a list with an entry")
        return Prompt(body={k: v for k, v in value.items() if k not in OWN_KEYS}, output_tokens=output)
    if not isinstance(value.get("prompt"), str) or not value["prompt"]:
        raise ValueError("it has neither messages nor a prompt that is a text")
    for key in value:
        if key != "prompt" and key not in OUTPUT_KEYS:
            ignored[key] = ignored.get(key, 0) + 1
    return Prompt(text=value["prompt"], output_tokens=output)


def _output_length(value: dict[str, Any]) -> int | None:
    for key in OUTPUT_KEYS:
        length = value.get(key)
        if length is None:
            continue
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise ValueError(f"{key} is {length!r}, not a number of tokens")
        return length
    return None


def _reason(error: ValueError) -> str:
    if isinstance(error, orjson.JSONDecodeError):
        return f"not JSON ({error.msg})"
    return "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)


def _remedy(plain: bool) -> str:
    if plain:
        return "write one prompt a line, in UTF-8"
    return 'write one JSON value a line: "text" or {"prompt": "text", "output_len": 64}; name plain text *.txt'


def _span(lengths: list[int | None]) -> str:
    known = [n for n in lengths if n is not None]
    if not known:
        return "as the server likes"
    text = str(LengthRange(min(known), max(known)))
    return text if len(known) == len(lengths) else f"{text}, else as the server likes"
