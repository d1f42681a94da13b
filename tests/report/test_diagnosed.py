"""A diagnosis as a person reads it, and as a program does."""

from __future__ import annotations

import pytest

from loadgen.analysis.diagnose import CAUSES, Check, Diagnosis, Fact, Finding
from loadgen.log.codec import encode, plain
from loadgen.report.diagnosed import diagnosed_lines, diagnosed_object, fact_text

QUEUE = Finding(
    "batch_limit",
    "warning",
    "high",
    "the server admits about 8 requests to its batch, the others wait in its queue",
    (Fact("wait of the median request at 32 in flight", 5187.3, "ms"), Fact("share of its whole time", 0.77, "share")),
    "raise the limit of sequences in a batch (vLLM: --max-num-seqs), now about 8",
    (4, 5),
)
SLOW = Finding("decode_bound", "info", "low", "each token takes longer", (Fact("growth", 1.5, "times"),), "fp8", (5,))
CHECKS = (
    Check("objective", "ttft_p95=500ms · broken at 32", False),
    Check("workload", "answers have 40 % of the tokens asked for", False),
    Check("memory", "not told", None),
)


def test_one_change_is_proposed_however_many_causes_there_are() -> None:
    lines = diagnosed_lines(Diagnosis(CHECKS, (QUEUE, SLOW), 5), ["results/RUN"])
    assert lines[0] == "run       results/RUN · 5 loads"
    assert [line for line in lines if line.startswith("try")] == ["try       " + QUEUE.change]
    assert [line.split()[0] for line in lines if line and line[0] != " "][1:] == [
        *("objective", "workload", "memory", "cause", "try", "also"),
    ]
    assert "fp8" not in "\n".join(lines)
    assert "          · wait of the median request at 32 in flight: 5,187 ms" in lines


def test_what_comes_before_every_cause_is_pointed_at() -> None:
    lines = diagnosed_lines(Diagnosis(CHECKS, (), 5), ["results/RUN"])
    assert [line for line in lines if "look at this first" in line] == [
        f"workload  {CHECKS[1].text} ← look at this first"
    ]


@pytest.mark.parametrize(
    ("levels", "said"), [(0, "enough answered requests"), (1, "one load alone"), (3, "nothing is wrong")]
)
def test_no_finding_is_an_answer_too(levels: int, said: str) -> None:
    assert said in "\n".join(diagnosed_lines(Diagnosis((), (), levels), ["RUN"]))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_lines_keep_to_the_width_and_drive_no_terminal(width: int) -> None:
    hostile = Finding("requests_failing", "error", "high", "busy\x1b[31m \n" + "word " * 60, (), "x\x07y", ())
    lines = diagnosed_lines(Diagnosis(CHECKS, (hostile, QUEUE, SLOW), 5), ["a\x1b[2Jb"], width)
    assert max(map(len, lines)) <= width
    assert not any(ord(letter) < 32 for line in lines for letter in line)


@pytest.mark.parametrize(
    ("fact", "text"),
    [
        (Fact("share", 0.123, "share", ("s1-1", "s1-2")), "share: 12 % (s1-1, s1-2, …)"),
        (Fact("requests", 1234.0), "requests: 1,234"),
        (Fact("R²", 0.987), "R²: 0.987"),
        (Fact("growth", 2.5, "times"), "growth: 2.50 ×"),
        (Fact("time", 0.0, "ms"), "time: 0 ms"),
    ],
)
def test_numbers_have_their_units(fact: Fact, text: str) -> None:
    assert fact_text(fact) == text


def test_the_object_is_strict_json_with_the_first_cause_in_front() -> None:
    found = diagnosed_object(Diagnosis(CHECKS, (QUEUE, SLOW), 5), ["RUN"])
    assert encode(plain(found))
    assert (found["cause"], found["change"]) == (QUEUE.cause, QUEUE.change)
    assert [one["level"] for one in found["findings"]] == ["warning", "info"]
    assert found["findings"][0]["evidence"][1] == {
        "what": "share of its whole time",
        "value": 0.77,
        "unit": "share",
        "rows": [],
    }
    assert diagnosed_object(Diagnosis((), (), 0), [])["cause"] is None


def test_every_cause_has_a_title_of_its_own() -> None:
    assert len(set(CAUSES.values())) == len(CAUSES)
