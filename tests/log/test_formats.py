from __future__ import annotations

import csv
import dataclasses
import io
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import LogError
from loadgen.log.codec import decode_record
from loadgen.log.formats import COLUMNS, read_csv, safe_cell, write_csv, write_jsonl
from loadgen.records import InputTokens, Record
from tests.log.record_strategies import RECORD, any_record, cell, measured_record

HEADER = "request_id,start_ts,first_token_ts,end_ts,input_tokens,output_tokens"
EXAMPLE = f"{HEADER}\nr1,0.00,0.42,3.10,1024,80\nr2,0.15,0.71,4.36,4096,96\nr3,0.40,0.88,2.92,512,64\n"


def read(text: str | bytes) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    return read_csv(io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", newline=""), "x.csv")


def written(records: list[Record], *, everything: bool = False) -> str:
    out = io.StringIO(newline="")
    write_csv(records, out, everything=everything)
    return out.getvalue()


def test_the_columns_begin_as_documented() -> None:
    head = HEADER + ",step,concurrency,phase,outcome,first_event_tokens,scheduled_ts,done_ts,"
    assert written([]).startswith(head)


def test_the_worked_example_is_read_exactly() -> None:
    r1, r2, r3 = read(EXAMPLE)
    assert (r1.sent_ns, r1.first_token_ns, r1.last_token_ns) == (0, 420_000_000, 3_100_000_000)
    assert (r2.input_tokens.server, r2.output_tokens.count) == (4096, 96)
    assert r3.scheduled_ns == 400_000_000 and r3.done_ns == 2_920_000_000
    assert {(r.phase, r.outcome, r.step, r.concurrency) for r in (r1, r2, r3)} == {("measured", "ok", 1, 0)}


VARIANTS = {
    "byte order mark": b"\xef\xbb\xbf" + EXAMPLE.encode(),
    "CRLF": EXAMPLE.replace("\n", "\r\n"),
    "CR": EXAMPLE.replace("\n", "\r\n").replace("\r\n", "\n").rstrip("\n"),
    "blank lines": "\n" + EXAMPLE.replace("\n", "\n\n") + " \n",
    "quoted": "\n".join(",".join(f'"{c}"' for c in line.split(",")) for line in EXAMPLE.splitlines()),
    "spaces": EXAMPLE.replace(",", " , "),
    "semicolons": EXAMPLE.replace(",", ";"),
    "tabs": EXAMPLE.replace(",", "\t"),
    "upper case header": EXAMPLE.replace(HEADER, HEADER.upper()),
    "extra columns": EXAMPLE.replace("\n", ",gpu,H100\n"),
    "float counts": EXAMPLE.replace(",80\n", ",80.0\n"),
    "exponents": EXAMPLE.replace("3.10", "31e-1"),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_anyones_csv_reads_the_same(name: str) -> None:
    assert read(VARIANTS[name]) == read(EXAMPLE)


def test_columns_come_in_any_order() -> None:
    rows = [line.split(",") for line in EXAMPLE.splitlines()]
    order = [3, 5, 0, 2, 4, 1]
    assert read("\n".join(",".join(row[i] for i in order) for row in rows)) == read(EXAMPLE)


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("b,1,0.5,2,3,4", "first_token_ts 0.5 is before start_ts 1"),
        ("b,1,2,1.5,3,4", "end_ts 1.5 is before first_token_ts 2"),
        ("b,0,1,2,3,0", "output_tokens is 0, an answer has at least 1"),
        ("b,0,1,2,3,-4", "output_tokens is -4, below zero"),
        ("b,0,1,2,-3,4", "input_tokens is -3, below zero"),
        ("b,nan,1,2,3,4", "start_ts is nan, not a finite number"),
        ("b,0,1,inf,3,4", "end_ts is inf, not a finite number"),
        ("b,0,1,2,3,-Infinity", "output_tokens is -Infinity, not a finite number"),
        ("b,zero,1,2,3,4", "start_ts is 'zero', not a number"),
        ("b,1_0,11,12,3,4", "start_ts is '1_0', not a number"),
        ('b,"0,1",1,2,3,4', "decimal comma"),
        ("b,0,1,2,3,4.5", "output_tokens is 4.5, not a whole number"),
        ("b,0,1,1e30,3,4", "end_ts is 1e30, which is out of range"),
        ("b,,1,2,3,4", "start_ts is empty"),
        ("b,0,,2,3,4", "first_token_ts is empty"),
        ("b,0,1,2,3,", "output_tokens is empty"),
        ("b,0,1", "end_ts is empty|output_tokens is empty"),
        (",0,1,2,3,4", "request_id is empty"),
        ("a,0,1,2,3,4", "its id is already that of row 1"),
    ],
)
def test_what_cannot_have_been_measured_is_refused_by_row_and_id(row: str, told: str) -> None:
    with pytest.raises(LogError) as caught:
        read(f"{HEADER}\na,0,1,2,3,4\n\n{row}\nc,0,1,2,3,4\n")
    assert caught.value.message.startswith(f"x.csv row 2 (line 4), request {row.split(',')[0]!r}: ")
    assert any(part in caught.value.message for part in told.split("|"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "x.csv is empty"),
        ("\n \n", "x.csv is empty"),
        (HEADER + "\n", "has a header but no rows"),
        ("request_id,start_ts,end_ts\n1,2,3\n", "lacks the columns first_token_ts, input_tokens, output_tokens"),
        ("r1,0.00,0.42,3.10,1024,80\n", "lacks the columns request_id"),
        (HEADER + ",start_ts\na,0,1,2,3,4,0\n", "has the column start_ts twice"),
        (EXAMPLE.encode("utf-16"), "not UTF-8"),
    ],
)
def test_what_is_no_such_csv_is_refused(text: str | bytes, told: str) -> None:
    with pytest.raises(LogError) as caught:
        read(text)
    assert told in caught.value.message and caught.value.remedy


