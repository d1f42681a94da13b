from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from loadgen.workload.traces import Trace, TraceRow, open_trace

from .samples import SAMPLES, Sample


def written(folder: Path, text: str, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


def read(trace: Trace) -> tuple[list[TraceRow], dict[str, int]]:
    dropped: Counter[str] = Counter()
    return list(trace.rows(dropped)), dict(dropped)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
@pytest.mark.parametrize("spelt", ["plain", "gzip", "bom", "crlf", "blank lines", "no last newline"])
def test_every_format_is_told_by_its_content_and_read(sample: Sample, spelt: str, tmp_path: Path) -> None:
    text = sample.text
    if spelt == "crlf" and "\r" not in text:
        text = text.replace("\n", "\r\n")
    elif spelt == "blank lines" and not text.startswith("prompt,"):
        text = "\n" + text.replace("\n", "\n\n")
    elif spelt == "no last newline":
        text = text.rstrip("\n")
    data = ("\ufeff" + text if spelt == "bom" else text).encode()
    path = tmp_path / "x.bin"
    path.write_bytes(gzip.compress(data) if spelt == "gzip" else data)
    trace = open_trace(path)
    rows, dropped = read(trace)
    assert (trace.format, trace.unit) == (sample.format, sample.unit)
    assert [(row.input_tokens, row.output_tokens) for row in rows] == [row[1:] for row in sample.rows]
    assert [row.at_s for row in rows] == pytest.approx([row[0] for row in sample.rows], abs=2e-6)
    assert {name: getattr(rows[0], name) for name in sample.more} == sample.more
    assert dropped == sample.dropped
