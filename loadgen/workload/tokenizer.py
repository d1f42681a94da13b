"""A local tokenizer: a `tokenizer.json` of this machine's disk. Nothing is ever downloaded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..records import Prompt
from .paths import asked

FILE = "tokenizer.json"


class LocalTokenizer:
    """Counts and encodes text without special tokens and without a chat template. `count` may be called in any thread;
    it leaves the interpreter to others while it works."""

    def __init__(self, path: str) -> None:
        """Raises UsageError, in one sentence, where `path` is no tokenizer or the package is not installed."""
        file = _file(path)
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise UsageError(
                "--tokenizer needs the package tokenizers, which is not installed",
                "pip install 'loadgen[tokenizer]', or leave --tokenizer out: lengths are then learnt from the server",
            ) from None
        try:
            data = file.read_bytes()
            self._inner: Any = Tokenizer.from_buffer(data)
        except OSError as error:
            raise UsageError(
                f"{file} cannot be read: {error.strerror}", "give a readable file to --tokenizer"
            ) from None
        except Exception as error:  # the package raises bare ones
            why = " ".join(str(error).split())[:120]
            raise UsageError(f"{file} is no tokenizer: {why}", f"give the {FILE} of a Hugging Face model") from None
        self._inner.no_truncation()
        self._inner.no_padding()
        self.path = str(file)
        self.sha256 = hashlib.sha256(data).hexdigest()

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def encode(self, text: str) -> list[int]:
        """The token ids of `text`; a lone surrogate counts as a question mark."""
        clean = text.encode("utf-8", "replace").decode()
        # Of the package's calls, the one for several texts is the one that lets other threads run.
        [found] = self._inner.encode_batch_fast([clean], add_special_tokens=False)
        ids: list[int] = found.ids
        return ids


def prompt_text(prompt: Prompt) -> str:
    """All the text of a prompt; of a whole body, that of its prompt and messages, their parts one after the other."""
    if prompt.body is None:
        return prompt.text
    return "".join(_texts([prompt.body.get(key) for key in ("prompt", "input", "inputs", "messages")]))


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for one in value for text in _texts(one)]
    if isinstance(value, dict):
        return [text for key in ("content", "text") for text in _texts(value.get(key))]
    return []


def _file(path: str) -> Path:
    given = asked(Path(path), "tokenizer", f"give the path of a {FILE}, or of the folder that holds it")
    if given.is_dir():
        if not (given / FILE).is_file():
            raise UsageError(f"the folder {path} holds no {FILE}", f"give a {FILE}, or the folder that holds it")
        return given / FILE
    if not given.exists():
        raise UsageError(
            f"--tokenizer {path} is no file or folder here, and nothing is downloaded",
            f"give the path of a {FILE}, or of the folder that holds it",
        )
    return given
