"""Which model each request asks for: one, or several in given shares. Pure and seeded."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, count

from ..errors import UsageError
from ..records import Prompt

_REMEDY = "write --model NAME=SHARE for each of several, as in --model base=0.7 --model lora-a=0.3"


@dataclass(frozen=True, slots=True)
class ModelMix:
    """Names of models, each once, and the share of requests that asks for each; the shares make up 1."""

    names: tuple[str, ...]
    shares: tuple[float, ...]

    def draw(self, seed: int, index: int) -> str:
        """The model of request `index` of a stream: its own draw, whoever makes the requests before it."""
        if len(self.names) == 1:
            return self.names[0]
        digest = hashlib.blake2b(f"model {seed} {index}".encode(), digest_size=8).digest()
        place = bisect_right(list(accumulate(self.shares)), int.from_bytes(digest, "big") / 2**64)
        return self.names[min(place, len(self.names) - 1)]

    def __str__(self) -> str:
        if len(self.names) == 1:
            return self.names[0]
        return ", ".join(f"{name} {share:.3g}" for name, share in zip(self.names, self.shares, strict=True))


def parse_models(texts: Sequence[str]) -> ModelMix | None:
    """The values of `--model`: NAME, or NAME=SHARE each; shares are in proportion. None without any.

    A name may hold an equals sign where what follows its last one is no number. Raises UsageError.
    """
    if not texts:
        return None
    pairs = [_parse(text) for text in texts]
    names = [name for name, _ in pairs]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise UsageError(f"--model names {double} twice", "name each model once, with all of its share")
    told = [share for _, share in pairs if share is not None]
    if told and len(told) < len(pairs):
        bare = next(name for name, share in pairs if share is None)
        raise UsageError(f"--model {bare} has no share, but another has one", _REMEDY)
    shares = told or [1.0] * len(pairs)
    return ModelMix(tuple(names), tuple(share / sum(shares) for share in shares))


def with_models(prompts: Iterator[Prompt], mix: ModelMix, seed: int, worker: int, workers: int) -> Iterator[Prompt]:
    """The prompts of a worker's part of a stream, each with its model."""
    for index, prompt in zip(count(worker, workers), prompts, strict=False):
        yield replace(prompt, model=mix.draw(seed, index))


def _parse(text: str) -> tuple[str, float | None]:
    name, equals, number = text.rpartition("=")
    try:
        share = float(number) if equals else None
    except ValueError:
        name, share = text, None
    if not equals:
        name = text
    if not name.strip():
        raise UsageError(f"--model {text!r} names no model", _REMEDY)
    if share is not None and not (share > 0 and math.isfinite(share)):
        raise UsageError(f"--model {text} has no share above zero", _REMEDY)
    return name.strip(), share
