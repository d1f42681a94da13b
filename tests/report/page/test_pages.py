"""Whole pages: complete in themselves, safe with whatever a server wrote, small, a table behind every chart."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from pathlib import Path

import pytest

from loadgen.analysis.since import Since
from loadgen.cli.reading import read_run, view_of
from loadgen.log.codec import stop_object
from loadgen.log.store import RunFolder
from loadgen.report.page.run import answer_text, cards, step_table
from loadgen.report.text import render
from loadgen.results import Estimate, Stop
from tests.cases.support import loadgen
from tests.report.chinese import prose
from tests.report.drawn import drawn_run
from tests.report.page.test_html import HOSTILE, read
from tests.thorough import THOROUGH

MOST_BYTES = 5_000_000
WORST = HOSTILE.replace("\ud800", "")  # a log is UTF-8


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("runs")
    manifest = {
        "server": {"kind": WORST, "model": WORST},
        "target": {"url": WORST},
        "notes": [WORST],
        "describe": {WORST: WORST},
    }
    return [
        drawn_run(
            parent,
            name="a",
            each=150,
            levels=(1, 8, 16, 24, 64),
            message=WORST,
            models=(WORST, "llama"),
            manifest=manifest,
        ),
        drawn_run(parent, name="b", each=80, slower=1.3, levels=(1, 8, 16)),
    ]


@pytest.fixture(scope="module")
def page(runs: list[Path]) -> str:
    out = runs[0].parent / "page.html"
    ran = loadgen("report", str(runs[0]), "--html", str(out), "--gpus", "2", "--price", "3")
    assert (ran.code, ran.out) == (0, "")
    assert "complete in itself" in ran.err
    return out.read_text(encoding="utf-8")


def check(page: str) -> None:
    """Nothing is loaded, nothing runs, and the policy says so."""
    found = read(page)
    names = {name for name, _ in found.tags}
    assert not names & {"script", "img", "iframe", "object", "embed", "base", "form", "video", "audio", "use", "image"}
    for _, attributes in found.tags:
        assert not [key for key in attributes if key.startswith("on") or key in ("style", "src", "srcset", "action")]
        target = attributes.get("href")
        assert target is None or target.startswith("#") or target == "data:,"
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {attributes["href"][1:] for _, attributes in found.tags if (attributes.get("href") or "").startswith("#")}
    assert links <= set(ids)
    policy = next(a["content"] for _, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert policy is not None
    assert f"style-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert len(page.encode()) < MOST_BYTES
    assert not re.search("[\x00-\x08\x0b-\x1f\u200e\u200f\u202a-\u202e]", page)


def test_a_page_is_complete_in_itself_and_takes_hostile_words_as_text(page: str) -> None:
    check(page)
    assert page.count("&lt;img src=x onerror") > 5
    assert "<img" not in page


def test_every_chart_has_a_name_and_its_figures_in_a_table(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, re.DOTALL)
    assert len(figures) == 10
    for figure in figures:
        assert re.search(r'<svg [^>]*aria-label="[^"]{20,}', figure)
        assert figure.count("<svg ") == (2 if 'class="wide"' in figure else 1)
        assert "<details>" in figure
        assert "<tbody><tr" in figure
        assert re.search(r"\bn\b", figure)


def test_a_page_says_the_answer_first_and_can_be_walked_with_keys(page: str) -> None:
    assert page.index('class="skip"') < page.index("<h1>") < page.index('id="answer"') < page.index('id="charts"')
    assert "At 16 concurrent requests every objective holds, at 24 concurrent requests not" in page
    assert page.count('class="scroll" tabindex="0"') >= 10


def spoken(page: str) -> list[str]:
    """All that a reader sees, hears or finds under the pointer, an element each."""
    shown = re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)
    labels = [attributes.get("aria-label") or "" for _, attributes in read(page).tags]
    return [text for part in re.split(r"<[^>]*>", shown) if (text := unescape(part).strip())] + labels


def test_a_page_speaks_chinese_of_all_but_data(runs: list[Path], tmp_path: Path) -> None:
    notes = ["interrupted before step 2, and resumed", "requests go to 2 servers in turn"]
    run = drawn_run(tmp_path, each=150, levels=(1, 8, 16, 24, 64), manifest={"notes": notes})
    out = tmp_path / "zh.html"
    ran = loadgen("report", str(run), "--html", str(out), "--lang", "zh")
    assert ran.code == 0, ran.err
    page = out.read_text(encoding="utf-8")
    check(page)
    assert '<html lang="zh-Hans">' in page
    for words in ("负载测试报告", "吞吐量与负载", "请求轮流发往 2 个服务器", "违反目标 ttft_p95"):
        assert words in page
    assert prose(spoken(page), data=["the server is busy"]) == []
    ran = loadgen("compare", str(run), str(runs[1]), "--anyway", "--html", str(out), "--lang", "zh")
    assert ran.code == 0, ran.err
    compared = out.read_text(encoding="utf-8")
    assert "仅 A 测量了 24、64" in compared
    assert "指标定义" in compared
    assert prose(spoken(compared)) == []


def test_runs_side_by_side_are_a_page(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "compared.html"
    ran = loadgen("compare", str(runs[0]), str(runs[1]), "--anyway", "--html", str(out))
    assert (ran.code, ran.out) == (0, ""), ran.err
    page = out.read_text(encoding="utf-8")
    check(page)
    assert {"chart-differences", "chart-throughput", "chart-latency", "chart-pareto"} <= set(
        re.findall(r'id="([^"]+)"', page)
    )
    assert "B has" in page


def test_what_is_not_compared_is_told_with_its_conditions(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "refused.html"
    ran = loadgen("compare", str(runs[0]), str(runs[1]), "--html", str(out))
    assert ran.code == 4
    page = out.read_text(encoding="utf-8")
    check(page)
    assert "Not compared" in page
    assert "chart-differences" not in page


def test_a_run_without_requests_is_a_page_all_the_same(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path, "empty") as run:
        run.write_manifest({"status": "running"})
    ran = loadgen("report", str(run.path), "--html", "-")
    assert ran.code == 0, ran.err
    check(ran.out)
    assert "No request was measured." in ran.out


@pytest.mark.skipif(THOROUGH == 1, reason="half a minute")
@pytest.mark.parametrize(("language", "words"), [("en", "fail ttft_p95 (by failures)"), ("zh", "（因失败）")])
def test_a_verdict_that_failures_made_says_so(tmp_path: Path, language: str, words: str) -> None:
    objectives = {"slo": {"objectives": ["ttft_p95=400ms"]}, "plan": {"max_error_rate": 1.0}, "stop": None}
    run = drawn_run(tmp_path, levels=(1, 8, 40), each=600, failing=0.3, tokens=(2, 3), manifest=objectives)
    told = view_of(read_run(str(run)), language=language)
    assert told.verdict(3) == "fail"
    assert words in " ".join("".join(row) for row in step_table(told).rows).replace("</span>", "")


def test_one_is_told_as_one(tmp_path: Path) -> None:
    told = view_of(read_run(str(drawn_run(tmp_path, levels=(1,), each=1))))
    assert answer_text(told) == "Measured: 1 concurrent request."
    assert "of 1 request<" in cards(told, told.summaries[0])


def test_a_killed_run_is_told_on_the_page_as_in_the_terminal(tmp_path: Path) -> None:
    run = drawn_run(tmp_path, levels=(1, 8), each=100, manifest={"status": "running", "stop": None})
    told = read_run(str(run))
    text = render(told.facts, told.summaries, told.marks, told.stop, told.slo)
    assert f"answer    {answer_text(view_of(told))}" in text
    assert answer_text(view_of(told, language="zh")) == "测量了 2 个负载，从 1 到 8 个并发请求；日志本身没有结论。"


def test_a_number_on_a_heat_map_tells_what_its_cell_does(page: str) -> None:
    cells = re.findall(r'<text [^>]*fill="(?:#141414|#fdfdfd)"[^>]*>[^<]*(<title>[^<]*</title>)?', page)
    assert cells and all(cells)


def test_what_only_a_screen_can_do_is_not_printed(page: str) -> None:
    hint = next(text for text in re.findall(r'<p class="([^"]*)">A point tells its figures', page))
    printed = page.partition("@media print {")[2]
    assert "screen" in hint.split() and re.search(r"[^{}]*\.screen \{ display: none; \}", printed)


def test_a_page_stays_small_however_large_the_run(tmp_path: Path) -> None:
    names = tuple(f"model-{i}-{'x' * 200}" for i in range(300))
    run = drawn_run(tmp_path, levels=tuple(range(1, 121)), each=300, models=names, tokens=(2, 4))
    out = tmp_path / "big.html"
    assert loadgen("report", str(run), "--html", str(out)).code == 0
    check(out.read_text(encoding="utf-8"))
    assert out.stat().st_size < 3_000_000


def test_a_run_unlike_the_one_before_is_a_warning(tmp_path: Path) -> None:
    changed = Since(Estimate(0.9, 0.89, 0.91), (8.0,), True).sentence("3 h earlier (r)")
    same = Since(Estimate(1.0, 0.99, 1.01), (8.0,), False).sentence("4 h earlier (r)")
    run = drawn_run(tmp_path, each=60, levels=(1, 8), manifest={"notes": [changed, same]})
    out = tmp_path / "page.html"
    ran = loadgen("report", str(run), "--html", str(out))
    assert ran.code == 0, ran.err
    page = out.read_text(encoding="utf-8")
    for text, level in ((changed, "warning"), (same, "info")):
        assert re.search(rf'<li class="{level}"><p><b class="level">\w+</b> <bdi>{re.escape(text)}</bdi>', page)


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        (
            Stop("slo:ttft_p95", 1, 8, None, "", held_again=(16, 24)),
            "1 个并发请求满足所有目标，8 个并发请求不满足（ttft_p95）。"
            "更高的负载中，16 个并发请求、24 个并发请求又满足所有目标。",
        ),
        (
            Stop("slo:ttft_p95", None, 8, None, "", held_again=(16,)),
            "8 个并发请求违反 ttft_p95。更高的负载中，16 个并发请求又满足所有目标。",
        ),
        (
            Stop("no_sample:tpot_p95", None, None, None, ""),
            "目标 tpot_p95 没有样本（回答只有一个 token，或未以流式返回），无法判定",
        ),
    ],
)
def test_an_answer_in_chinese(stop: Stop, said: str, tmp_path: Path) -> None:
    levels = [
        {"step": i, "verdict": "fail" if i == 2 else "pass", "broke": ["ttft_p95"] * (i == 2)} for i in range(1, 5)
    ]
    run = drawn_run(tmp_path, each=60, levels=(1, 8, 16, 24), manifest={"stop": stop_object(stop), "levels": levels})
    out = tmp_path / "page.html"
    assert loadgen("report", str(run), "--html", str(out), "--lang", "zh").code == 0
    assert said in "".join(spoken(out.read_text(encoding="utf-8")))
