"""SGLang's `bench_serving --output-file FILE --output-details`: a line a run, the requests as lists side by side.

It tells neither when a request was sent nor how long it took: the end is that of the last gap. The tool itself takes
the end of the stream, some microseconds later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import LogError
from .entry import Entry, Foreign
from .vllm import NO_STARTS, side_by_side

TOOL = "sglang bench_serving"


def recognises(document: Any) -> bool:
    return isinstance(document, Mapping) and "total_output_tokens_retokenized" in document


def read(documents: Sequence[Entry]) -> Foreign:
    log = Foreign(TOOL, [], notes=(NO_STARTS,))
    for step, one in enumerate(documents, 1):
        if one.get("ttfts") is None:
            raise LogError(
                f"{one.where} holds the summary of an SGLang run and no requests", "run it again with --output-details"
            )
        log.records += side_by_side(one, step)
        if (duration := one.number("duration")) is not None:
            log.durations_s[step] = duration
    return log