def test_one_output_token_that_ends_where_it_begins_is_legal() -> None:
    (record,) = read(f"{HEADER}\na,0,1,1,3,1\n")
    assert record.first_token_ns == record.last_token_ns


def test_failed_rows_may_lack_what_a_failure_has_not_got() -> None:
    text = f"{HEADER},outcome,scheduled_ts,done_ts,error\na,0,,,3,,error,0,2,http: busy\nb,,,,3,,client_error,1,,\n"
    a, b = read(text)
    assert (a.outcome, a.first_token_ns, a.done_ns) == ("error", None, 2_000_000_000)
    assert a.error is not None and (a.error.kind, a.error.message) == ("http", "busy")
    assert (b.outcome, b.sent_ns, b.done_ns) == ("client_error", None, 1_000_000_000)
    with pytest.raises(LogError, match="outcome is 'lost'"):
        read(f"{HEADER},outcome\na,0,1,2,3,4,lost\n")


@given(st.lists(measured_record(), max_size=4, unique_by=lambda record: record.id))
def test_an_export_comes_back_by_import(records: list[Record]) -> None:
    if not records:
        return
    assert read(written(records)) == [dataclasses.replace(r, input_tokens=_best_known(r.input_tokens)) for r in records]


def _best_known(tokens: InputTokens) -> InputTokens:
    """A CSV has one column for the prompt's tokens: the server's count, else what was asked for."""
    return tokens if tokens.server is not None else dataclasses.replace(tokens, server=tokens.asked)


@given(st.lists(any_record, max_size=4))
def test_stamps_are_exact_and_every_row_is_there(records: list[Record]) -> None:
    text = written(records, everything=True)
    assert text.count("\n") == len(records) + 1  # one line a row, whatever a server said
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        assert list(row) == list(COLUMNS)
        assert Decimal(row["done_ts"]) * 10**9 == record.done_ns
        assert (row["start_ts"] == "") == (record.sent_ns is None)


@given(st.lists(any_record, max_size=6))
def test_by_default_only_the_ok_measured_requests_leave(records: list[Record]) -> None:
    wanted = [r for r in records if (r.phase, r.outcome) == ("measured", "ok")]
    assert len(list(csv.reader(io.StringIO(written(records), newline="")))) == len(wanted) + 1
    out = io.BytesIO()
    assert write_jsonl(records, out) == len(wanted)
    assert [decode_record(line) for line in out.getvalue().splitlines(keepends=True)] == wanted
    out = io.BytesIO()
    assert write_jsonl(records, out, everything=True) == len(records)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\r\n=x", "'=x"])
def test_no_cell_is_a_formula(text: str) -> None:
    (record,) = read(f"{HEADER}\na,0,1,2,3,4\n")
    row = next(csv.DictReader(io.StringIO(written([dataclasses.replace(record, id=text)]), newline="")))
    assert row["request_id"] == "'" + text.strip("\r\n")
    assert float(row["start_ts"]) == 0.0


def test_a_negative_time_stays_a_number() -> None:
    (record,) = read(f"{HEADER}\na,-0.5,1,2,3,4\n")
    assert record.sent_ns == -500_000_000
    assert written([record]).splitlines()[1].startswith("a,-0.500000000,1.000000000,")


@given(cell)
def test_neutralising_tells_every_text_apart(text: str) -> None:
    safe = safe_cell(text)
    assert safe is not None
    assert not safe.startswith(("=", "+", "-", "@", "\t", "\r"))


def test_conversations_come_back() -> None:
    one = dataclasses.replace(RECORD, session=4, turn=2)
    (back,) = read(written([one], everything=True))
    assert (back.session, back.turn) == (4, 2)
