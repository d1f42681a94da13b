from __future__ import annotations

import io
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from loadgen.errors import UsageError
from loadgen.log.parquet import COLUMNS, GROUP_ROWS, write_parquet
from loadgen.records import Record
from tests.log.record_strategies import RECORD, any_record


def table(records: list[Record], *, everything: bool = True) -> list[dict[str, object]]:
    out = io.BytesIO()
    count = write_parquet(records, out, everything=everything)
    out.seek(0)
    rows: list[dict[str, object]] = parquet.read_table(out).to_pylist()
    assert len(rows) == count
    return rows


def test_a_row_has_every_column_with_its_type() -> None:
    (row,) = table([RECORD])
    assert list(row) == list(COLUMNS)
    assert (row["request_id"], row["sent_ns"], row["input_tokens"], row["output_tokens"]) == ("s3-000123", 2, 512, 200)
    assert row["event_gap_us"] == [48211, 10022] and row["event_tokens"] == [1, None]
    assert row["ttft_ms"] == pytest.approx(2e-6) and row["tpot_ms"] == pytest.approx(2e-6 / 199)
    assert row["first_event_tokens"] is row["error_kind"] is row["session"] is None


@given(st.lists(any_record, max_size=4))
def test_any_record_comes_back_with_its_numbers(records: list[Record]) -> None:
    for row, r in zip(table(records), records, strict=True):
        assert (row["scheduled_ns"], row["sent_ns"], row["done_ns"]) == (r.scheduled_ns, r.sent_ns, r.done_ns)
        assert row["event_gap_us"] == (None if r.events is None else r.events.gap_us)
        assert (row["outcome"], row["phase"], row["model"]) == (r.outcome, r.phase, r.model)


def test_measured_and_ok_unless_all_are_asked_for() -> None:
    records = [RECORD, replace(RECORD, phase="warmup"), replace(RECORD, outcome="cut")]
    assert len(table(records, everything=False)) == 1 and len(table(records)) == 3
    assert table([]) == []


def test_rows_come_in_groups() -> None:
    out = io.BytesIO()
    write_parquet((RECORD for _ in range(GROUP_ROWS + 1)), out)
    assert [parquet.ParquetFile(out).metadata.row_group(i).num_rows for i in range(2)] == [GROUP_ROWS, 1]


def test_a_lone_surrogate_is_no_fault() -> None:
    (row,) = table([replace(RECORD, finish_reason="\ud800")])
    assert row["finish_reason"] == "?"


def test_where_pyarrow_is_missing_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match="not installed") as error:
        write_parquet([RECORD], io.BytesIO())
    assert "loadgen[parquet]" in error.value.remedy
