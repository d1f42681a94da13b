"""`loadgen.load`: a log's columns, held against what the Parquet export writes of the same records, row by row."""

from __future__ import annotations

import math
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import loadgen
from loadgen.log.codec import encode_record
from loadgen.log.parquet import row
from loadgen.records import Record
from tests.cli.command import ROOT
from tests.log.record_strategies import RECORD, any_record

EXAMPLE = ROOT / "results" / "example-vllm"


def written(folder: Path, records: list[Record], rest: bytes = b"") -> Path:
    file = folder / "requests.jsonl"
    file.write_bytes(b"".join(map(encode_record, records)) + rest)
    return file


def value(array: Any, at: int) -> Any:
    found = array[at]
    found = found.item() if isinstance(found, np.generic) else found
    return None if isinstance(found, float) and math.isnan(found) else found


@given(st.lists(any_record, min_size=1, max_size=5))
def test_the_same_as_in_parquet(records: list[Record]) -> None:
    records = [replace(record, id=f"{i} {record.id}") for i, record in enumerate(records)]
    with tempfile.TemporaryDirectory() as place:
        table = loadgen.load(written(Path(place), records), everything=True)
    assert len(table) == len(records)
    arrow = table.arrow()
    for at, record in enumerate(records):
        wanted = row(record)
        for name in table:
            if name not in wanted or name == "flags":
                continue
            if name in ("ttft_ms", "tpot_ms") and "not_streamed" in record.flags:
                wanted[name] = None  # the arrival of a whole answer is no first token
            exact = arrow[name][at].as_py()
            assert exact == (pytest.approx(wanted[name]) if name.endswith("_ms") else wanted[name]), name
            assert value(table[name], at) in (exact, float(exact) if isinstance(exact, int) else exact), name
        assert set(table["flags"][at].split()) == set(record.flags)
        mine = table.events["request"] == at
        gaps = [] if record.events is None else record.events.gap_us
        first = record.sent_ns is None  # then the first gap has no beginning
        assert table.events["gap_ms"][mine][first:].tolist() == pytest.approx([gap / 1e3 for gap in gaps][first:])


def test_the_example() -> None:
    table = loadgen.load(EXAMPLE)
    everything = loadgen.load(str(EXAMPLE), everything=True)
    assert 0 < len(table) < len(everything) and set(table["phase"]) == {"measured"} and set(table["outcome"]) == {"ok"}
    assert table.status == "complete" and table.manifest and table.manifest["verb"]
    assert table["sent_ns"].dtype == np.int64 and table["ttft_ms"].dtype == np.float64
    assert (np.bincount(table.events["request"], minlength=len(table)) > 0).all()
    assert table["output_tokens"].sum() == np.nansum(table.events["tokens"]) or np.isnan(table.events["tokens"]).any()
    assert dict(table).keys() == set(table.keys()) and f"{len(table):,} rows" in repr(table)


def test_what_is_left_out(tmp_path: Path) -> None:
    records = [RECORD, replace(RECORD, id="w", phase="warmup"), replace(RECORD, id="c", outcome="cut")]
    file = written(tmp_path, records, rest=encode_record(RECORD)[:50])
    assert len(loadgen.load(file)) == 1 and len(loadgen.load(file, everything=True)) == 3
    assert loadgen.load(file).truncated_lines == 1
    assert len(loadgen.load(written(tmp_path, []))) == 0


def test_arrow() -> None:
    table = loadgen.load(EXAMPLE, everything=True)
    found = table.arrow()
    assert found.num_rows == len(table) and found.column_names == table.keys()
    assert found["model"].type == "string" and found["sent_ns"].type == "int64"
    assert found["error_kind"].null_count == sum(kind is None for kind in table["error_kind"])
    assert found["session"].null_count == len(table)
    assert table.events.arrow().num_rows == len(table.events)


def test_pandas_and_polars_where_they_are() -> None:
    table = loadgen.load(EXAMPLE)
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    assert isinstance(table.pandas(), pandas.DataFrame) and list(table.pandas().columns) == table.keys()
    assert table.pandas()["ttft_ms"].median() == pytest.approx(np.median(table["ttft_ms"]))
    assert isinstance(table.polars(), polars.DataFrame) and table.polars()["session"].null_count() == len(table)
    assert table.polars()["ttft_ms"].median() == pytest.approx(np.median(table["ttft_ms"]))


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_one_sentence_where_a_package_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    table = loadgen.load(EXAMPLE)
    with pytest.raises(loadgen.UsageError, match=f"{name} is not installed"):
        getattr(table, name.removeprefix("py"))()


@pytest.mark.parametrize("content", [None, b"", b"garbage\n", b'{"kind":"request"}\n'])
def test_where_there_is_nothing_to_read(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "log.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(loadgen.LogError):
        loadgen.load(path)
