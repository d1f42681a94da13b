"""The workload of a run: one shape from flags, a definition, or the prompts of a file (`files` says of what kinds)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..records import Prompt
from .definition import Workload
from .files import PromptFile, read_prompts
from .lengths import SIDES, Lengths
from .models import ModelMix, with_models
from .prompts import Calibration, LengthRange, PromptStream, parse_length
from .sessions import Conversations, Sessions, with_sessions
from .sharing import Sharing
from .traces.replayed import Replayed

DEFAULT_INPUT_LEN = LengthRange(512, 512)
DEFAULT_OUTPUT_LEN = LengthRange(128, 128)


@dataclass(frozen=True, slots=True)
class PlainWorkload:
    """Either a shape (`input_len` and `output_len`) or given prompts: `prompts`, cycled in their order; of a `file` its
    head, and the file gives them all. `models`, where given, says which model each request asks for.

    Of a `definition`, the lengths are its own, and `input_len` and `output_len` the spans that they lie in. Likewise of
    a `trace`, whose prompts come to an end where it is sent at its own times.

    Prompts may share their beginnings (`sharing`), and each may be the first turn of a conversation (`sessions`).

    `content_hash` is the SHA-256 of the file, of the shape or of the definition; `notes` are what a user should be
    told.
    """

    input_len: LengthRange | None
    output_len: LengthRange | None
    prompts: tuple[Prompt, ...] = ()
    source: str = ""
    content_hash: str = ""
    notes: tuple[str, ...] = ()
    file: PromptFile | None = None
    models: ModelMix | None = None
    definition: Workload | None = None
    sharing: Sharing | None = None
    sessions: Sessions | None = None
    trace: Replayed | None = None

    @property
    def lengths(self) -> Lengths | None:
        """Those of the definition; None where the ranges say all."""
        return self.definition.lengths if self.definition is not None else None

    @property
    def label(self) -> str:
        """Its name in that of a run's folder."""
        if self.definition is not None:
            return self.definition.name
        if self.trace is not None:
            return self.source
        return f"{self.input_len}-{self.output_len}" if self.sized else self.source

    @property
    def usual(self) -> tuple[int | None, int | None]:
        """Input and output tokens of a request that stands for all: the middle ones of a definition, else the longest;
        None where only a tokenizer, or the server, could tell."""
        if self.trace is not None:
            inputs, outputs = self.trace.inputs, self.trace.outputs
            return round(inputs[1]) if inputs and self.sized else None, round(outputs[1]) if outputs else None
        if self.definition is None:
            return self.max_input_tokens, self.max_output_tokens
        lengths = self.definition.lengths
        return round(lengths.figures("input").p50), round(lengths.figures("output").mean)

    @property
    def complete(self) -> bool:
        """Is every prompt known?"""
        if self.trace is not None:
            return self.trace.complete
        return self.file is None or self.file.complete

    @property
    def grows(self) -> bool:
        """Are there turns that hold what was said before them, whose length nobody knows ahead?"""
        return self.sessions is not None or (self.trace is not None and self.trace.goes_on)

    @property
    def endpoint(self) -> str | None:
        """The endpoint that whole bodies are for; None where the workload does not tell."""
        if self.trace is not None and self.trace.origin is not None:
            return self.trace.origin.opened().endpoint
        return self.file.endpoint if self.file is not None else None

    @property
    def named_models(self) -> tuple[str, ...]:
        """The models that are asked for by name, as far as is known before the start, the first one first; empty where
        some request leaves it to the run."""
        if self.models is not None:
            return self.models.names
        if self.trace is not None:
            return self.trace.models if self.trace.choice.models else ()
        own = [str(prompt.body["model"]) for prompt in self.prompts if prompt.body and prompt.body.get("model")]
        return tuple(dict.fromkeys(own)) if len(own) == len(self.prompts) else ()

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
        """The longest output asked for, as far as is known before the start; None where some prompt leaves it, or may
        leave it, to the server."""
        if not self.prompts or (not self.complete and self.output_len is None):
            return self.output_len.high if self.output_len else None
        asked = [p.output_tokens for p in self.prompts]
        return None if None in asked else max(n for n in asked if n is not None)

    @property
    def mean_output_tokens(self) -> float | None:
        """The mean output asked for; None where some prompt leaves it to the server."""
        if self.definition is not None:
            return self.definition.lengths.figures("output").mean
        if self.trace is not None and self.trace.outputs is not None:
            return self.trace.outputs[1]
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
        context: int | None = None,
    ) -> Iterator[Prompt]:
        """An endless iterator of prompts, the same for the same arguments, of which worker i of W gets the prompts
        i, i + W, …. Given prompts come as they are: neither seed nor nonce changes them. `context` is the longest that
        the server takes, in tokens: no conversation grows beyond it. The iterator raises UsageError for a line of a
        large file that is no prompt."""
        if self.trace is not None:
            key = f"seed {seed}" if same_text else nonce
            prompts = self.trace.prompts(key, calibration, worker, workers, context=context)
        else:
            prompts = self._stream(seed, nonce, calibration, worker, workers, same_text=same_text)
        if self.models is not None:
            prompts = with_models(prompts, self.models, seed, worker, workers)
        if self.sessions is not None:
            key = f"seed {seed}" if same_text else f"nonce {nonce}"
            of = Conversations(self.sessions, seed, key, calibration or Calibration(), context)
            prompts = with_sessions(prompts, of, worker, workers)
        return prompts

    def _stream(
        self, seed: int, nonce: str, calibration: Calibration | None, worker: int, workers: int, *, same_text: bool
    ) -> Iterator[Prompt]:
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
                lengths=self.lengths,
                sharing=self.sharing,
            )
        if self.file is not None:
            return self.file.prompts(worker, workers)
        prompts = self.prompts
        return (prompts[i % len(prompts)] for i in count(worker, workers))

    def describe(self) -> str:
        """One line for the screen."""
        mixed = f" · models {self.models}" if self.models is not None and len(self.models.names) > 1 else ""
        mixed = "".join(f" · {one}" for one in (self.sharing, self.sessions) if one is not None) + mixed
        if self.definition is not None:
            return self.definition.describe() + mixed
        if self.trace is not None:
            return self.trace.describe() + mixed
        if self.input_len:
            return f"made text · in {self.input_len} · out {self.output_len}{mixed}"
        number = f"{len(self.prompts):,} prompt{'s' if len(self.prompts) != 1 else ''}"
        if self.file is not None and not self.file.complete:
            number = f"{self.file.size / 1e9:,.2f} GB, the first {number} looked at"
        return f"{self.source} · {number} · out {_span([p.output_tokens for p in self.prompts])}{mixed}"

    def manifest(self) -> dict[str, Any]:
        """The same for the manifest, with the hash of the content."""
        lengths = {"input_len": self.input_len, "output_len": self.output_len}
        return {
            "kind": "trace"
            if self.trace is not None
            else "definition"
            if self.definition is not None
            else "shape"
            if self.sized
            else "prompts",
            **{name: [r.low, r.high] if r else None for name, r in lengths.items()},
            "source": self.source or None,
            "prompts": (len(self.prompts) or None) if self.complete else None,
            "content_sha256": self.content_hash,
            **({} if self.sharing is None else {"sharing": self.sharing.as_object()}),
            **({} if self.sessions is None else {"sessions": self.sessions.as_object()}),
            **({} if self.definition is None else self.definition.manifest()),
            **({} if self.trace is None else self.trace.manifest()),
            **({} if self.file is None else {"bytes": self.file.size, "hashed_bytes": self.file.offset}),
            **(
                {} if self.models is None else {"models": dict(zip(self.models.names, self.models.shares, strict=True))}
            ),
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
    file = read_prompts(Path(prompts_file), None if out is None else out.low)
    return PlainWorkload(None, out, file.head, Path(prompts_file).name, file.content_hash, file.notes, file)


def defined_workload(definition: Workload) -> PlainWorkload:
    """The workload that a definition says."""
    lengths = definition.lengths
    inputs, outputs = (LengthRange(low, int(high)) for low, high in map(lengths.span, SIDES))
    notes = []
    if lengths.refused >= 0.001:
        notes.append(f"the limits of {definition.name} refuse {100 * lengths.refused:.2g} % of draws, made again")
    return PlainWorkload(
        inputs,
        outputs,
        source=definition.name,
        content_hash=definition.hash,
        notes=tuple(notes),
        definition=definition,
        sharing=definition.sharing,
        sessions=definition.sessions,
    )


def traced_workload(trace: Replayed) -> PlainWorkload:
    """The workload of a trace that was looked through. Its text is made unless the trace, or the run that it comes
    from, has it. Raises UsageError where it does not say how long answers are to be."""
    if trace.outputs is None:
        raise UsageError(
            f"{trace.trace.path} does not tell how long each answer is to be", "add --output-len N for those without"
        )
    inputs = None if trace.inputs is None or trace.given else LengthRange(trace.inputs[0], trace.inputs[2])
    name, outputs = trace.name, LengthRange(trace.outputs[0], trace.outputs[2])
    return PlainWorkload(
        inputs, outputs, source=name, content_hash=trace.content_hash, notes=trace.notes(), trace=trace
    )


def _span(lengths: list[int | None]) -> str:
    known = [n for n in lengths if n is not None]
    if not known:
        return "as the server likes"
    text = str(LengthRange(min(known), max(known)))
    return text if len(known) == len(lengths) else f"{text}, else as the server likes"
