from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

from loadgen.workload.traces import Trace, TraceRow, describe_trace, open_trace

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


def test_a_column_without_a_name_is_none_of_those_that_are_absent(tmp_path: Path) -> None:
    """pandas writes its index so."""
    path = written(tmp_path, ",num_prefill_tokens,num_decode_tokens\n0,5,6\n1,7,8\n")
    rows, _ = read(open_trace(path))
    assert [(r.at_s, r.input_tokens, r.output_tokens, r.model, r.session, r.turn) for r in rows] == [
        (None, 5, 6, None, None, None),
        (None, 7, 8, None, None, None),
    ]


def test_the_outer_cells_of_a_tsv_may_be_empty(tmp_path: Path) -> None:
    text = "session\tinput_tokens\toutput_tokens\tstart_ts\tmodel\n\t5\t6\t1.0\tm\ns\t7\t8\t2.0\t\n\t\t\t\t\n"
    rows, _ = read(open_trace(written(tmp_path, text)))
    found = [(r.session, r.input_tokens, r.output_tokens, r.model) for r in rows]
    assert found == [(None, 5, 6, "m"), ("s", 7, 8, None)]


def test_mean_and_max_are_of_all_rows_and_quantiles_of_the_head(tmp_path: Path) -> None:
    text = "num_prefill_tokens,num_decode_tokens\n" + "10,1\n" * 4 + "100,9\n" * 4
    found = describe_trace(written(tmp_path, text), sample=4)
    assert found.lengths == {"input": (55.0, 10, 10, 10, 100), "output": (5.0, 1, 1, 1, 9)}
    assert "of the first 4 rows" in found.notes[-1]
    assert describe_trace(tmp_path / "trace", sample=8).notes == ()
