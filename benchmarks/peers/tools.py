"""Each client as a command line for one load, and what its own output says. Nothing here runs anything but `--version`.

Every tool is asked for the same: N streams in a closed loop, R requests of K tokens after one wave of warm-up, and the
server's own token counts. All figures come from the tool's own output, in ms.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .truth import Floats, Load

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(os.environ.get("PEERS_DIR", "~/.cache/loadgen-peers")).expanduser()
TOKENIZER = PEERS / "tokenizer"
MODEL = "mock-model"

# Offline and quiet: no tool may wait for a hub that it does not need.
ENVIRONMENT = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "NO_COLOR": "1",
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Told:
    """What a client said: its statistics in ms by the keys of `Truth.stats`, a missing one absent; how many requests
    it counted; where its output has them, each request's TTFT and gaps by the server's number of the request."""

    stats: Mapping[str, float]
    counted: int
    requests: Mapping[int, tuple[float, Floats]] | None = None
    doubted: bool = False  # the client itself says that it was the limit


@dataclass(frozen=True, slots=True)
class Tool:
    """`command(python, load, url, folder)` is what to run in `folder`; `read(folder)` raises where it said nothing."""

    name: str
    command: Callable[[Path, Load, str, Path], list[str]]
    read: Callable[[Path], Told]
    venv: Path | None = None  # None: this interpreter
    package: str = ""
    codes: tuple[int, ...] = (0,)  # exit codes with a result
    offline: bool = True  # False: it finds no tokenizer of ours when told to be offline

    @property
    def python(self) -> Path:
        return Path(sys.executable) if self.venv is None else self.venv / "bin" / "python"

    def absent(self) -> str | None:
        """Why it cannot be run here, or None."""
        if self.venv is None or self.python.exists():
            return None
        return f"not installed in {self.venv} (make bench-peers-install)"


def tools() -> list[Tool]:
    """Ours, the reference clients, the peers: in the order of the table."""
    vllm = Path(os.environ.get("PEER_VLLM_VENV", PEERS / "vllm"))
    return [
        Tool(
            "loadgen", _loadgen, _read_loadgen, package="loadgen", codes=(0, 4)
        ),  # 4: undecided, as when it was the limit
        Tool("aiohttp", _reference("aiohttp"), _read_reference, package="aiohttp"),
        Tool("httpx", _reference("httpx"), _read_reference, package="httpx"),
        Tool("vllm bench serve", _vllm, _read_vllm, vllm, "vllm"),
        Tool("sglang", _sglang("sglang.bench_serving"), _read_sglang, PEERS / "sglang", "sglang"),
        Tool("sglang rust", _sglang("sglang.benchmark.rust_client"), _read_sglang, PEERS / "sglang", "sglang"),
        Tool("aiperf", _aiperf, _read_aiperf, PEERS / "aiperf", "aiperf", offline=False),
        Tool("guidellm", _guidellm, _read_guidellm, PEERS / "guidellm", "guidellm"),
        Tool("inference-perf", _inference_perf, _read_inference_perf, PEERS / "inference-perf", "inference-perf"),
        Tool("evalscope", _evalscope, _read_evalscope, PEERS / "evalscope", "evalscope"),
    ]


# --- ours and the reference clients ---------------------------------------------------------------------------------


def _loadgen(python: Path, load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(str(python), "-m", "loadgen", "run", url, "-c", str(load.streams), "--requests", str(load.requests)),
        *("--input-len", str(load.input_tokens), "--output-len", str(load.tokens), "--max-tokens", "1000000000"),
        *("--max-time", "10m", "--json", "-o", "out"),
    ]


def _read_loadgen(folder: Path) -> Told:
    told = _last_json(folder / "output.txt")
    step = told["steps"][0]
    requests: dict[int, tuple[float, Floats]] = {}
    (log,) = folder.glob("out/*/requests.jsonl")
    for line in log.read_bytes().splitlines():
        r = json.loads(line)
        if r["phase"] == "measured" and r["outcome"] == "ok":
            ttft = (r["first_token_ns"] - r["sent_ns"]) / 1e6
            requests[_rid(r["server_id"])] = ttft, np.array(r["events"]["gap_us"][1:]) / 1e3
    doubted = step["verdict"] == "invalid" or told["answer"]["reason"] == "client_bound"
    return Told(_named(step, "e2el"), step["completed"], requests, doubted)


def _reference(name: str) -> Callable[[Path, Load, str, Path], list[str]]:
    def command(python: Path, load: Load, url: str, folder: Path) -> list[str]:
        return [
            *(str(python), str(ROOT / "benchmarks" / "clients.py"), name, url, "--streams", str(load.streams)),
            *("--requests", str(load.requests), "--tokens", str(load.tokens), "--warmup", str(load.streams)),
        ]

    return command


def _read_reference(folder: Path) -> Told:
    told = _last_json(folder / "output.txt")
    requests = {_rid(i): (ttft, np.array(gaps)) for i, ttft, gaps in told.pop("requests")}
    return Told(told, len(requests), requests)


# --- the peers ------------------------------------------------------------------------------------------------------


def _vllm(python: Path, load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(str(python.parent / "vllm"), "bench", "serve", "--backend", "openai-chat", "--base-url", url),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--tokenizer", str(TOKENIZER)),
        *("--dataset-name", "random", "--random-input-len", str(load.input_tokens)),
        *("--random-output-len", str(load.tokens), "--num-prompts", str(load.requests)),
        *("--num-warmups", str(load.streams), "--max-concurrency", str(load.streams), "--ignore-eos", "--save-result"),
        *("--save-detailed", "--result-filename", "out.json", "--percentile-metrics", "ttft,itl,tpot,e2el"),
    ]


def _read_vllm(folder: Path) -> Told:
    told = json.loads((folder / "out.json").read_text())
    # Its list of gaps begins with the one from the role chunk and ends with the one to the finish reason.
    gaps = [np.array(itl[1:-1]) * 1e3 for itl in told["itls"]]
    return Told(_named(told, "e2el"), told["completed"], _by_text(told, gaps))


def _sglang(module: str) -> Callable[[Path, Load, str, Path], list[str]]:
    def command(python: Path, load: Load, url: str, folder: Path) -> list[str]:
        return [
            *(str(python), "-m", module, "--backend", "vllm-chat", "--base-url", url, "--model", MODEL),
            *("--tokenizer", str(TOKENIZER), "--dataset-name", "random-ids", "--random-range-ratio", "1.0"),
            *("--random-input-len", str(load.input_tokens), "--random-output-len", str(load.tokens)),
            *("--num-prompts", str(load.requests), "--max-concurrency", str(load.streams)),
            *("--warmup-requests", str(load.streams), "--output-file", "out.jsonl", "--output-details"),
        ]

    return command


def _read_sglang(folder: Path) -> Told:
    told = json.loads((folder / "out.jsonl").read_text().splitlines()[-1])
    gaps = [np.array(itl) * 1e3 for itl in told["itls"]]
    return Told(_named(told, "e2e_latency"), told["completed"], _by_text(told, gaps))


def _aiperf(python: Path, load: Load, url: str, folder: Path) -> list[str]:
    # A tokenizer that is not on a hub is taken from a relative path only.
    (folder / "models").mkdir()
    (folder / "models" / "mock").symlink_to(TOKENIZER)
    return [
        *(str(python.parent / "aiperf"), "profile", "-m", MODEL, "--url", url, "--endpoint-type", "chat"),
        *("--streaming", "--tokenizer", "models/mock", "--use-server-token-count"),
        *("--concurrency", str(load.streams), "--request-count", str(load.requests)),
        *("--warmup-request-count", str(load.streams), "--isl", str(load.input_tokens), "--isl-stddev", "0"),
        *("--osl", str(load.tokens), "--osl-stddev", "0", "--ui", "simple", "--artifact-dir", "out"),
    ]


def _read_aiperf(folder: Path) -> Told:
    told = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())
    # Its ITL is a request's mean gap, which is a TPOT.
    names = {"ttft": "time_to_first_token", "e2e": "request_latency"}
    names |= dict.fromkeys(("itl", "tpot"), "inter_token_latency")
    stats = {
        f"{ours}_{to}": told[theirs][kind]
        for ours, theirs in names.items()
        for to, kind in (("mean", "avg"), ("p50", "p50"), ("p99", "p99"))
    }
    return Told(stats, int(told["request_count"]["avg"]))


def _guidellm(python: Path, load: Load, url: str, folder: Path) -> list[str]:
    # A request counts when it began after the warm-up's last had ended, by when a second wave was on its way.
    warm = {"value": load.streams, "mode": "requests"}
    profile = {"kind": "concurrent", "streams": [load.streams], "warmup": warm}
    return [
        *(str(python.parent / "guidellm"), "run", "--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--profile", json.dumps(profile), "--tokenizer", f"kind=huggingface_auto,model={TOKENIZER}"),
        *("--constraint", f"kind=max_requests,count={load.requests + 2 * load.streams}", "--disable-console"),
        *("--data", f"kind=synthetic_text,prompt_tokens={load.input_tokens},output_tokens={load.tokens}"),
        *("--output", "kind=json,path=out.json"),
    ]


def _read_guidellm(folder: Path) -> Told:
    metrics = json.loads((folder / "out.json").read_text())["benchmarks"][0]["metrics"]
    # Likewise; what it calls a TPOT counts the first token's time as well.
    names = {"ttft": "time_to_first_token_ms", "e2e": "request_latency"}
    names |= dict.fromkeys(("itl", "tpot"), "inter_token_latency_ms")
    stats: dict[str, float] = {}
    for ours, theirs in names.items():
        found, scale = metrics[theirs]["successful"], 1e3 if ours == "e2e" else 1.0
        stats |= {f"{ours}_mean": found["mean"] * scale, f"{ours}_p50": found["median"] * scale}
        stats[f"{ours}_p99"] = found["percentiles"]["p99"] * scale
    return Told(stats, metrics["time_to_first_token_ms"]["successful"]["count"])


def _inference_perf(python: Path, load: Load, url: str, folder: Path) -> list[str]:
    def fixed(tokens: int) -> dict[str, int]:
        n = load.requests + load.streams
        return {"min": tokens, "max": tokens, "mean": tokens, "std_dev": 0, "total_count": n}

    stages = [{"num_requests": n, "concurrency_level": load.streams} for n in (load.streams, load.requests)]
    config = {
        "load": {
            "type": "concurrent",
            "interval": 0,
            "stages": stages,
            "num_workers": 1,  # one core, one worker
            "worker_max_concurrency": 10 * load.streams,
        },
        "api": {"type": "completion", "streaming": True},  # it has no made-up prompts for chat
        "server": {"type": "vllm", "model_name": MODEL, "base_url": url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(TOKENIZER)},
        "data": {
            "type": "random",
            "input_distribution": fixed(load.input_tokens),
            "output_distribution": fixed(load.tokens),
        },
        "storage": {"local_storage": {"path": "out"}},
        "report": {"request_lifecycle": {"per_stage": True, "use_server_output_tokens": True}},
    }
    (folder / "config.yml").write_text(json.dumps(config))  # JSON is YAML
    return [str(python.parent / "inference-perf"), "-c", "config.yml"]


def _read_inference_perf(folder: Path) -> Told:
    found = json.loads((folder / "out" / "stage_1_lifecycle_metrics.json").read_text())["successes"]
    # Its TPOT for the ITL: its gaps are spread over the tokens it finds in the text, and ours are stamps.
    names = {"ttft": "time_to_first_token", "e2e": "request_latency"}
    names |= dict.fromkeys(("itl", "tpot"), "time_per_output_token")
    stats = {
        f"{ours}_{to}": found["latency"][theirs][kind] * 1e3
        for ours, theirs in names.items()
        for to, kind in (("mean", "mean"), ("p50", "median"), ("p99", "p99"))
    }
    return Told(stats, found["count"])


def _evalscope(python: Path, load: Load, url: str, folder: Path) -> list[str]:
    return [
        *(str(python.parent / "evalscope"), "perf", "--url", f"{url}/v1/chat/completions", "--api", "openai"),
        *("--model", MODEL, "--dataset", "random", "--tokenizer-path", str(TOKENIZER)),
        *("--parallel", str(load.streams), "-n", str(load.requests), "--warmup-num", str(load.streams)),
        *("--max-tokens", str(load.tokens), "--min-tokens", str(load.tokens), "--no-test-connection"),
        *("--min-prompt-length", str(load.input_tokens), "--max-prompt-length", str(load.input_tokens)),
        *("--outputs-dir", "out", "--no-timestamp", "--sleep-interval", "0"),
    ]


def _read_evalscope(folder: Path) -> Told:
    (summary,) = folder.glob("out/*/*/benchmark_summary.json")
    means = json.loads(summary.read_text())
    rows = {r["Percentiles"]: r for r in json.loads((summary.parent / "benchmark_percentile.json").read_text())}
    stats = {
        "ttft_mean": means["Avg TTFT (ms)"],
        "itl_mean": means["Avg ITL (ms)"],
        "tpot_mean": means["Avg TPOT (ms)"],
        "e2e_mean": means["Avg Latency (s)"] * 1e3,
    }
    for to, row in (("p50", rows["50%"]), ("p99", rows["99%"])):
        stats |= {f"ttft_{to}": row["TTFT (ms)"], f"itl_{to}": row["ITL (ms)"], f"e2e_{to}": row["Latency (s)"] * 1e3}
    return Told(stats, means["Success Requests"])


# --- helpers --------------------------------------------------------------------------------------------------------


def _named(told: Mapping[str, Any], e2e: str) -> dict[str, float]:
    """`mean_ttft_ms` and the like of vLLM's and SGLang's results, and of ours."""
    names = {"ttft": "ttft", "itl": "itl", "tpot": "tpot", "e2e": e2e}
    return {
        f"{ours}_{to}": told[f"{kind}_{theirs}_ms"]
        for ours, theirs in names.items()
        for to, kind in (("mean", "mean"), ("p50", "median"), ("p99", "p99"))
    }


_STAMP = re.compile(r"R(\d{19}) M\d{19} I000000")


def _by_text(told: Mapping[str, Any], gaps: list[Floats]) -> dict[int, tuple[float, Floats]]:
    """Requests by the send time of their first token, which their text begins with: negative, where others have ids."""
    found: dict[int, tuple[float, Floats]] = {}
    for text, ttft, gap in zip(told["generated_texts"], told["ttfts"], gaps, strict=True):
        stamp = _STAMP.match(text)
        if stamp:
            found[-int(stamp[1])] = ttft * 1e3, gap
    return found


def _rid(server_id: str) -> int:
    return int(server_id.rpartition("-")[2], 16)


def _last_json(file: Path) -> Any:
    """The last line of a file that is a JSON object."""
    lines = [line for line in file.read_text().splitlines() if line.startswith("{")]
    return json.loads(lines[-1])
