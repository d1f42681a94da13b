"""What compare and check say in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from loadgen.analysis.compare import Difference, Failing, Load
from loadgen.analysis.conditions import Condition
from loadgen.analysis.ratios import LogRatio
from loadgen.analysis.regression import Check, Judged, Objection, judge_losses
from loadgen.report.checked import checked_lines, headline, junit, markdown
from loadgen.report.chinese import chinese
from loadgen.report.compared import condition_lines, failing_text, load_text, refusal, sentence, short, together_text
from loadgen.results import Estimate

EIGHT = Load(False, 8)


def difference(
    ratio: float | None, error: float | None = 0.005, p: float | None = None, metric: str = "ttft"
) -> Difference:
    percentile = None if metric == "output_throughput" else 95.0
    log = None if ratio is None else LogRatio(math.log(ratio), error, 9)
    b = None if ratio is None else 100 * ratio
    return Difference(metric, percentile, Load(False, 32), 100.0, b, log, "paired", primary=p is not None, p_adjusted=p)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (difference(1.12), "B has 12 % higher p95 TTFT [+11 %, +13 %], which is worse: 100 → 112 ms"),
        (difference(0.88), "B has 12 % lower p95 TTFT [−13 %, −11 %], which is better: 100 → 88.0 ms"),
        (
            difference(0.88, metric="output_throughput", p=0.0004),
            "B has 12 % less output throughput [−13 %, −11 %], which is worse: 100 → 88.0 tokens/s, p <0.001 by Holm",
        ),
        (difference(0.9999), "no difference established in p95 TTFT: +0.0 % [−1.1 %, +1.1 %]: 100 → 100.0 ms"),
        (difference(1.001), "no difference established in p95 TTFT: +0.1 % [−1.0 %, +1.2 %]: 100 → 100 ms"),
        (
            difference(1.02, p=0.06),
            "no difference established in p95 TTFT: +2.0 % [+0.9 %, +3.2 %] beyond chance by itself,"
            " but not among so many questions: 100 → 102 ms",
        ),
        (difference(1.5, None), "p95 TTFT +50 %: 100 → 150 ms; too few requests to tell it from chance"),
        (difference(None), "p95 TTFT cannot be compared: B has none"),
    ],
)  # fmt: skip
def test_each_difference_is_a_sentence(made: Difference, words: str) -> None:
    assert sentence(made) == words


THREE = tuple(Load(False, n) for n in (1, 8, 24))


@pytest.mark.parametrize(
    ("over", "words", "brief"),
    [
        (THREE, "over all 3 loads together", "p95 TTFT over 3 loads together"),
        (THREE[1:], "over 2 of 3 loads together (8, 24)", "p95 TTFT over 2 loads together"),
    ],
)
def test_what_is_over_several_loads_says_over_which(over: tuple[Load, ...], words: str, brief: str) -> None:
    pooled = replace(difference(1.12), load=None, over=over)
    assert together_text(pooled, 3) == words
    assert short(pooled) == brief
    assert chinese(brief) == f"{len(over)} 个负载合计的 p95 TTFT"


def test_conditions_show_what_differs_of_long_flags() -> None:
    flags = Condition("server flags", ("a=1, b=2, c=3", "a=1, b=5, c=3"), main=True)
    lines = condition_lines([flags, Condition("GPU", (None, "H100"), main=True)], 2, 120)
    assert lines[1].split() == ["server", "flags", "b=2", "b=5", "changed"]
    assert lines[2].split() == ["GPU", "unknown", "H100", "unknown"]


def test_one_change_is_a_comparison_and_two_are_not() -> None:
    model, gpu = (Condition(name, ("x", "y"), main=True) for name in ("model", "GPU"))
    seed = Condition("seed", ("1", "2"), main=False)
    assert refusal([model, seed]) == ""
    assert refusal([model, gpu]).startswith("2 main variables were changed (model, GPU)")


def test_failures_are_said_where_there_are_any() -> None:
    none, some = Estimate(0.0, 0.0, 0.01), Estimate(0.2, 0.15, 0.25)
    assert failing_text(Failing(EIGHT, none, none), "B") == ""
    assert "B fails more often" in failing_text(Failing(EIGHT, none, some), "B")
    assert "no difference proven" in failing_text(Failing(EIGHT, Estimate(0.19, 0.1, 0.3), some), "B")


def judged(*ratios: float | None) -> tuple[Judged, ...]:
    return judge_losses([difference(ratio) for ratio in ratios], 0.05)


@pytest.mark.parametrize(
    ("check", "answer", "words"),
    [
        (Check(judged(1.2, 1.0)), "regression", "regression: p95 TTFT at a load of 32"),
        (Check(judged(1.0)), "held", "no loss above 5.0 %, and that is proven"),
        (Check(judged(1.045)), "undecided", "undecided: 5.6 times as long would probably decide"),
        (Check(judged(1.05)), "undecided", "undecided: too close to 5.0 %"),
        (Check(judged(None)), "undecided", "undecided: there is nothing to compare"),
        (Check(()), "undecided", "undecided: there is nothing to compare"),
        (Check(judged(1.2), refused="2 changed"), "undecided", "undecided: 2 changed"),
        (
            Check(judged(1.0), objections=(Objection(EIGHT, "ttft_p95"),)),
            "regression",
            "regression: ttft_p95 at a load of 8",
        ),
        (
            Check(judged(1.0), objections=(Objection(EIGHT, "ttft_p95", undecided=True),)),
            "undecided",
            "undecided: no loss above 5.0 %, but ttft_p95 at a load of 8 not proven to hold",
        ),
    ],
    ids=[*"abcdefghi"],
)
def test_the_answer_in_a_line(check: Check, answer: str, words: str) -> None:
    assert check.answer == answer and headline(check).startswith(words)
    assert checked_lines(check)[0].endswith(headline(check)) and headline(check) in markdown(check)


def test_words_of_others_cannot_break_the_files() -> None:
    check = Check(judged(1.0), objections=(Objection(EIGHT, 'a<b & "c" | \x1b[31m'),))
    assert b"a&lt;b &amp;" in junit(check) and b"\x1b" not in junit(check)
    assert "\\|" in markdown(check) and "\x1b" not in markdown(check)


def test_failures_that_are_not_proven_are_not_said_to_be_held() -> None:
    none, some = Estimate(0.0, 0.0, 0.1), Estimate(0.2, 0.05, 0.5)
    check = Check(judged(1.0), failing=(Failing(EIGHT, none, some),))
    assert check.answer == "held" and "whether B fails more often at a load of 8 is not" in headline(check)
    (line,) = (line for line in checked_lines(check) if "failures at" in line)
    assert line.split()[0] == "unproven" and "no difference proven" in line
    assert b'skipped="1"' in junit(check) and b'errors="0"' in junit(check) and b"<skipped message=" in junit(check)
    fewer = Check(judged(1.0), failing=(Failing(EIGHT, some, Estimate(0.0, 0.0, 0.01)),))
    assert headline(fewer).endswith("proven") and b'skipped="0"' in junit(fewer)


def test_a_rate_is_not_called_a_load() -> None:
    told = [load_text(load) for load in (None, Load(False, 0), EIGHT, Load(True, 8), Load(True, 0.5))]
    assert told == ["all loads", "the load that was not told", "a load of 8", "8 requests/s", "0.5 requests/s"]
