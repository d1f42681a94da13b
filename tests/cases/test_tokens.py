"""Field cases T: lengths asked for, lengths got, and what the server's prefix cache sees, through whole commands."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.preflight import preflight
from loadgen.client.target import resolve
from loadgen.client.transport import Access, open_client
from loadgen.records import Prompt
from loadgen.simulator.scripted import Request, ScriptedServer, ThreadedServer, error_reply
from loadgen.workload.plain import PlainWorkload
from tests.cases.support import MakeSender, Ran, answer, disturbed, loadgen, posts, summary_of, went_well, words_of
from tests.cli.command import tries

QUICK = ("-c", "2", "--requests", "6", "--output-len", "8")


def measure(handler: Callable[[Request], Any], output: Path, *arguments: str, verb: str = "run") -> Ran:
    """A command against a scripted server that serves nothing but models and completions."""
    with ThreadedServer(handler) as server:
        return loadgen(verb, server.url, *arguments, output=output)


def inputs(ran: Ran) -> list[tuple[int | None, int | None, int | None]]:
    return [(r.input_tokens.asked, r.input_tokens.local, r.input_tokens.server) for r in ran.records("measured")]


# --- input lengths ----------------------------------------------------------------------------------------------------

COSTS: dict[str, Callable[[str], float]] = {
    "a token a word": lambda word: 1.0,
    "long words cost more": lambda word: 1.0 + (len(word) > 5),
    "a token for three letters": lambda word: -(-len(word) // 3),
    "a full stop of its own": lambda word: 1.0 + word.endswith("."),
    "capitals cost more": lambda word: 1.0 + word[0].isupper(),
}


@pytest.mark.parametrize("cost", COSTS)
def test_t01_the_length_is_met_whatever_the_tokenizer(cost: str, tmp_path: Path) -> None:
    """Input 4000 of a context of 4096: nothing may be refused as too long, and what was asked for is what came."""

    def reply(request: Request) -> Any:
        tokens = 8 + sum(map(COSTS[cost], words_of(request)))
        if tokens + request.json["max_tokens"] > 4096:
            return error_reply(400, "This model's maximum context length is 4096 tokens")
        return answer(request, cost=COSTS[cost])

    ran = measure(posts(reply, max_model_len=4096), tmp_path, *QUICK, "--input-len", "4000")
    went_well(ran)
    assert len(inputs(ran)) == 6
    for asked, local, server in inputs(ran):
        assert (asked, local) == (4000, None)
        assert server == pytest.approx(4000, rel=0.01)
    assert "by the server's count" in ran.said
    assert abs(ran.manifest["workload"]["input_deviation"]) < 0.01


def test_t01_a_length_that_cannot_be_met_is_said(tmp_path: Path) -> None:
    """The template alone is longer than the input asked for."""
    ran = measure(posts(lambda request: answer(request, overhead=500)), tmp_path, *QUICK, "--input-len", "100")
    went_well(ran)
    assert "input length is" in ran.said
    assert all(server is not None and server > 500 for _, _, server in inputs(ran))


def test_t01_a_count_that_follows_no_text_is_said(tmp_path: Path) -> None:
    ran = measure(posts(lambda request: answer(request, overhead=77, cost=lambda word: 0.0)), tmp_path, *QUICK)
    assert "does not follow the text" in ran.said


def test_t03_another_tokenizer_is_found_out_by_the_preflight(make_sender: MakeSender) -> None:
    """Prompts whose local count is 100 and the server's 130: the ratio is told, and rates use the server's."""
    prompt = Prompt("word " * 122, output_tokens=4, local_tokens=100)

    async def main() -> Any:
        handler = posts(lambda request: answer(request, overhead=8))
        async with (
            ScriptedServer(handler) as server,
            open_client(Access(), 2, tls=False) as client,
            make_sender(server.url) as sender,
        ):
            return await preflight(
                resolve(server.url),
                DIALECTS["chat"],
                RequestOptions("m"),
                PlainWorkload(None, None, (prompt,), "prompts"),
                client=client,
                make_sender=lambda options, dialect: sender,
                nonce="n",
            )

    prepared = anyio.run(main)
    [warning] = [text for text in prepared.facts.warnings if "ratio" in text]
    assert "130" in warning
    assert "100" in warning
    assert "1.30" in warning
    record = prepared.records[-1]
    assert (record.input_tokens.local, record.input_tokens.server) == (100, 130)
    assert summary_of([record]).input_tokens_mean is None  # a preflight request is in no sample


def test_t03_rates_use_the_servers_count(tmp_path: Path) -> None:
    ran = measure(posts(lambda request: answer(request, cost=lambda word: 1.3)), tmp_path, *QUICK, "--input-len", "200")
    [one] = ran.report()["steps"]
    server = [count for _, _, count in inputs(ran)]
    assert None not in server
    assert one["total_input_tokens"] == sum(count or 0 for count in server)


@pytest.mark.parametrize("overhead", [0, 8, 31, 120])
def test_t04_what_the_template_adds_is_learnt_and_shown(overhead: int, tmp_path: Path) -> None:
    ran = measure(posts(lambda request: answer(request, overhead=overhead)), tmp_path, *QUICK, "--input-len", "250")
    assert f"{overhead} around the text" in ran.said
    assert ran.manifest["server"]["overhead_tokens"] == overhead
    assert all(server == pytest.approx(250, abs=2) for _, _, server in inputs(ran))


@pytest.mark.parametrize("usage", [True, False], ids=["calibrated by usage", "no usage at all"])
def test_t05_no_tokenizer_is_needed(usage: bool, tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        if not usage:
            request.json.pop("stream_options", None)
        return answer(request)

    loaded = {*sys.modules}
    with ThreadedServer(posts(reply, ["my-alias"])) as server:
        ran = loadgen("run", server.url, *QUICK, "--model", "my-alias", output=tmp_path)
        assert {request.json["model"] for request in server.requests if request.json} == {"my-alias"}
    went_well(ran)
    assert {r.output_tokens.source for r in ran.records()} == {"usage" if usage else "events"}
    assert ("no usage" in ran.said) == (not usage)
    assert not {"transformers", "tokenizers", "huggingface_hub"} & ({*sys.modules} - loaded)


PROMPTS = ('{"prompt": "one two"}\n"three"\n', '{"messages": [{"role": "user", "content": "x"}]}\n')


@pytest.mark.parametrize("lines", PROMPTS, ids=["prompts", "bodies"])
def test_t05_given_prompts_need_no_tokenizer_either(lines: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    runs = tmp_path / "runs"
    ran = measure(posts(answer), runs, "-c", "2", "--requests", "6", "--prompts", str(file), "--output-len", "4")
    went_well(ran)
    assert all(r.input_tokens.server for r in ran.records())


# --- output lengths ---------------------------------------------------------------------------------------------------

# What the engine obeys, the flags, the output got of 20, and whether that must be said.
LENGTHS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int, bool]] = {
    "obeys ignore_eos": (("ignore_eos",), (), 20, False),
    "obeys min_tokens": (("min_tokens",), (), 20, False),
    "obeys neither": ((), (), 12, True),
    "not asked to": (("ignore_eos",), ("--natural-length",), 12, True),
    "asked to by hand": (("force",), ("--natural-length", "--extra-body", '{"force": true}'), 20, False),
}


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
@pytest.mark.parametrize("case", LENGTHS)
def test_t06_output_shorter_than_asked(case: str, endpoint: str, tmp_path: Path) -> None:
    obeys, flags, got, said = LENGTHS[case]
    ran = measure(
        posts(lambda request: answer(request, early=0.6, obeys=obeys)),
        tmp_path,
        *("-c", "2", "--requests", "6", "--output-len", "20", "--endpoint", endpoint),
        *flags,
    )
    went_well(ran)
    records = ran.records("measured")
    assert {(r.output_tokens.asked, r.output_tokens.count) for r in records} == {(20, got)}
    assert all(("short_output" in r.flags) == said for r in records)
    report = loadgen("report", str(ran.folder), "--details").out
    assert ("shorter than asked" in report) == said
    assert f"out {got}" in report
    assert "20.0 asked for" in report
    if said:
        assert f"{got}.0 tokens on average where 20.0 were asked for (60 %)" in " ".join(report.split())
    if said and not flags:
        assert f"gives {got} output tokens where 20 were asked for" in ran.said
        assert ran.manifest["server"]["forced_length"] is False


@pytest.mark.parametrize("refused", ["ignore_eos", "min_tokens", "stream_options", "continuous_usage_stats"])
def test_t06_m05_a_strict_server_is_asked_without_what_it_refuses(refused: str, tmp_path: Path) -> None:
    def reply(request: Request) -> Any:
        if refused in request.json or refused in (request.json.get("stream_options") or {}):
            return error_reply(400, f"Unrecognized request argument supplied: {refused}")
        return answer(request, early=0.6, obeys=("ignore_eos",))

    ran = measure(posts(reply), tmp_path, *QUICK)
    went_well(ran)
    assert {r.outcome for r in ran.records("measured")} == {"ok"}
    if refused == "stream_options":
        assert {r.output_tokens.source for r in ran.records("measured")} == {"events"}
        assert "tokens are counted by events" in ran.said


# --- the prefix cache -------------------------------------------------------------------------------------------------


class PrefixCache:
    """A server that knows every prompt by its first words, as engines know it by its first block of tokens."""

    def __init__(self, words: int = 10) -> None:
        self.words = words
        self.seen: set[str] = set()
        self.hits = 0
        self.prompts: list[str] = []

    def __call__(self, request: Request) -> Any:
        words = words_of(request)
        key = hashlib.sha256(" ".join(words[: self.words]).encode()).hexdigest()
        hit = key in self.seen and len(words) >= self.words  # what is shorter than a block is not kept
        self.seen.add(key)
        self.hits += hit
        self.prompts.append(" ".join(words))
        return answer(request, cached=len(words) if hit else 0)


LADDER = ("--levels", "1,2,4", "--requests", "8", "--input-len", "80-120", "--output-len", "2-6")


@pytest.mark.parametrize("seed", [(), ("--seed", "7")], ids=["any seed", "one seed"])
def test_t08_no_prompt_warms_another_across_steps_and_runs(seed: tuple[str, ...], tmp_path: Path) -> None:
    cache = PrefixCache()
    with ThreadedServer(posts(cache)) as server:
        runs = [loadgen("sweep", server.url, *LADDER, *seed, output=tmp_path / str(i)) for i in range(2)]
    for ran in runs:
        went_well(ran)
    assert len(cache.prompts) > 2 * 8
    assert cache.hits == 0
    assert all(r.input_tokens.cached == 0 for ran in runs for r in ran.records())
    assert "prefix cache" not in runs[1].said
    if seed:
        first, second = ({r.id: (r.input_tokens.asked, r.output_tokens.asked) for r in ran.records()} for ran in runs)
        common = {*first} & {*second}  # on a busy machine a run may end early
        assert len(common) > 8
        assert all(first[name] == second[name] for name in common)


def test_t08_nor_across_workers(tmp_path: Path) -> None:
    shape = ("--workers", "2", "--levels", "2,4", "--requests", "12", *LADDER[4:], "--seed", "7")
    for output in tries(tmp_path):
        cache = PrefixCache()
        with ThreadedServer(posts(cache)) as server:
            ran = loadgen("sweep", server.url, *shape, output=output)
        assert cache.hits == 0
        if not disturbed(ran):
            break
    went_well(ran)
    assert len({r.worker for r in ran.records()}) == 2
    assert len(cache.prompts) > 2 * 12


def test_t09_prompts_of_a_length_share_nothing(tmp_path: Path) -> None:
    """The whole has the length asked for, and no half of one prompt is that of another."""
    cache = PrefixCache()
    shape = ("-c", "2", "--requests", "10", "--input-len", "200", "--output-len", "2")
    with ThreadedServer(posts(cache)) as server:
        ran = loadgen("run", server.url, *shape, output=tmp_path)
    measured = ran.records("measured")
    assert {r.input_tokens.asked for r in measured} == {200}
    assert all(abs((r.input_tokens.server or 0) - 200) <= 4 for r in measured)
    load = len([r for r in ran.records() if r.phase != "preflight"])  # which tries a length, if need be again
    prompts = [words for words in map(str.split, cache.prompts[-load:]) if len(words) > 100]
    halves = [" ".join(half) for words in prompts for half in (words[: len(words) // 2], words[len(words) // 2 :])]
    assert len({*halves}) == len(halves) >= 2 * len(measured)


def test_t08_the_same_text_is_repeated_only_when_asked_for_and_its_hits_are_told(tmp_path: Path) -> None:
    cache = PrefixCache()
    with ThreadedServer(posts(cache)) as server:
        arguments = (server.url, "-c", "2", "--requests", "20", *LADDER[4:], "--seed", "7", "--same-text")
        runs = [loadgen("run", *arguments, output=tmp_path / str(i)) for i in range(2)]
    assert cache.hits >= 20
    first, second = ([r.input_tokens.cached or 0 for r in ran.records("measured")] for ran in runs)
    assert sum(first) == 0
    assert sum(c > 0 for c in second) >= 0.9 * len(second)
    assert "prompt tokens came from the server's prefix cache" in runs[1].said
    assert all(step["cached_share"] > 0.8 for step in runs[1].report()["steps"])


def test_t08_a_warm_cache_is_told_even_if_it_is_not_ours(tmp_path: Path) -> None:
    ran = measure(posts(lambda request: answer(request, cached=64)), tmp_path, *QUICK, "--input-len", "128")
    assert "50 % of a step's prompt tokens came from the server's prefix cache" in ran.said
    assert {r.input_tokens.cached for r in ran.records("measured")} == {64}
