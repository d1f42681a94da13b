"""The plain workload: shapes from flags, prompts from files, and every mistake named with its line."""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.workload.plain import plain_workload


def write(path: Path, data: bytes | str) -> Path:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def test_defaults_and_shapes() -> None:
    default = plain_workload()
    assert (default.max_input_tokens, default.max_output_tokens, default.sized) == (512, 128, True)
    assert default.describe() == "made text · in 512 · out 128"
    ranged = plain_workload("100-200", "1000-2000")
    assert ranged.describe() == "made text · in 100–200 · out 1,000–2,000"
    assert ranged.mean_output_tokens == 1500
    assert ranged.manifest() == {
        "kind": "shape",
        "input_len": [100, 200],
        "output_len": [1000, 2000],
        "source": None,
        "prompts": None,
        "content_sha256": ranged.content_hash,
    }
    assert len({w.content_hash for w in (default, ranged, plain_workload(512, 129))}) == 3
    assert plain_workload("512", 128).content_hash == default.content_hash


def test_prompts_file_of_every_kind_of_line(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 5}
    lines = [
        '"plain text with \u2028 inside"',
        '{"prompt": "p", "output_len": 7}',
        "",
        '{"prompt": "q", "max_tokens": 8, "id": 3}',
        '{"prompt": "r", "output_tokens": 9, "max_tokens": null}',
        json.dumps(body),
        json.dumps({**body, "output_len": 6}),
        '{"prompt": "s"}',
    ]
    path = write(tmp_path / "some.jsonl", "\ufeff" + "\r\n".join(lines) + "\n")
    workload = plain_workload(output_len=64, prompts_file=path)
    assert workload.prompts == (
        Prompt(text="plain text with \u2028 inside", output_tokens=64),
        Prompt(text="p", output_tokens=7),
        Prompt(text="q", output_tokens=8),
        Prompt(text="r", output_tokens=9),
        Prompt(body=body, output_tokens=5),
        Prompt(body=body, output_tokens=6),
        Prompt(text="s", output_tokens=64),
    )
    assert workload.max_output_tokens == 64
    assert workload.max_input_tokens is None
    assert not workload.sized
    assert any("not used: id" in note for note in workload.notes)
    assert any("7 prompts" in note for note in workload.notes)
    assert workload.describe() == "some.jsonl · 7 prompts · out 5–64"
    assert workload.content_hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert workload.manifest()["prompts"] == 7


def test_prompts_are_cycled_in_order_and_dealt_to_workers(tmp_path: Path) -> None:
    workload = plain_workload(prompts_file=write(tmp_path / "p.txt", "a\n\n b \nc"))
    assert [p.text for p in islice(workload.stream(1, "n"), 7)] == ["a", "b", "c", "a", "b", "c", "a"]
    assert [p.text for p in islice(workload.stream(2, "m", worker=1, workers=2), 4)] == ["b", "a", "c", "b"]
    assert workload.max_output_tokens is None
    assert workload.mean_output_tokens is None
    assert workload.describe() == "p.txt · 3 prompts · out as the server likes"


def test_text_files_take_json_as_text(tmp_path: Path) -> None:
    workload = plain_workload(prompts_file=write(tmp_path / "p.TXT", '{"prompt": 1}\n'))
    assert workload.prompts == (Prompt(text='{"prompt": 1}'),)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"prompt": "a"', "not JSON"),
        ("plain", "not JSON"),
        ("7", "neither a text nor an object"),
        ("null", "neither a text nor an object"),
        ('""', "empty"),
        ("{}", "neither messages nor a prompt"),
        ('{"prompt": ["a"]}', "neither messages nor a prompt"),
        ('{"prompt": ""}', "neither messages nor a prompt"),
        ('{"messages": []}', "messages"),
        ('{"messages": "hi"}', "messages"),
        ('{"prompt": "a", "output_len": 0}', "output_len is 0"),
        ('{"prompt": "a", "max_tokens": "9"}', "max_tokens is '9'"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens is True"),
        ('{"prompt": "a", "max_tokens": 1.5}', "max_tokens is 1.5"),
        (b'"\xff"', "JSON"),
        ('{"prompt": "a", "x": NaN}', "not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str | bytes, reason: str) -> None:
    data = b'"fine"\n\n' + (line if isinstance(line, bytes) else line.encode()) + b'\n"fine"\n'
    with pytest.raises(UsageError) as caught:
        plain_workload(prompts_file=write(tmp_path / "bad.jsonl", data))
    assert "line 3 of" in caught.value.message
    assert reason in caught.value.message
    assert caught.value.remedy


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        plain_workload(prompts_file=tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="directory"):
        plain_workload(prompts_file=tmp_path)
    with pytest.raises(UsageError, match="holds no prompt"):
        plain_workload(prompts_file=write(tmp_path / "empty.jsonl", "\n\n"))
    with pytest.raises(UsageError, match=r"line 2 of .* not UTF-8"):
        plain_workload(prompts_file=write(tmp_path / "latin.txt", b"a\n\xe9\n"))


def test_flags_that_exclude_each_other(tmp_path: Path) -> None:
    path = write(tmp_path / "p.txt", "a")
    with pytest.raises(UsageError, match="--input-len and --prompts"):
        plain_workload(input_len=5, prompts_file=path)
    with pytest.raises(UsageError, match="is a range"):
        plain_workload(output_len="1-2", prompts_file=path)
