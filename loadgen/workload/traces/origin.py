"""Where the requests of a replayed run come from, so that they can be made again: its file, or its seed and nonce."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...records import Prompt
from ..files import PromptFile, read_prompts
from ..prompts import Calibration, LengthRange, PromptStream


@dataclass(frozen=True, slots=True)
class Origin:
    """The workload of a run: a shape (`input_len`, `output_len`) with the run's `seed` and `nonce`, or a `file`, whose
    `content_hash` was that. Made text is the same where the server's tokenizer is."""

    seed: int
    nonce: str
    input_len: tuple[int, int] | None = None
    output_len: tuple[int, int] | None = None
    file: str | None = None
    content_hash: str = ""

    def opened(self) -> Opened:
        """Raises UsageError where the file is not the run's."""
        return Opened(self)


class Opened:
    """The prompts of an origin, by step and number."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self._streams: dict[int, PromptStream] = {}
        self._file: PromptFile | None = None
        if origin.file is not None:
            self._file = read_prompts(Path(origin.file), origin.output_len[0] if origin.output_len else None)
            if self._file.content_hash != origin.content_hash:
                raise UsageError(f"{origin.file} is not the file of that run: its content differs", "give that file")
            if not self._file.complete:
                raise UsageError(f"{origin.file} is too large to send single lines of it", "replay without its text")

    @property
    def endpoint(self) -> str | None:
        return self._file.endpoint if self._file is not None else None

    def prompt(self, step: int, number: int, calibration: Calibration) -> Prompt:
        """The prompt of request `number` of a step of that run."""
        if self._file is not None:
            return self._file.head[number % len(self._file.head)]
        stream = self._streams.get(step)
        if stream is None:
            origin = self.origin
            inputs, outputs = (LengthRange(*one) for one in (origin.input_len or (1, 1), origin.output_len or (1, 1)))
            stream = PromptStream(origin.seed, f"{origin.nonce}-{step}", inputs, outputs, calibration)
            self._streams[step] = stream
        return stream.at(number)


def origin_of(found: dict[str, Any] | None) -> Origin | None:
    """The origin whose fields came as JSON."""
    if found is None:
        return None
    lengths = {name: tuple(found[name]) if found[name] else None for name in ("input_len", "output_len")}
    return Origin(**{**found, **lengths})
