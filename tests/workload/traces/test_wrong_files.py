# ruff: noqa: E501 - files as they are
"""A file that is no trace, or is one no more, gets a sentence with its line; whatever it is, never a traceback."""

from __future__ import annotations

import contextlib
import gzip
import os
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.traces import describe_trace, open_trace, parse_map
from tests.thorough import examples

from .samples import SAMPLES

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
MOON = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}\n'
WRONG = [
    ("empty", "", "is empty"),
    ("blank", "\n\n  \n", "is empty"),
    ("header only", AZURE, "holds no request to send: it has no rows"),
    ("only failures", AZURE + "2024-05-10 00:00:00+00:00,5,0\n", "1 no output"),
    ("negative", AZURE + "2024-05-10 00:00:00+00:00,5,1\n\n2024-05-10 00:00:00+00:00,-5,1\n", "line 4 .*below zero"),
    ("nan", "arrived_at,num_prefill_tokens,num_decode_tokens\nnan,1,1\n", "line 2 .*not a finite number"),
    ("infinite", "arrived_at,num_prefill_tokens,num_decode_tokens\n1,1,1\ninf,1,1\n", "line 3 .*not a finite number"),
    ("fraction of a token", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,1.5,1\n", "line 2 .*not a whole number"),
    ("a Python number", AZURE + "2024-05-10 00:00:00+00:00,1_000,1\n", "line 2 .*1_000', not a number"),
    ("no time", AZURE + "yesterday,5,1\n", "line 2 .*not a date and time"),
    ("seconds for a clock", AZURE + "17.5,5,1\n", "line 2 .*not a date and time"),
    ("truncated row", AZURE + "2024-05-10 00:00:00+00:00,5,1\n2024-05-10 00:0", "line 3 .*it has 1 columns, the header 3"),
    ("truncated json", MOON + MOON[:40], "line 2 .*not JSON"),
    ("decimal comma", "arrived_at;num_prefill_tokens;num_decode_tokens\n0,5;1;1\n", "decimal comma"),
    ("unknown header", "a,b,c\n1,2,3\n", "begins with 'a, b, c', which is no known trace's header"),
    ("unknown keys", '{"a": 1}\n', "has the keys a, which are no known trace's"),
    ("bodies", '{"messages": [{"role": "user"}]}\n', "request bodies"),
    ("ambiguous unit", '{"timestamp": 0, "input_length": 5, "output_length": 5}\n', "milliseconds .* or seconds"),
    ("hashes too few", MOON.replace("600", "1025"), "line 1 .*2 hash_ids of 512 tokens a block cannot cover.*1,025"),
    ("hashes too many", MOON.replace("600", "30").replace("1]", "1, 2]"), "line 1 .*too many.*blocks of 10"),
    ("hashes of the wrong kind", MOON.replace("[0, 1]", "[0.5, 1]"), "line 1 .*not a list of block ids"),
    ("tokens as a list", MOON.replace("600", "[6]"), "line 1 .*input_length is a list"),
    ("tokens missing", MOON + '{"timestamp": 3, "output_length": 5, "hash_ids": [0]}\n', "line 2 .*input_length is missing"),
    ("too many tokens", MOON.replace("600", "6000000000"), "line 1 .*no request has so many"),
    ("stamp out of range", MOON.replace('p": 0', 'p": 1e30'), "line 1 .*out of range"),
    ("array of numbers", "[1, 2, 3]", "JSON array of no known trace"),
    ("array breaks off", '[{"id": "a", "conversations": [{"from": "human", "value": "x"}]},', "line 1 .*ends in the middle"),
    ("deep", "[" * 200_000, "nested too deeply|not JSON"),
    ("column twice", "TIMESTAMP,ContextTokens,GeneratedTokens,ContextTokens\n", "ContextTokens twice"),
    ("rate curve by another name", "0,0.5,1.1,Gamma,0.9,2.2\n", "rate curve of ServeGen"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_wrong_file_is_refused_in_a_sentence(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"(?s){says}") as told:
        describe_trace(path)
    assert told.value.remedy and str(path) in told.value.message


def test_what_is_no_readable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        describe_trace(tmp_path / "none")
    with pytest.raises(UsageError, match="is a folder"):
        describe_trace(tmp_path)
    with pytest.raises(UsageError, match="cannot be read"):
        describe_trace("a\0b")
    with pytest.raises(UsageError, match="cannot be read: File name too long"):
        describe_trace("a" * 300)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="save it to a file"):
        describe_trace(tmp_path / "pipe")
    (tmp_path / "zip").write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(UsageError, match="is a zip file"):
        describe_trace(tmp_path / "zip")
    (tmp_path / "utf16").write_text(AZURE, encoding="utf-16")
    with pytest.raises(UsageError, match="not UTF-8"):
        describe_trace(tmp_path / "utf16")
    whole = gzip.compress(("".join([AZURE, "2024-05-10 00:00:00+00:00,5,1\n" * 5000])).encode())
    (tmp_path / "cut.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="the gzip file breaks off"):
        describe_trace(tmp_path / "cut.gz")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_no_permission_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(AZURE)
    path.chmod(0)
    with pytest.raises(UsageError, match="Permission denied"):
        describe_trace(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("traces") / "any"


def survives(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        found = describe_trace(path)
        assert found.requests >= 1 and all(found.lines())
    except UsageError as told:
        assert told.message and "\n" not in told.message


@given(st.binary(max_size=400))
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_never_raise_anything_else(place: Path, data: bytes) -> None:
    survives(place, data)


@given(st.sampled_from(SAMPLES), st.data())
@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_trace_of_any_format_never_raises_anything_else(
    place: Path, sample: object, data: st.DataObject
) -> None:
    text = bytearray(sample.text.encode())  # type: ignore[attr-defined]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        kind = data.draw(st.sampled_from(["cut", "replace", "insert", "delete"]))
        piece = data.draw(st.sampled_from([b"-", b"NaN", b"1e999", b"null", b"[", b'"', b",", b"\n", b"\xff", b"\0", b"9" * 30,
                                           b"9" * 5000, b"{}", b"true", b"0", b"\\u0000"]))  # fmt: skip
        if kind == "cut":
            del text[at:]
        elif kind == "delete":
            del text[at : at + data.draw(st.integers(1, 20))]
        else:
            text[at : at + (len(piece) if kind == "replace" else 0)] = piece
    survives(place, bytes(text))


@pytest.mark.parametrize(
    ("name", "piece", "close"),
    [
        ("one long array that never ends", b'[{"id": 1, "conversations": [' + b'{"from": "human", "value": "a"},', b""),
        ("one line without an end", b"a,", b""),
        ("quotes", b'"TIMESTAMP","', b""),
        ("many short rows", b"arrived_at,num_prefill_tokens,num_decode_tokens\n", b"0,1,1\n"),
        ("brackets", b"[", b"["),
    ],
    ids=["an array that never ends", "one line", "quotes", "short rows", "brackets"],
)
def test_reading_takes_linear_time(name: str, piece: bytes, close: bytes, place: Path) -> None:
    took = []
    for size in (1, 8):
        place.write_bytes(piece + (close or piece[-31:]) * (size * 4000))
        start = time.process_time()
        with contextlib.suppress(UsageError):
            describe_trace(place)
        took.append(time.process_time() - start)
    assert took[1] < 0.3 + 16 * took[0]  # 8 for a linear reader, 64 for a quadratic one


def test_columns_are_named_for_any_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("when,prompt_n,answer_n,who\n100,10,20,m1\n350,30,40,m2\n")
    rows = list(open_trace(path, parse_map("at=when,input=prompt_n,output=answer_n,model=who,unit=ms")).rows(Counter()))
    assert [(r.at_s, r.input_tokens, r.output_tokens, r.model) for r in rows] == [
        (pytest.approx(0.1), 10, 20, "m1"),
        (pytest.approx(0.35), 30, 40, "m2"),
    ]
    path.write_text('{"t": "2024-05-10T00:00:00Z", "n": 5, "ids": [1, 2]}\n')
    [row] = open_trace(path, parse_map("at=t,input=n,unit=clock,hashes=ids,block=3")).rows(Counter())
    assert (row.at_s, row.input_tokens, row.output_tokens, row.hash_ids, row.block_tokens) == (
        1715299200,
        5,
        None,
        [1, 2],
        3,
    )
    path.write_text('{"timestamp": 2, "input_length": 5, "output_length": 5}\n')
    assert [next(open_trace(path, parse_map(f"unit={u}")).rows(Counter())).at_s for u in ("ms", "s")] == [0.002, 2.0]
    with pytest.raises(UsageError, match="has no 'nope'; its columns are"):
        open_trace(path, parse_map("input=nope"))


@pytest.mark.parametrize(
    "text", ["", "at", "at=", "x=y", "at=a,at=b,input=c", "at=a", "input=a,unit=days", "input=a,block=0"]
)
def test_a_wrong_mapping_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--map") as told:
        parse_map(text)
    assert "at=COLUMN" in told.value.remedy
