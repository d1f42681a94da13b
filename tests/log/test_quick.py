from __future__ import annotations

import os
import re
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from loadgen.errors import Failure, LogError
from loadgen.log import cache, quick
from loadgen.log.codec import encode_record
from loadgen.log.columns import Columns, columns
from loadgen.log.opened import Run, open_run
from loadgen.records import Events, Record
from tests.log.record_strategies import RECORD, any_record
from tests.log.test_columns import same
from tests.thorough import examples

TEXT = '"events":{"gap_us":[1],"tokens":[1],"bounded":[]}'


def written(folder: Path, data: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "requests.jsonl").write_bytes(data)
    return folder


def both(folder: Path) -> tuple[Columns | str, Columns | str]:
    """What a record at a time gives, and what a block at a time gives: columns, or the sentence of the error. The same
    span by span, or the test fails."""

    def told(read: Callable[[], Columns]) -> Columns | str:
        try:
            return read()
        except LogError as error:
            return str(error)

    slow, fast = open_run(folder), open_run(folder)
    found = told(lambda: columns(slow.records())), told(lambda: quick.read_columns(fast))
    assert isinstance(found[1], str) or slow.truncated_lines == fast.truncated_lines
    for size in (1, 700, 2_000):
        spans = open_run(folder)
        parts = told(partial(by_spans, spans, size))
        assert agree(found[1], parts), (found[1], parts)
        assert isinstance(parts, str) or spans.truncated_lines == fast.truncated_lines
    return found


def by_spans(run: Run, size: int) -> Columns:
    return quick.read_log(run, span_bytes=size, processes=1).columns()


def agree(slow: Columns | str, fast: Columns | str) -> bool:
    return slow == fast if isinstance(slow, str) or isinstance(fast, str) else same(slow, fast)


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(any_record, min_size=1, max_size=6))
@example([replace(RECORD, peer=TEXT, events=None), replace(RECORD, finish_reason=TEXT), RECORD])
@example([replace(RECORD, events=Events([], [], [])), RECORD])
@example([replace(RECORD, events=Events([5, 7], [None, 2], [(1, 30)])), RECORD])
@example([replace(RECORD, events=Events([-5, 7], [1, 1], []))])
@example([replace(RECORD, events=Events([2**40, 10**15], [1, 2**40], []))])
@example([replace(RECORD, events=Events([0, 7, 10, 99_999_999, 100_000_000], [1] * 5, []))])
@example([replace(RECORD, model="b", peer="x:1"), replace(RECORD, model="a", peer="y:1"), RECORD] * 2)
@example([replace(RECORD, error=Failure("http", 'said "{no}": \\ [', 503), outcome="http_error", events=None), RECORD])
@example([replace(RECORD, session=1, turn=2, shared=(3, 4), sent_bound_us=5, source_id="s"), RECORD])
def test_blocks_give_what_records_give(tmp_path_factory: pytest.TempPathFactory, found: list[Record]) -> None:
    apart = [replace(record, id=f"{i} {record.id}") for i, record in enumerate(found)]
    folder = written(tmp_path_factory.mktemp("run"), b"".join(map(encode_record, apart)))
    assert agree(*both(folder))


