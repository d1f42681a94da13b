"""Write the ready workloads from a folder of statistics: python workloads/build.py STATS [OUT]

STATS holds, for each source, NAME.json (figures and fits) and NAME.hist2d.json (the joint histogram of input and output
tokens). The fixed shapes need nothing. Every file says where it comes from, under which licence, and what is wrong with
it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LLAMA2 = "Llama-2"
POINTS = ("p0.1", "p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99.9")


@dataclass(frozen=True)
class Ready:
    """One workload: `stats` names its statistics, `lengths` says where its lengths are taken from (`joint`, or the
    TOML itself), `more` are further TOML sections."""

    name: str
    stats: str
    source: str
    licence: str
    attribution: str
    tokenizer: str
    notes: tuple[str, ...]
    lengths: str = "joint"
    more: str = ""


def text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def number(value: float) -> str:
    return f"{value:.10g}"


def head(name: str, source: str, licence: str, attribution: str, tokenizer: str, notes: Sequence[str]) -> list[str]:
    lines = [
        f"{key} = {text(value)}"
        for key, value in (
            ("name", name),
            ("source", source),
            ("licence", licence),
            ("attribution", attribution),
            ("tokenizer", tokenizer),
        )
        if value
    ]
    return [*lines, "notes = [", *(f"  {text(note)}," for note in notes), "]", ""]


def reference(found: Mapping[str, Any], inputs: Mapping[str, float], outputs: Mapping[str, float]) -> list[str]:
    rows = [
        f"{side} = {{ " + ", ".join(f"{k} = {number(one[k])}" for k in ("mean", "p50", "p90", "p99")) + " }"
        for side, one in (("input", inputs), ("output", outputs))
    ]
    return ["[reference]", f"n = {found['n']}", *rows, ""]


def joint(histogram: Mapping[str, Any]) -> list[str]:
    """The histogram as it is, but for the bin of requests without any output, which cannot be asked for."""
    outputs, rows = histogram["output_edges"], histogram["rows"]
    if outputs[0] == 0:
        assert outputs[1] == 1
        outputs = outputs[1:]
        pairs = [(row[0], [(b - 1, w) for b, w in zip(row[1::2], row[2::2], strict=True) if b > 0]) for row in rows]
        rows = [[bin_, *(n for pair in cells for n in pair)] for bin_, cells in pairs if cells]
    return [
        "[lengths.joint]",
        f"input_edges = {json.dumps(histogram['input_edges'])}",
        f"output_edges = {json.dumps(outputs)}",
        "rows = [",
        *(f"  {json.dumps(row, separators=(',', ':'))}," for row in rows),
        "]",
        "",
    ]


def quantiles(found: Mapping[str, float]) -> str:
    """A `quantiles` distribution through all the percentiles that are known."""
    at = [0.0, *(float(p[1:]) / 100 for p in POINTS), 1.0]
    values = [found["min"], *(found[p] for p in POINTS), found["max"]]
    return (
        f'{{ kind = "quantiles", at = [{", ".join(number(p) for p in at)}],'
        f" values = [{', '.join(number(value) for value in values)}] }}"
    )


def marginal(histogram: Mapping[str, Any]) -> str:
    """A `quantiles` distribution through the edges of the output bins, less that of no output."""
    edges, weights = histogram["output_edges"], [0.0] * (len(histogram["output_edges"]) - 1)
    for row in histogram["rows"]:
        for bin_, weight in zip(row[1::2], row[2::2], strict=True):
            weights[bin_] += weight
    kept = [(edges[i + 1], weight) for i, weight in enumerate(weights) if edges[i] > 0]
    first = next(edge for edge in edges if edge > 0)
    whole, sums = sum(weight for _, weight in kept), 0.0
    points = [(0.0, first - 0.5)]
    for edge, weight in kept:
        sums += weight
        if weight:
            points.append((min(1.0, round(sums / whole, 8)), edge - 0.5))
    points[-1] = (1.0, points[-1][1])
    return (
        f'{{ kind = "quantiles", at = [{", ".join(number(p) for p, _ in points)}],'
        f" values = [{', '.join(number(value) for _, value in points)}] }}"
    )


AZURE = "CC-BY-4.0"
AZURE_PAPER = "Azure LLM inference dataset 2023, Microsoft Azure; Patel et al., Splitwise, ISCA 2024"
AZURE_NOTES = (
    "an hour of 16 November 2023 by its stamps, 18:15 to 19:14, zone not stated; its description says 11 November",
    "the tokenizer is not stated; services of the GPT family",
)
SERVEGEN_NOTES = (
    "only marginals of each client and window exist: the joint histogram is a mixture of their products, so that any"
    " dependence within a client is lost",
)
SHAREGPT = "microsoft/sarathi-serve @ 72339db5, data/processed_traces/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
SHAREGPT_LICENCE = "Apache-2.0 (repository); users' conversations, of which only lengths are here"
SHAREGPT_BY = "lengths by the Sarathi-Serve authors from ShareGPT (anon8231489123/ShareGPT_Vicuna_unfiltered)"
SHAREGPT_NOTES = (
    "filtered: output up to 1,024 and total up to 8,192 tokens, with rows dropped inside conversations",
    "which row opens a conversation was inferred from the lengths",
)
WEKA = "callanjfox/kv-cache-tester @ 94f6046d, traces/"
WEKA_NOTES = (
    "710 of 739 sessions: the 29 largest, with 17 % of the requests, are missing",
    "tokens as the provider counts them",
)


def ready(stats: Mapping[str, Mapping[str, Any]], answers: str) -> list[Ready]:
    """`answers` is the distribution of the outputs of weka-claude-code."""
    share, weka, bwb = (stats[name] for name in ("sharegpt-8k-multiturn", "weka-claude-code", "bwb-translation"))
    think = {key: value * 1e3 for key, value in weka["think_time_s"].items() if isinstance(value, float)}
    return [
        Ready(
            "azure-2023-chat",
            "azure-2023-conv",
            "Azure/AzurePublicDataset @ b469a113, data/AzureLLMInferenceTrace_conv.csv",
            AZURE,
            AZURE_PAPER,
            "not stated",
            (*AZURE_NOTES, "2 % of all requests have exactly 181 input tokens, which a bin spreads"),
            more='[arrivals]\nprocess = "gamma:0.87"  # of 5.53 requests/s; CV of the gaps 1.09\n',
        ),
        Ready(
            "azure-2023-code",
            "azure-2023-code",
            "Azure/AzurePublicDataset @ b469a113, data/AzureLLMInferenceTrace_code.csv",
            AZURE,
            AZURE_PAPER,
            "not stated",
            (
                *AZURE_NOTES,
                "inputs are cut at 7,437 tokens, where 3.7 % of them lie",
                "arrivals come in bursts that a Weibull process meets but roughly (KS 0.14)",
            ),
            more='[arrivals]\nprocess = "weibull:0.42"  # of 2.57 requests/s; CV of the gaps 13\n',
        ),
        Ready(
            "sharegpt-first-turn",
            "sharegpt-first-turn",
            SHAREGPT,
            SHAREGPT_LICENCE,
            SHAREGPT_BY,
            LLAMA2,
            SHAREGPT_NOTES,
        ),
        Ready(
            "sharegpt-all-turns",
            "sharegpt-8k-multiturn",
            SHAREGPT,
            SHAREGPT_LICENCE,
            SHAREGPT_BY,
            LLAMA2,
            (*SHAREGPT_NOTES, "each turn is a request of its own with its whole history as input, and shares nothing"),
        ),
        Ready(
            "sharegpt-multiturn",
            "sharegpt-first-turn",
            SHAREGPT,
            SHAREGPT_LICENCE,
            SHAREGPT_BY,
            LLAMA2,
            (
                *SHAREGPT_NOTES,
                "the lengths are those of first turns; later ones grow by the message and the answer",
                "how users think between turns is not in the source: none is waited for",
            ),
            more="\n".join(
                [
                    "[sessions]",
                    f"turns = {quantiles(share['sessions']['turns'])}",
                    f"message = {quantiles(share['new_user_tokens_on_followup_turns'])}",
                    f"output = {quantiles(share['output'])}",
                    "",
                ]
            ),
        ),
        Ready(
            "arxiv-summarization",
            "arxiv-summarization",
            "microsoft/vidur @ 7d475133, data/processed_traces/"
            "arxiv_summarization_stats_llama2_tokenizer_filtered_v2.csv",
            "MIT (repository); the texts behind it have their own terms",
            "lengths by the Vidur authors; arXiv summarisation set of Cohan et al. 2018",
            LLAMA2,
            ("filtered to 4,096 tokens in all: inputs are cut near 3,900, and long outputs go with short inputs",),
        ),
        Ready(
            "bwb-translation",
            "bwb-translation",
            "project-etalon/etalon @ d5f18de1, data/processed_traces/bwb_stats_llama2_tokenizer_filtered_v2.csv",
            "Apache-2.0 (repository)",
            "lengths by the Etalon authors; Bilingual Web Book translation set",
            LLAMA2,
            (
                "filtered to 4,096 tokens in all",
                "by the source's percentiles and its rank correlation: the lengths are too narrow for its histogram",
                "3 % of the draws have more than 4,096 tokens",
            ),
            lengths="\n".join(
                [
                    "[lengths]",
                    f"spearman = {number(bwb['correlation']['spearman'])}",
                    f"input = {quantiles(bwb['input'])}",
                    f"output = {quantiles(bwb['output'])}",
                    "",
                ]
            ),
        ),
        Ready(
            "ragpulse",
            "ragpulse",
            "flashserve/RAGPulse @ 3672232d, data/0_trace.jsonl",
            "MIT",
            "RAGPulse, FlashServe",
            "not stated",
            (
                "a week of a service with 0.012 requests/s in the mean, in bursts",
                "an input is system prompt (1,376 tokens in the mean), passages (1,247; 90 % of their uses are repeats)"
                ", history, web and question: here only the first 1,028 tokens are shared, which every request has",
                "59 % of sessions have one turn: each request stands alone here",
            ),
            more='[arrivals]\nprocess = "weibull:0.73"\n\n[sharing]\nsystem_tokens = 1028\n',
        ),
        Ready(
            "servegen-deepseek-r1",
            "servegen-deepseek-r1",
            "alibaba/ServeGen @ f891d118, data/reason/deepseek-r1/",
            "Apache-2.0",
            "ServeGen, Alibaba Cloud and Peking University",
            "not stated",
            (*SERVEGEN_NOTES, "outputs hold reasoning, 70 % of them in the mean", "one day, all 73 clients"),
        ),
        Ready(
            "servegen-m-large",
            "servegen-m-large",
            "alibaba/ServeGen @ f891d118, data/language/m-large/",
            "Apache-2.0",
            "ServeGen, Alibaba Cloud and Peking University",
            "not stated",
            (
                *SERVEGEN_NOTES,
                "covers 63 % of the requests: the clients left out are the heavy ones",
            ),
        ),
        Ready(
            "servegen-mm-image",
            "servegen-mm-image",
            "alibaba/ServeGen @ f891d118, data/multimodal/mm-image/",
            "Apache-2.0",
            "ServeGen, Alibaba Cloud and Peking University",
            "not stated",
            (
                *SERVEGEN_NOTES,
                "the text of multimodal requests: images, 650 tokens more in the mean, are left out",
                "one day, all 35 clients",
            ),
        ),
        Ready(
            "weka-claude-code",
            "weka-claude-code-first",
            WEKA,
            "Apache-2.0",
            "kv-cache-tester, WEKA: sessions of a coding agent through a proxy",
            "the provider's",
            (
                *WEKA_NOTES,
                "the lengths are those of first requests; outputs are drawn apart from inputs",
                "11 % of the turns shrink the context, which is not modelled: contexts grow longer here",
                "the first 10,243 tokens are shared by all, where the source's system prompt and tools have 14,300",
            ),
            lengths="\n".join(
                [
                    "[lengths]",
                    f"input = {quantiles(weka['sessions']['first_request_input'])}",
                    f"output = {answers}",
                    "",
                ]
            ),
            more="\n".join(
                [
                    "[sessions]",
                    f"turns = {quantiles(weka['sessions']['requests'])}",
                    f"message = {quantiles(weka['context_growth_per_turn_tokens']['positive'])}",
                    f"output = {answers}",
                    f"think_ms = {quantiles(think)}",
                    "",
                    "[sharing]",
                    "system_tokens = 10243",
                    "",
                ]
            ),
        ),
        Ready(
            "weka-claude-code-requests",
            "weka-claude-code",
            WEKA,
            "Apache-2.0",
            "kv-cache-tester, WEKA: sessions of a coding agent through a proxy",
            "the provider's",
            (
                *WEKA_NOTES,
                "each request stands alone and shares nothing, where 96 % of the source's tokens could be cached",
                "0.05 % of the rows have no output and are left out",
            ),
        ),
        Ready(
            "mooncake-conversation",
            "mooncake-conversation",
            "kvcache-ai/Mooncake @ 3b5a5941, FAST25-release/traces/conversation_trace.jsonl",
            "Apache-2.0",
            "Qin et al., Mooncake, FAST 2025",
            "Kimi's",
            (
                "all requests share their first block of 512 tokens; what else they share (37 % of all tokens) is in"
                " the trace alone: replay it for that",
                "stamps of the source are quantised to 3 s; at that scale it is Poisson, 3.4 requests/s",
            ),
            more="[sharing]\nsystem_tokens = 512\n",
        ),
    ]


def fixed(tokens: int) -> str:
    return f'{{ kind = "fixed", value = {tokens} }}'


def uniform(tokens: int) -> str:
    return f'{{ kind = "uniform", low = {round(0.8 * tokens)}, high = {tokens} }}'


def normal(mean: int, std: int, least: int, most: int) -> str:
    return f'{{ kind = "normal", mean = {mean}, std = {std}, min = {least}, max = {most} }}'


INFERENCEX = ("inferencex", "SemiAnalysisAI/InferenceX @ 843c6254, MODELS.md", "lengths are uniform over [0.8 L, L]")
TRTLLM = ("trtllm", "NVIDIA TensorRT-LLM, performance overview", "")
NIM = (
    "nim",
    "NVIDIA NIM, benchmark script (as copies of it have it)",
    "meant for 1, 2, 5, 10, 50, 100 and 250 in flight",
)
GUIDELLM = ("guidellm", "GuideLLM 0.8.1, packaged scenarios", "")
UNCONFIRMED = "not confirmed at its source; check before quoting"


def shapes() -> list[tuple[str, str, tuple[str, ...], str, str, str]]:
    """(name, source, notes, input, output, more TOML)"""
    found: list[tuple[str, str, tuple[str, ...], str, str, str]] = []

    def add(of: tuple[str, str, str], name: str, inputs: str, outputs: str, *notes: str, more: str = "") -> None:
        family, source, note = of
        found.append((f"{family}-{name}", source, tuple(n for n in (note, *notes) if n), inputs, outputs, more))

    for name, isl, osl, state in (
        ("1k-1k", 1024, 1024, "stopped there on 2026-07-17"),
        ("8k-1k", 8192, 1024, "active there in August 2026"),
        ("1k-8k", 1024, 8192, "stopped there on 2026-03-27"),
    ):
        add(INFERENCEX, name, uniform(isl), uniform(osl), state)
    for name, isl, osl in (
        ("translation", 200, 200),
        ("text-classification", 200, 5),
        ("text-summary", 1000, 200),
        ("code-generation", 200, 1000),
    ):
        add(NIM, name, fixed(isl), fixed(osl))
    primary = ((128, 128), (128, 2048), (128, 4096), (500, 2000))
    unconfirmed = ((1000, 1000), (1000, 2000), (1024, 2048), (2048, 128), (2048, 2048), (5000, 500), (20000, 2000))
    for isl, osl in primary + unconfirmed:
        notes = (UNCONFIRMED,) if (isl, osl) in unconfirmed else ()
        add(TRTLLM, f"{isl}-{osl}", fixed(isl), fixed(osl), *notes)
    for name, isl, osl in (
        ("1k-1k", 1000, 1000),
        ("8k-1k", 8000, 1000),
        ("2ki-128", 2048, 128),
        ("100k-1k", 100_000, 1000),
    ):
        add(GUIDELLM, name, fixed(isl), fixed(osl))
    add(GUIDELLM, "512-2ki-normal", normal(512, 128, 1, 1024), normal(2048, 512, 1, 4096))
    add(
        GUIDELLM,
        "8k-800-normal",
        normal(8000, 8500, 50, 30_000),
        normal(800, 1500, 20, 8000),
        "limits refuse draws, which are made again: the means are above those asked for",
    )
    add(
        GUIDELLM,
        "1k-1k-multiturn",
        fixed(1512),
        fixed(1000),
        "the prefix of 512 tokens, one of 10, stands before the 1,000 of a first message",
        more="\n".join(
            [
                "[sessions]",
                f"turns = {fixed(5)}",
                f"message = {fixed(1000)}",
                f"output = {fixed(1000)}",
                "",
                "[sharing]",
                "prefix_tokens = 512",
                "groups = 10",
                "",
            ]
        ),
    )
    return found


def main(arguments: Sequence[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    folder = Path(arguments[0])
    out = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).parent
    stats = {
        path.stem: json.loads(path.read_text())
        for path in sorted(folder.glob("*.json"))
        if not path.stem.endswith(".hist2d") and path.stem != "published"
    }
    weka = stats["weka-claude-code"]
    first = weka["sessions"]["first_request_input"]
    stats["weka-claude-code-first"] = {"n": weka["sessions"]["n"], "input": first, "output": weka["output"]}
    answers = marginal(json.loads((folder / "weka-claude-code.hist2d.json").read_text()))
    for one in ready(stats, answers):
        found = stats[one.stats]
        lines = head(one.name, one.source, one.licence, one.attribution, one.tokenizer, one.notes)
        if one.lengths == "joint":
            lines += joint(json.loads((folder / f"{one.stats}.hist2d.json").read_text()))
        else:
            lines.append(one.lengths)
        lines += reference(found, found["input"], found["output"])
        write(out, one.name, [*lines, one.more])
    for name, source, notes, inputs, outputs, more in shapes():
        lines = head(name, source, "", "", "whichever the server has", notes)
        write(out, name, [*lines, "[lengths]", f"input = {inputs}", f"output = {outputs}", "", more])
    return 0


def write(out: Path, name: str, lines: Sequence[str]) -> None:
    (out / f"{name}.toml").write_text("\n".join(lines).rstrip("\n") + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
