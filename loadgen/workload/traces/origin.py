"""Where the requests of a replayed run come from, so that they can be made again: its file, or what its text followed
from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UsageError
from ...records import Prompt
from ..definition import workload_of
from ..files import PromptFile, read_prompts
from ..prompts import Calibration, LengthRange, PromptStream
from ..sessions import Conversation, Conversations, Sessions, sessions_of
from ..sharing import sharing_of


@dataclass(frozen=True, slots=True)
class Origin:
    """The workload of a run: what its text follows from, as the manifest has it (`passed.made_object`), and the run's
    `seed`; or a `file`, whose `content_hash` was that. With the run's `nonce` the text is the same, where the server's
    tokenizer is; without, it is new, of the same lengths, and shares and goes on as that of the run did."""

    seed: int
    nonce: str | None = None
    input_len: tuple[int, int] | None = None
    output_len: tuple[int, int] | None = None
    definition: Mapping[str, Any] | None = None
    sharing: dict[str, Any] | None = None
    sessions: Mapping[str, Any] | None = None
    file: str | None = None
    content_hash: str = ""

    @property
    def conversations(self) -> bool:
        """Are its requests turns, each sent with what was said before it?"""
        return self.sessions is not None or _defines_sessions({"definition": self.definition})

    def opened(self, nonce: str = "") -> Opened:
        """`nonce` is that of new text. Raises UsageError where the file is not the run's."""
        return Opened(self, nonce)


class Opened:
    """The prompts of an origin, by step and number."""

    def __init__(self, origin: Origin, nonce: str) -> None:
        self.origin = origin
        self._nonce = origin.nonce or nonce
        self._streams: dict[int, PromptStream] = {}
        self._file: PromptFile | None = None
        self._definition = None if origin.definition is None else workload_of(origin.definition, "the run's workload")
        defined = None if self._definition is None else self._definition.sessions
        self._sharing = sharing_of(origin.sharing)
        self._sessions: Sessions | None = sessions_of(origin.sessions) or defined
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
        """The prompt of request `number` of a step of that run, or of the first turn of its conversation `number`."""
        if self._file is not None:
            return self._file.head[number % len(self._file.head)]
        stream = self._streams.get(step)
        if stream is None:
            origin = self.origin
            inputs, outputs = (LengthRange(*one) for one in (origin.input_len or (1, 1), origin.output_len or (1, 1)))
            lengths = None if self._definition is None else self._definition.lengths
            sharing = self._sharing
            stream = self._streams[step] = PromptStream(
                origin.seed, f"{self._nonce}-{step}", inputs, outputs, calibration, lengths=lengths, sharing=sharing
            )
        return stream.at(number)

    def conversation(
        self, step: int, number: int, calibration: Calibration, context: int | None
    ) -> Conversation | None:
        """Conversation `number` of a step of that run; None where its requests are none."""
        if self._sessions is None:
            return None
        key = f"nonce {self._nonce}-{step}"
        return Conversation(Conversations(self._sessions, self.origin.seed, key, calibration, context), number)


def origin_of(found: dict[str, Any] | None) -> Origin | None:
    """The origin whose fields came as JSON."""
    if found is None:
        return None
    lengths = {name: tuple(found[name]) if found[name] else None for name in ("input_len", "output_len")}
    return Origin(**{**found, **lengths})


_MADE = ("input_len", "output_len", "definition", "sharing", "sessions")


def run_origin(found: Mapping[str, Any], file: str | None, *, same_text: bool) -> Origin | None:
    """Where the requests of a replay come from, by the workload of the run's manifest: from its `file`, or from what
    its text followed from. None where each is made by its length alone, as prompts have nothing in common, or as it
    cannot be told what. Raises KeyError, TypeError, ValueError or AttributeError for a manifest that is damaged."""
    made = found.get("made")
    if made is None or "trace" in made:  # it is not told, or its trace is not to be had
        if found.get("sharing") or found.get("sessions"):
            return None
        made = dict.fromkeys(_MADE) | {name: found.get(name) for name in _MADE[:2]}
    if file is None and not same_text and not any((made["sharing"], made["sessions"], _defines_sessions(made))):
        return None
    seed, nonce = found["seed"], found["nonce"]
    if not isinstance(seed, int) or not isinstance(nonce, str):
        raise TypeError(f"seed {seed!r}, nonce {nonce!r}")
    if not same_text and file is None:
        kept = None
    else:
        kept = f"seed {seed}" if found.get("same_text") else nonce
    return origin_of(
        {name: made[name] for name in _MADE}
        | {"seed": seed, "nonce": kept, "file": file}
        | {"content_hash": str(found.get("content_sha256") or "") if file is not None else ""}
    )


def _defines_sessions(made: Mapping[str, Any]) -> bool:
    return "sessions" in (made["definition"] or {})
