"""The logs of tests/data/foreign, and small ones to damage."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from loadgen.log.store import Run, open_run

DATA = Path(__file__).parents[2] / "data" / "foreign"
FILES = {
    "vllm": "vllm-bench-0.32.0.json",
    "sglang": "sglang-0.5.23.jsonl",
    "aiperf": "aiperf-0.13.0-profile_export.jsonl",
    "guidellm": "guidellm-0.8.1.json",
    "inference-perf": "inference-perf-0.7.0-per_request_lifecycle_metrics.json",
}
SUMMARY = "aiperf-0.13.0-profile_export_aiperf.json"


def unpacked(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes())


def placed(tool: str, folder: Path, *, summary: bool = True) -> Path:
    """The log of a tool as a file, as the tool left it."""
    path = folder / FILES[tool]
    path.write_bytes(unpacked(FILES[tool]))
    if tool == "aiperf" and summary:
        (folder / SUMMARY).write_bytes(unpacked(SUMMARY))
    return path


def opened(document: Any, folder: Path, *, lines: bool = False) -> Run:
    path = folder / "log.json"
    documents = document if lines else [document]
    path.write_text("".join(json.dumps(one) + "\n" for one in documents))
    return open_run(path)


def vllm_document() -> dict[str, Any]:
    """Two requests that were answered and one that was not."""
    return {
        "model_id": "m",
        "num_prompts": 3,
        "request_rate": float("inf"),
        "max_concurrency": 2,
        "duration": 1.5,
        "total_input_tokens": 30,
        "mean_ttft_ms": 1.0,
        "input_lens": [10, 20, 30],
        "output_lens": [3, 1, 0],
        "ttfts": [0.1, 0.2, 0.0],
        "itls": [[0.01, 0.03], [], []],
        "latencies": [0.14, 0.2, 0.0],
        "start_times": [1000.0, 1000.5, 1000.75],
        "errors": ["", "", "Traceback (most recent call last):\nBoom: refused"],
    }


def aiperf_line(**metadata: Any) -> dict[str, Any]:
    base = 1_795_960_742_481_566_135
    return {
        "metadata": {
            "x_request_id": "a",
            "credit_issued_ns": base - 5_000_000,
            "request_start_ns": base,
            "request_end_ns": base + 500_000_001,
            "benchmark_phase": "profiling",
            "was_cancelled": False,
            **metadata,
        },
        "metrics": {
            "time_to_first_token": {"value": 100.5, "unit": "ms"},
            "request_latency": {"value": 0.5, "unit": "sec"},
            "inter_chunk_latency": {"value": [199.5, 200.0], "unit": "ms"},
            "output_sequence_length": {"value": 5, "unit": "tokens"},
            "usage_completion_tokens": {"value": 6, "unit": "tokens"},
            "usage_prompt_tokens": {"value": 11, "unit": "tokens"},
            "input_sequence_length": {"value": 12, "unit": "tokens"},
        },
    }


def guidellm_request(start: float, **timings: Any) -> dict[str, Any]:
    return {
        "request_id": f"at {start}",
        "info": {
            "timings": {
                "targeted_start": start - 0.25,
                "request_start": start,
                "first_token_iteration": start + 0.5,
                "last_token_iteration": start + 1.0,
                "request_end": start + 1.25,
                **timings,
            },
            "error": None,
        },
        "input_metrics": {"total_tokens": 7, "cached_tokens": 3},
        "output_metrics": {"total_tokens": 6},
    }


def guidellm_document(strategy: dict[str, Any], **requests: Any) -> dict[str, Any]:
    return {
        "metadata": {"guidellm_version": "0.8.1"},
        "config": {"spec": {"backend": {"target": "http://host", "model": "m"}}},
        "benchmarks": [{"config": {"strategy": strategy}, "duration": 4.0, "requests": requests}],
    }


def inference_perf_request(start: float = 10.0, **changes: Any) -> dict[str, Any]:
    def chunk(text: str, reason: str | None = None) -> str:
        return json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": reason}]})

    return {
        "start_time": start,
        "end_time": start + 1.0,
        "request": json.dumps({"model": "m", "max_tokens": 9}),
        "response": "",
        "info": {
            "input_tokens": 5,
            "response_metrics": {
                "output_tokens": 4,
                "server_usage": {"prompt_tokens": 6, "completion_tokens": 3},
                "response_chunks": [chunk(""), chunk("a"), chunk("b c"), chunk("", "stop")],
                "chunk_times": [start + 0.1, start + 0.25, start + 0.5, start + 0.75],
                "output_token_times": [start + 0.25, start + 0.5, start + 0.5],
            },
        },
        "error": None,
        **changes,
    }
