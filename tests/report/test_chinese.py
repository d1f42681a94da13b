"""Whatever a page can say, it can say in Chinese: every sentence of the sources, and those that are put together."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis import summarise_run
from loadgen.analysis.conditions import conditions
from loadgen.log.columns import columns
from loadgen.report.chinese import PHRASES, chinese, phrases_of
from loadgen.report.chinese.answers import ANSWERS
from loadgen.report.chinese.comparisons import COMPARISONS
from loadgen.report.chinese.findings import FINDINGS
from loadgen.report.chinese.notes import NOTES
from loadgen.report.chinese.runs import RUNS
from loadgen.report.chinese.terms import TERMS
from loadgen.report.health import health_lines
from loadgen.report.page.compared import OWN_WORDS
from loadgen.report.words import Words
from loadgen.results import ClientHealth, ClientLimit, Estimate, Lag, LevelResult, Slo, Stop, StopReason, Unsteady
from loadgen.runner.host import facts
from loadgen.search import SweepPlan, decide
from loadgen.search.rates import RatePlan, decide_rate
from tests.report.chinese import prose, sentences
from tests.report.summaries import run_records

DIAGNOSE = ("caches", "compute", "kv", "outcomes", "overload", "places", "reach", "stalls", "wire", "__init__")
# (source, what of it can stand on a page; nothing is all of it)
SOURCES: list[tuple[str, tuple[str, ...]]] = [
    *((f"analysis/diagnose/{name}.py", ()) for name in DIAGNOSE),
    ("analysis/diagnose/parallel.py", ("parallel_findings",)),
    ("analysis/since.py", ("sentence",)),
    ("analysis/accuracy.py", ("client_limit", "_refilled_late", "_uncertain", "_CPU", "_SPREAD", "_HELD_UP")),
    ("report/asked.py", ("asked_notes",)),
    ("report/caching.py", ("cache_notes",)),
    ("report/compared.py", ("notes", "load_text")),
    ("report/facts.py", ("facts_of",)),
    ("report/health.py", ("limit_texts", "health_notes")),
    ("report/serverview.py", ("server_notes",)),
    ("report/steadiness.py", ()),
    ("report/text.py", ("failures", "notes", "late_notes", "burst_notes", "arrival_notes", "_got")),
    ("client/discovery.py", ("choose_model",)),
    ("client/fits.py", ("least_input",)),
    ("client/lengths.py", ("check_length", "check_ratio", "BY")),
    ("client/peers.py", ("together", "_differences")),
    ("client/preflight.py", ("preflight", "_others", "_effects")),
    ("client/ray_fleet.py", ("where",)),
    ("client/remote.py", ("note",)),
    ("client/target.py", ("_split", "_take_endpoint", "_endpoint")),
    ("runner/recovery.py", ("after",)),
    ("runner/resume.py", ("_note", "check_server")),
    ("runner/run.py", ("_closing_notes",)),
    ("runner/setting.py", ("_played", "_chosen")),
    ("cli/measure.py", ("_capacity_note",)),
    ("simulator/process.py", ("told_lag",)),
    ("workload/files.py", ("_notes",)),
    ("workload/plain.py", ("defined_workload",)),
    ("workload/traces/looking.py", ("within",)),
    ("workload/traces/open.py", ("_drawn", "_csv", "_text")),
    ("workload/traces/replayed.py", ("notes",)),
    ("workload/traces/servegen.py", ("_client", "_lengths")),
    ("workload/traces/texts.py", ("_conversation",)),
    ("workload/traces/timing.py", ("due",)),
]
# Parts of sentences that stand whole among `WHOLE`, and what the terminal alone says.
PARTS = {
    "requests were sent",
    "slots were refilled",
    "7 7, where a request takes 7 (median)",
    "half-written line",
    "; did you mean 7?",
    "; 7 adapter7 on it left aside",
    "model 7, the only one there7",
    "lists no model",
    "does not tell its models",
    "something else",
    "input and output fill the whole context: lower --input-len or --output-len by some percent",
    "7 7 of the Ray cluster at 7",
    ", whose clocks were known within 7 ms",
    ": starts and windows are no more exact than that, latencies are",
    "7 client7 of ServeGen: requests are drawn, by the seed",
    "7 (adapter on 7)",
    "gone: 7; again in 7 s",
    "; who thinks is not in flight",
}
WHOLE = {
    "the limit at 8 in flight at first, which was measured again: the client used 97 % of a CPU": (
        "并发 8 首次测量时客户端是瓶颈，已重新测量：客户端占用了一个 CPU 的 97 %"
    ),
    "the limit at 8 in flight: requests were sent 12 ms late (median), where a request takes 95 ms (median) → give it a"
    " CPU of its own: stop what else runs on this machine, or measure from another one": (
        "并发 8 时客户端是瓶颈：请求发送延后 12 ms（中位数），而单个请求耗时 95 ms（中位数） → 让其独占一个 CPU："
        "停掉本机的其他任务，或换一台机器测量"
    ),
    "slots were refilled up to 9.5 ms late (p99), where a request takes 95 ms (median)": (
        "空位补充延后最多 9.5 ms（p99），而单个请求耗时 95 ms（中位数）"
    ),
    "each of the concurrent slots is a user, who has one conversation after the other, with 4 turns in the mean; who"
    " thinks is not in flight": "每个并发位是一个用户，依次进行会话，平均 4 轮；思考中的用户不计入并发",
    "input lengths about right, ±1 %: 1.64 tokens a word, 10 around the text; input of 64 tokens asked for, 63 by the"
    " server's count": (
        "输入长度大致准确（±1%）：每词 1.64 个 token，文本前后另有 10 个 token；要求输入 64 个 token，服务器计数为 63"
    ),
    "gpu2:8000: is vllm 0.31, the first server is of an unknown kind": (
        "gpu2:8000：为 vllm 0.31，第一个服务器为 未知类型"
    ),
    "12 of 40 requests fail, most of them by http 503: the server is busy": (
        "40 个请求中有 12 个失败，其中多数为 http 503：the server is busy"
    ),
    "requests with long prompts fail: this is too long for me": "长提示的请求失败：this is too long for me",
    "the server held 64.0 ±0.1 requests in the mean where 51.6 were in flight from here at step 5 (Little's law; so at"
    " 3 other steps): other traffic on the server, or several answers to one request": (
        "服务器内平均有 64.0 ±0.1 个请求（步骤 5），而本机的并发为 51.6（利特尔法则；另有 3 个步骤如此）："
        "服务器上有其他流量，或一个请求有多个回答"
    ),
    "in step 2 of 3, now and then nothing arrived for many times longer than usual: the intervals are too narrow for"
    " that": ("步骤 2（共 3 个步骤）：偶有远超平常的停顿，其间没有任何输出到达；置信区间因此偏窄"),
    "at 16 drift and stalls: these intervals promise too much; loadgen check --pairs 8 URL_A URL_B measures in turn": (
        "负载 16 下出现漂移、停顿：其置信区间偏窄；loadgen check --pairs 8 URL_A URL_B 可交替测量"
    ),
    "1 of 40 answers shorter than asked: 12.0 tokens on average where 20.0 were asked for (60 %)": (
        "40 个回答中有 1 个短于要求：平均 12.0 个 token，要求 20.0 个（60 %）"
    ),
    "this machine carries at least 3.1x what this run needed (calibrated 2026-11-29 with 64 streams)": (
        "本机能力至少为本次运行所需的 3.1x（校准于 2026-11-29，64 路并发流）"
    ),
    "2 workers on 2 nodes of the Ray cluster at 10.0.0.1:6379, whose clocks were known within 0.4 ms": (
        "2 个工作进程，位于 10.0.0.1:6379 处 Ray 集群的 2 个节点，其时钟误差在 0.4 ms 以内"
    ),
    "model llama, the only one there; 2 adapters on it left aside": (
        "模型 llama，唯一可用的模型；忽略其上的 2 个 adapter"
    ),
    "the server does not list the model lama; it has llama, qwen; did you mean llama?": (
        "服务器未列出模型 lama；其列出的有 llama, qwen；是否指 llama？"
    ),
    "3 clients of ServeGen: requests are drawn, by the seed": "ServeGen 的 3 个客户端：请求按随机种子抽取",
    "1 worker on 1 node of the Ray cluster at 10.0.0.1:6379, whose clocks were known within 4 ms: starts and windows"
    " are no more exact than that, latencies are": (
        "1 个工作进程，位于 10.0.0.1:6379 处 Ray 集群的 1 个节点，其时钟误差在 4 ms 以内：起止与窗口仅精确到该程度，"
        "延迟不受影响"
    ),
    "12 rows of the trace are left out: an empty text": "略去 trace 中的 12 行：文本为空",
    "resumed against a server that is not the same: version 0.31 → 0.32": "继续运行时服务器已不同：version 0.31 → 0.32",
    "a fault ended the run: No space left on device": "运行因故障结束：No space left on device",
    "p95 TTFT at a load of 32": "负载 32 下的 p95 TTFT",
}
WORKLOADS = {
    "made text · in 32–64 · out 16–32 · exact by the server's tokenizer": (
        "生成的文本 · 输入 32–64 · 输出 16–32 · 精确（依据服务器的 tokenizer）"
    ),
    "sharegpt · in 228 (p50 64, p99 2,389) · out 471 · 64 tokens shared by all, 32 tokens shared in 8 groups": (
        "sharegpt · 输入 228 (p50 64, p99 2,389) · 输出 471 · 所有请求共享 64 个 token，8 组各共享 32 个 token"
    ),
    "made text · sessions of 3 turns, normal, mean 64, std 9 more in, 16 out, think 200 ms, history as answered": (
        "生成的文本 · 会话：3 轮，每轮新增输入 正态分布（均值 64，标准差 9），输出 16，思考 200 ms，历史为实际回答"
    ),
    "trace.jsonl (Mooncake) · the first 1,000 requests in 60.0 s, 2 times as fast · in 512 (1–4,096)": (
        "trace.jsonl (Mooncake) · 60.0 s 内的前 1,000 个请求，2 倍速 · 输入 512 (1–4,096)"
    ),
}
MARK = re.compile(r"\{(\w+)(?::\w+)?\}")
STATUS = {"running", "complete", "interrupted", "failed", "imported"}
DROPPED = {"was", "many", "same"}  # what Chinese has no word for: plurals


@pytest.mark.parametrize(("source", "names"), SOURCES, ids=[source for source, _ in SOURCES])
def test_every_sentence_of_a_source_is_known(source: str, names: tuple[str, ...]) -> None:
    found = set(sentences(source, names))
    assert found
    said = {text: chinese(text.strip(" ,;:")) for text in found - PARTS}
    assert [text for text, chinese in said.items() if chinese is None or prose([chinese])] == []


@pytest.mark.parametrize("english", WHOLE)
def test_a_sentence_that_is_put_together_is_said_whole(english: str) -> None:
    assert chinese(english) == WHOLE[english]


@pytest.mark.parametrize("english", WORKLOADS)
def test_a_workload_is_told_part_by_part(english: str) -> None:
    assert Words("zh").told(english) == WORKLOADS[english]


def test_single_words_of_conditions_ends_and_machines_are_known() -> None:
    said = Words("zh").said
    names = {condition.name for condition in conditions([{}, {}], [[], []])}
    machine = {key for key, value in facts().items() if not isinstance(value, dict)}
    words = {*names, *machine, *get_args(StopReason), *get_args(Unsteady), *STATUS, *OWN_WORDS}
    same = {word for word in words if said(word) == word}
    assert same == {"GPU", "API", "loadgen", "python"}
    assert said("budget:tokens") == "token 预算用尽"
    assert said("slo:tpot_p95") == "违反目标 tpot_p95"


def test_all_of_a_clients_health_is_told() -> None:
    lag = Lag(100, 80.0, 900.0, 2_000_000.0)
    health = ClientHealth(
        stamps="kernel",
        seconds=10.0,
        rejected=3,
        cpu_share=0.5,
        wait_share=0.25,
        loop_lag_us=lag,
        read_lag_us=lag,
        refill_lag_us=lag,
        gc_pauses=2,
        gc_pause_max_us=800.0,
        retransmits=1,
        out_of_order=2,
        dropped=3,
        descriptors=5,
        descriptor_limit=1024,
    )
    (summary,) = summarise_run(columns(run_records((1,))[0]), Slo())
    limit = ClientLimit(
        "the client used 99 % of a CPU", "find what steps this machine's clock, and measure when it is steady"
    )
    whole = replace(summary, health=health, exact_share=0.97, workers=2, client_limit=limit)
    lines = [Words("zh").told(text) for _, text in health_lines(whole)]
    assert len(lines) == 3
    assert not re.search(r"[a-z]{3,}", " ".join(lines))


def test_a_phrase_has_the_same_places_and_no_prose_left() -> None:
    for english, said in PHRASES.items():
        assert set(MARK.findall(english)) - DROPPED == set(MARK.findall(said)), english
        assert not re.search(r"\}\{", english), f"where one place of {english} ends is not known"
        assert prose([said]) == []


def test_each_phrase_is_found_by_its_own_english() -> None:
    for english, said in PHRASES.items():
        for phrase in phrases_of(english, said):
            text = "7".join(phrase.literals)
            assert chinese(text) == said.format(**dict.fromkeys(MARK.findall(said), "7")), text


def test_what_nobody_here_has_said_stays_as_it_is() -> None:
    words = Words("zh")
    for text in (
        "",
        "the server is on fire",
        "in the first step",
        "out of order, again",
        "models of it",
        "steps of others",
        "<b>in flight</b>",
        "x" * 5_000,
    ):
        assert words.said(text) == text
    assert words.told("in 7 · llama · made text") == "输入 7 · llama · 生成的文本"
    assert Words("en").said("usual gap") == "usual gap"


@given(st.text(max_size=40), st.sampled_from(sorted(PHRASES)))
def test_no_text_is_too_odd_to_be_looked_up(odd: str, english: str) -> None:
    said = chinese(MARK.sub(lambda _: odd, english).replace("(s)", "s"))
    assert said is None or isinstance(said, str)


@pytest.mark.parametrize("odd", ["away: ", "away → ", "in step of ", " of ", "the limit at: → "])
def test_sentences_within_each_other_have_an_end(odd: str) -> None:
    assert chinese(odd * 150) is None


VERDICTS = {"p": "pass", "f": "fail", "m": "marginal", "i": "inconclusive", "b": "inconclusive", "B": "baseline"}
FIGURE = re.compile(r"\d+(?:\.\d+)?")


def _level(text: str, *, rate: bool = False) -> LevelResult:
    """`8f`: a level and its verdict, as in the tests of the search."""
    load, kind = float(text[:-1]), text[-1]
    return LevelResult(
        0 if rate else int(load),
        Estimate(50 * load, 49 * load, 51 * load),
        VERDICTS[kind],  # type: ignore[arg-type]
        ("ttft_p95",) if kind in "fmbB" else (),
        p_hat_beyond=kind in "fbB",
        rate=load if rate else None,
        of_limit={"ttft_p95": 0.2 * load} if not rate else {},
    )


@pytest.mark.parametrize(
    ("history", "last", "verb"),
    [
        ("1p 2p 4p 8f 6p 7f 2p", {}, "sweep"),
        ("1p 2p 4m", {}, "sweep"),
        ("1p 2i 4f 3i", {}, "sweep"),
        ("4f", {}, "sweep"),
        ("1f", {}, "run"),
        ("8f", {}, "run"),
        ("8i", {}, "run"),
        ("8p", {}, "run"),
        ("1B 2i", {"ended": "interrupted"}, "sweep"),
        ("1p 2i", {"ended": "budget:time"}, "sweep"),
        ("1p 2i", {"ended": "budget:requests"}, "sweep"),
        ("1p 8f", {"ended": "errors", "broke": ("errors",), "error_rate": 0.4}, "sweep"),
        ("1p 8f", {"ended": "errors", "broke": ("errors",), "detail": "http 503: busy. Try later"}, "sweep"),
        ("1p 8f", {"ended": "errors", "broke": ("errors",), "admitted": 4}, "sweep"),
        ("1p 8f", {"ended": "unauthorized"}, "sweep"),
        ("1p 8f", {"verdict": "invalid", "ended": "client"}, "sweep"),
    ],
)
def test_what_a_sweep_or_a_run_answers_is_told_whole(history: str, last: dict[str, object], verb: str) -> None:
    levels = [_level(text) for text in history.split()]
    levels[-1] = replace(levels[-1], **last)  # type: ignore[arg-type]
    plan = SweepPlan(has_slo=True, start=levels[0].concurrency, second_tries=0)
    found = decide(levels, replace(plan, levels=(levels[0].concurrency,)) if verb == "run" else plan, verb)
    assert isinstance(found, Stop)
    _told_whole(found.sentence)


@pytest.mark.parametrize(
    ("history", "ended"),
    [
        ("1p 2p 4f 2.828p 3.364f 3.084p 3.221p", "complete"),
        ("1p 2p 4f 3p", "budget:time"),
        ("1p 2p 4f 3p", "interrupted"),
        ("1p 256p", "complete"),
        ("1f", "interrupted"),
    ],
)
def test_what_a_sweep_of_rates_answers_is_told_whole(history: str, ended: str) -> None:
    levels = [_level(text, rate=True) for text in history.split()]
    found = decide_rate([*levels[:-1], replace(levels[-1], ended=ended)], RatePlan(1.0))
    assert isinstance(found, Stop)
    _told_whole(found.sentence)


@pytest.mark.parametrize(
    "english",
    [
        "20 requests/s hold every objective.",
        "20 requests/s do not hold every objective (ttft_p95); try a lower --rate.",
        "20 requests/s do not hold every objective (ttft_p95, by failures).",
        "At 20 requests/s the objectives are met to within 5 %: the limit lies there.",
        "The time budget was used up at 2 requests/s. Undecided at 2 requests/s (ttft_p95); a longer step would tell.",
        "8 concurrent requests hold, 64 do not (ttft_p95)",
        "8 requests/s hold, and no other level measured is proven to break",
        "no measured level holds: 6 concurrent requests break ttft_p95, by failures",
        "undecided: no measured level is proven to hold or to break; measure longer",
        "Output throughput stopped growing: from 16 to 64 concurrent requests it changed by -0.5 % per doubling, at"
        " most +1.3 %, which is below 5 %. Highest output throughput: 4,157 ±62 tokens/s.",
    ],
)
def test_what_one_rate_or_a_second_judgement_answers_is_told_whole(english: str) -> None:
    _told_whole(english)


def _told_whole(english: str) -> None:
    """All figures of the English are in the Chinese, and no English prose but data."""
    said = Words("zh").answered(english)
    assert said is not None, english
    assert sorted(FIGURE.findall(said)) == sorted(FIGURE.findall(english))
    assert prose([said], ["http 503: busy. Try later"]) == []


def test_an_answer_that_nobody_here_has_said_is_told_from_the_figures() -> None:
    assert Words("zh").answered("8 hold, and the moon is full.") is None
    assert Words("en").answered("8 hold.") == "8 hold."


def test_no_phrase_is_there_twice() -> None:
    assert sum(map(len, (FINDINGS, NOTES, RUNS, ANSWERS, COMPARISONS, TERMS))) == len(PHRASES)