LINES = [
    encode_record(
        replace(RECORD, id=f"s1-{i}", events=Events([40_000 + i, 9, 10], [1, 1, 1], [(2, 5)] if i % 2 else []))
    )
    for i in range(4)
]
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "cut short": lambda line: line[: len(line) // 2] + b"\n",
    "cut in the token log": lambda line: line[: line.index(b'"tokens"') + 12] + b"\n",
    "no events": lambda line: re.sub(rb'"events":\{[^}]*\},', b"", line),
    "events null": lambda line: re.sub(rb'"events":\{[^}]*\}', b'"events":null', line),
    "events without tokens": lambda line: re.sub(rb'"tokens":\[[^]]*\],', b"", line),
    "a gap is text": lambda line: line.replace(b'"gap_us":[', b'"gap_us":["1",'),
    "a gap is a fraction": lambda line: line.replace(b'"gap_us":[', b'"gap_us":[1.5,').replace(
        b":[1,1,1]", b":[1,1,1,1]"
    ),
    "a gap is null": lambda line: line.replace(b'"gap_us":[', b'"gap_us":[null,').replace(b":[1,1,1]", b":[1,1,1,1]"),
    "a gap too many": lambda line: line.replace(b'"gap_us":[', b'"gap_us":[1,'),
    "no gaps": lambda line: re.sub(rb'"gap_us":\[[^]]*\]', b'"gap_us":[]', line),
    "a count too many": lambda line: line.replace(b'"tokens":[', b'"tokens":[1,'),
    "counts unlike": lambda line: line.replace(b'"tokens":[1,1,1]', b'"tokens":[1,null,3]'),
    "a count is text": lambda line: line.replace(b'"tokens":[1,1,1]', b'"tokens":[1,"null",3]'),
    "a gap past 64 bits": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[99999999999999999994'),
    "a gap just past 64 bits": lambda line: line.replace(b'"gap_us":[', b'"gap_us":[9223372036854775808,').replace(
        b":[1,1,1]", b":[1,1,1,1]"
    ),
    "a status past 64 bits": lambda line: line.replace(b'"status":200', b'"status":9223372036854775808'),
    "a bound outside": lambda line: line.replace(b'"bounded":[', b'"bounded":[[7,1],').replace(b",]", b"]"),
    "a bound is no pair": lambda line: line.replace(b'"bounded":[', b'"bounded":[[1],').replace(b",]", b"]"),
    "spaces": lambda line: line.replace(b",", b", ").replace(b":", b": "),
    "another order": lambda line: b'{"phase":"measured",' + line[1:].replace(b'"phase":"measured",', b""),
    "a step is true": lambda line: line.replace(b'"step":', b'"step":true,"was":'),
    "a step is missing": lambda line: line.replace(b'"step":', b'"stride":'),
    "a step is null": lambda line: re.sub(rb'"step":\d+', b'"step":null', line),
    "done is missing": lambda line: re.sub(rb'"done_ns":\d+', b'"done_ns":null', line),
    "no worker": lambda line: re.sub(rb'"worker":\d+,', b"", line),
    "an unknown outcome": lambda line: re.sub(rb'"outcome":"\w+"', b'"outcome":"fine"', line),
    "an unknown phase": lambda line: re.sub(rb'"phase":"\w+"', b'"phase":"later"', line),
    "a phase is null": lambda line: re.sub(rb'"phase":"\w+"', b'"phase":null', line),
    "an outcome is null": lambda line: re.sub(rb'"outcome":"\w+"', b'"outcome":null', line),
    "shared is empty": lambda line: b'{"shared":[],' + line[1:],
    "shared is half": lambda line: b'{"shared":[1,null],' + line[1:],
    "shared is null": lambda line: b'{"shared":null,' + line[1:],
    "an unknown flag": lambda line: re.sub(rb'"flags":\[[^]]*\]', b'"flags":["new","not_streamed"]', line),
    "flags are text": lambda line: re.sub(rb'"flags":\[[^]]*\]', b'"flags":"not_streamed"', line),
    "an unknown key": lambda line: b'{"later":[1,{"a":2}],' + line[1:],
    "an unknown source": lambda line: re.sub(rb'"source":("\w+"|null)', b'"source":"guess"', line),
    "a peer is a number": lambda line: re.sub(rb'"peer":("[^"]*"|null)', b'"peer":7', line),
    "an id is a number": lambda line: re.sub(rb'"id":"[^"]*"', b'"id":7', line),
    "tokens are a list": lambda line: re.sub(rb'"input_tokens":\{[^}]*\}', b'"input_tokens":[1]', line),
    "a status is text": lambda line: re.sub(rb'"status":\w+', b'"status":"200"', line),
    "a stamp past 64 bits": lambda line: re.sub(rb'"sent_ns":\w+', b'"sent_ns":99999999999999999999', line),
    "an error is text": lambda line: re.sub(rb'"error":(null|\{[^}]*\})', b'"error":"broken"', line),
    "connect is a list": lambda line: re.sub(rb'"connect":(null|\{[^}]*\})', b'"connect":[1,2,3]', line),
    "shared is one number": lambda line: b'{"shared":[1],' + line[1:],
    "shared is text": lambda line: b'{"shared":["1","2"],' + line[1:],
    "an attempt": lambda line: b'{"attempts":[{"sent_ns":1,"status":503,"wait_ms":5},{"sent_ns":9}],' + line[1:],
    "a zero before": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[04'),
    "a plus": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[+4'),
    "a minus": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[-4'),
    "a space": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[ 4'),
    "a comma too many": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[4,,'),
    "a list in a list": lambda line: line.replace(b'"gap_us":[4', b'"gap_us":[[4'),
    "a number of a column is a list's start": lambda line: re.sub(rb'"status":\w+', b'"status":[1', line),
    "two numbers": lambda line: line.replace(b'"cached":null', b'"cached":1,2'),
    "a vertical tab": lambda line: line[:-1] + b"\v\n",
    "not UTF-8": lambda line: line.replace(b'"chatcmpl', b'"\xff\xfechatcmpl'),
    "a control sign": lambda line: line.replace(b'"chatcmpl', b'"\x01chatcmpl'),
    "an escape": lambda line: line.replace(b'"chatcmpl', b'"\\u00e4\\\\chatcmpl'),
    "CRLF": lambda line: line[:-1] + b"\r\n",
    "a list": lambda line: b"[1,2]\n",
    "an empty line": lambda line: b"\n",
    "a NUL": lambda line: b"\0" + line,
    "tagged": lambda line: b'{"kind":"request",' + line[1:],
    "of another kind": lambda line: b'{"kind":"manifest","manifest":{}}\n',
}


@pytest.mark.parametrize("at", [0, 3])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_told_as_a_record_at_a_time_tells_it(tmp_path: Path, damage: str, at: int) -> None:
    lines = [DAMAGES[damage](line) if i == at else line for i, line in enumerate(LINES)]
    assert lines != LINES
    slow, fast = both(written(tmp_path / "run", b"".join(lines)))
    assert agree(slow, fast), (slow, fast)


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_no_damage_is_read_as_something_else(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    whole = bytearray(b"".join(LINES))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        what = data.draw(st.sampled_from(b'0123456789,"[]{}:-n \n.'))
        if data.draw(st.booleans()):
            whole[place] = what
        else:
            whole[place : place + data.draw(st.integers(1, 9))] = b""
    assert agree(*both(written(tmp_path_factory.mktemp("run"), bytes(whole))))


def test_a_last_line_that_is_not_whole_is_counted(tmp_path: Path) -> None:
    run = open_run(written(tmp_path / "run", b"".join(LINES) + LINES[0][:90]))
    assert len(quick.read_columns(run)) == len(LINES) and run.truncated_lines == 1


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([0, 1, 2, 3, 0], "line 5: the request s1-0 is there already, in line 1"),
        ([0, 1, 1, 2, 2], "line 3: the request s1-1 is there already, in line 2"),
        ([3, 3], "line 2: the request s1-3 is there already, in line 1"),
    ],
)
def test_a_request_that_is_there_twice_is_refused(tmp_path: Path, lines: list[int], told: str) -> None:
    found = both(written(tmp_path / "run", b"".join(LINES[i] for i in lines)))
    assert found[0] == found[1] and isinstance(found[0], str) and told in found[0]


def test_a_request_of_the_run_and_of_its_worker_is_there_once(tmp_path: Path) -> None:
    """As a move that was interrupted leaves it."""
    folder = written(tmp_path / "run", b"".join(LINES[:2]))
    (folder / "requests-w0.jsonl").write_bytes(b"".join(LINES))
    slow, fast = columns(open_run(folder).records()), quick.read_columns(open_run(folder))
    assert same(slow, fast) and sorted(fast.ids) == [f"s1-{i}" for i in range(4)]


def test_ids_whose_hashes_are_alike_are_two(tmp_path: Path) -> None:
    run = open_run(written(tmp_path / "run", b"".join(LINES)))
    run.refuse_repeated(array("q", [7, 7]))


# --- what is kept beside a long log ---------------------------------------------------------------------------------


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """A log just long enough to be kept, by texts that no column holds."""
    line = encode_record(replace(RECORD, excerpt="x" * 100_000))
    lines = (line.replace(b"s3-000123", b"s3-%06d" % i) for i in range(cache.LEAST_BYTES // len(line) + 1))
    failed = encode_record(replace(RECORD, id="f", outcome="timeout", timeout="total", events=None))
    return written(tmp_path / "run", b"".join(lines) + failed + LINES[0] + LINES[0][:50])


def kept(folder: Path) -> Sequence[Path]:
    return sorted((folder / cache.FOLDER).glob("*")) if (folder / cache.FOLDER).is_dir() else []


def test_a_long_log_is_read_once(long_run: Path) -> None:
    first, again, slow = open_run(long_run), open_run(long_run), open_run(long_run)
    a = quick.read_columns(first)
    assert [path.name for path in kept(long_run)] == [cache.COLUMNS]
    place = cache.place_of(again)
    assert place is not None and cache.load(*place) is not None
    b = quick.read_columns(again)
    c = columns(slow.records())
    assert same(a, c) and same(b, c)
    assert first.truncated_lines == again.truncated_lines == slow.truncated_lines == 1


def test_what_is_kept_is_never_stale(long_run: Path) -> None:
    n = len(quick.read_columns(open_run(long_run)))
    log = long_run / "requests.jsonl"
    log.write_bytes(log.read_bytes()[:-50] + LINES[1] + LINES[2])
    assert len(quick.read_columns(open_run(long_run))) == n + 2
    assert len(quick.read_columns(open_run(long_run))) == n + 2


def test_a_change_is_seen_though_size_and_time_are_as_before(long_run: Path) -> None:
    quick.read_columns(open_run(long_run))
    log = long_run / "requests.jsonl"
    was, told = log.read_bytes(), log.stat()
    log.write_bytes(was.replace(b'"step":3', b'"step":4', 1))
    os.utime(log, ns=(told.st_atime_ns, told.st_mtime_ns))
    assert log.stat().st_size == told.st_size and log.stat().st_mtime_ns == told.st_mtime_ns
    assert quick.read_columns(open_run(long_run)).step[0] == RECORD.step + 1 == 4


def test_codes_that_stand_for_something_else_are_read_again(long_run: Path) -> None:
    """As a version with another list of outcomes would have kept them."""
    whole = quick.read_columns(open_run(long_run))
    (path,) = kept(long_run)
    data = path.read_bytes()
    assert b'"ok"' in data
    path.write_bytes(data.replace(b'"ok"', b'"OK"', 1))
    place = cache.place_of(open_run(long_run))
    assert place is not None and cache.load(*place) is None
    assert same(quick.read_columns(open_run(long_run)), whole)


@pytest.mark.parametrize("damage", [lambda b: b[:-8], lambda b: b"", lambda b: b"{}\n" + b, lambda b: b + b"\0"])
def test_what_is_kept_and_damaged_is_read_again(long_run: Path, damage: Callable[[bytes], bytes]) -> None:
    whole = quick.read_columns(open_run(long_run))
    (path,) = kept(long_run)
    path.write_bytes(damage(path.read_bytes()))
    assert same(quick.read_columns(open_run(long_run)), whole)


def test_a_place_that_cannot_be_written_to_is_no_fault(long_run: Path) -> None:
    (long_run / cache.FOLDER).write_text("in the way")
    assert len(quick.read_columns(open_run(long_run))) > 100


@pytest.mark.parametrize("name", ["requests-w0.jsonl", "mine.jsonl"])
def test_only_a_run_folder_is_written_to(long_run: Path, name: str) -> None:
    (long_run / "requests.jsonl").rename(long_run / name)
    quick.read_columns(open_run(long_run / name))
    assert bool(kept(long_run)) == name.startswith("requests")


def test_a_step_by_itself_is_what_the_whole_has_of_it() -> None:
    found = [replace(RECORD, id=f"{i}", step=1 + i // 5 % 3) for i in range(40)]
    builder = quick.ColumnBuilder()
    for record in found:
        builder.add(record)
    whole = builder.columns()
    assert builder.steps() == whole.steps() == [1, 2, 3]
    for step in (1, 2, 3, 4):
        assert same(builder.of_step(step), replace(whole.where(whole.step == step), ids=[]))
