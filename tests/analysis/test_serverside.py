"""Servers' metrics in one vocabulary: a page of a real vLLM, the other servers' documented names, and garbage."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.analysis.serverside import COUNTERS, NAMES, NoMetricsError, read_page
from tests.client.captures import body_of

VLLM = body_of("vllm-metrics").decode()

OLDER_VLLM = """\
# HELP vllm:num_requests_running Number of requests currently running on GPU.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m"} 12.0
vllm:num_requests_waiting{model_name="m"} 3.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.25
vllm:num_preemptions_total{model_name="m"} 7.0
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 5
vllm:time_to_first_token_seconds_sum{model_name="m"} 1.5
vllm:time_to_first_token_seconds_count{model_name="m"} 5
"""
SGLANG = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{engine_type="unified",model_name="m",dp_rank="0",pp_rank="0",tp_rank="0"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",dp_rank="0",pp_rank="0",tp_rank="1"} 5.0
sglang:num_running_reqs{engine_type="unified",model_name="m",dp_rank="1",pp_rank="0",tp_rank="4"} 6.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",dp_rank="0",pp_rank="0",tp_rank="0"} 1.0
sglang:num_queue_reqs{engine_type="unified",model_name="m",dp_rank="1",pp_rank="0",tp_rank="4"} 0.0
sglang:token_usage{model_name="m",dp_rank="0",tp_rank="0"} 0.2
sglang:token_usage{model_name="m",dp_rank="1",tp_rank="4"} 0.4
sglang:max_total_num_tokens{model_name="m",dp_rank="0",tp_rank="0"} 1000
sglang:num_retracted_reqs{model_name="m"} 99
sglang:num_retracted_requests_total{model_name="m"} 2
sglang:cached_tokens_total{cache_source="device",model_name="m"} 30
sglang:cached_tokens_total{cache_source="host",model_name="m"} 12
sglang:queue_time_seconds_sum{model_name="m"} 4.5
sglang:queue_time_seconds_count{model_name="m"} 9
sglang:num_requests_total{model_name="m"} 10
"""
TGI = """\
# TYPE tgi_queue_size gauge
tgi_queue_size 2
tgi_batch_current_size 14
tgi_request_success{method="batch"} 8
tgi_request_success{method="single"} 1
tgi_request_failure{err="overloaded"} 5
tgi_request_queue_duration_sum 1.2
tgi_request_queue_duration_count 10
tgi_request_generated_tokens_bucket{le="1"} 0
tgi_request_generated_tokens_sum 640
"""
LLAMA_CPP = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 512
llamacpp:prompt_seconds_total 1.25
llamacpp:tokens_predicted_total 4242
llamacpp:requests_processing 4
llamacpp:requests_deferred 46
llamacpp:kv_cache_usage_ratio 0.5
"""
DYNAMO = """\
dynamo_frontend_inflight_requests{model="m"} 12
dynamo_frontend_queued_requests{model="m"} 4
dynamo_frontend_output_tokens_total{model="m"} 900
dynamo_frontend_requests_total{endpoint="chat_completions",model="m",status="success"} 7
dynamo_frontend_requests_total{endpoint="chat_completions",model="m",status="error"} 1
"""
TRT_LLM = "trtllm_num_requests_running 3.0\ntrtllm_num_requests_waiting 1\ntrtllm_kv_cache_utilization 0.75\n"
DCGM = """\
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",pci_bus_id="00000000:01:00.0",modelName="NVIDIA H100"} 90
DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-b",modelName="NVIDIA H100"} 70
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a"} 650.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b"} 349.5
"""


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (
            OLDER_VLLM,
            {"running": 12, "waiting": 3, "kv_use_share": 0.25, "preemptions": 7, "prefix_query_tokens": 100}
            | {"prefix_hit_tokens": 40, "ttft_s_sum": 1.5, "ttft_s_count": 5},
        ),
        (
            SGLANG,
            {"running": 11, "waiting": 1, "kv_use_share": 0.3, "kv_tokens": 1000, "preemptions": 2}
            | {"prefix_hit_tokens": 42, "queue_s_sum": 4.5, "queue_s_count": 9, "finished": 10},
        ),
        (
            TGI,
            {"running": 14, "waiting": 2, "finished": 9, "rejected": 5, "rejected:overloaded": 5}
            | {"queue_s_sum": 1.2, "queue_s_count": 10, "generation_tokens": 640},
        ),
        (
            LLAMA_CPP,
            {"running": 4, "waiting": 46, "prompt_tokens": 512, "prefill_s_sum": 1.25}
            | {"generation_tokens": 4242, "kv_use_share": 0.5},
        ),
        (
            DYNAMO,
            {"in_flight": 12, "generation_tokens": 900, "finished": 8, "finished:success": 7, "finished:error": 1},
        ),
        (TRT_LLM, {"running": 3, "waiting": 1, "kv_use_share": 0.75}),
        (DCGM, {"gpu_use_percent": 80, "gpu_power_w": 1000}),
    ],
    ids=["older-vllm", "sglang", "tgi", "llama.cpp", "dynamo", "trt-llm", "dcgm"],
)
def test_each_server_in_the_same_words(page: str, told: dict[str, float]) -> None:
    assert read_page(page).values == pytest.approx(told)
    assert read_page(page.replace("\n", "\r\n")).values == pytest.approx(told)
    rewritten = page.replace("vllm:", "vllm_").replace("sglang:", "sglang_").replace("llamacpp:", "llamacpp_")
    assert read_page(rewritten).values == pytest.approx(told), "as a collector writes the names"


def test_a_page_of_a_real_vllm() -> None:
    found = read_page(VLLM).values
    expected = {"running": 0, "waiting": 0, "waiting:capacity": 0, "kv_use_share": 0, "kv_tokens": 524_288}
    expected |= {"prompt_tokens": 232, "generation_tokens": 85, "finished": 15, "finished:length": 14, "rejected": 0}
    expected |= {"prefix_query_tokens": 232, "prefix_hit_tokens": 0, "preemptions": 0, "step_tokens_sum": 317}
    assert {term: found[term] for term in expected} == expected
    assert {
        f"{what}_s_{part}" for what in ("queue", "prefill", "decode", "ttft", "e2e") for part in ("sum", "count")
    } <= {*found}
    assert read_page(VLLM).engines == {}, "one engine is not told apart"


def test_engines_are_added_up_and_kept_apart() -> None:
    busy = VLLM.replace('num_requests_running{engine="0",model_name="tiny"} 0.0', 'num_requests_running{engine="0"} 9')
    second = busy.replace('engine="0"', 'engine="1"').replace('{engine="1"} 9', '{engine="1"} 4')
    reading = read_page(busy + second)
    assert reading.values["running"] == 13
    assert reading.values["kv_tokens"] == 2 * 524_288
    assert {engine: values["running"] for engine, values in reading.engines.items()} == {"0": 9, "1": 4}
    ranks = read_page(SGLANG).engines
    assert {engine: values["running"] for engine, values in ranks.items()} == {"0": 5, "1": 6}


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("tgi_queue_size 3", 3),
        ("tgi_queue_size\t3", None),  # not what the format says
        ("tgi_queue_size 3 1700000000000", 3),  # with a time
        ('tgi_queue_size{a="1",} 3', 3),  # a comma at the end is allowed
        ('tgi_queue_size { a = "1" } 3 # {trace_id="x"} 0.5 1.0', 3),  # OpenMetrics: an exemplar
        (r'tgi_queue_size{a="}\"\\,b=\n"} 3', 3),  # every escape
        ("tgi_queue_size 3e0", 3),
        ("tgi_queue_size NaN", None),
        ("tgi_queue_size +Inf", None),
        ("tgi_queue_size", None),
        ("tgi_queue_size three", None),
        ('tgi_queue_size{a="1} 3', None),
        ("tgi_queue_size{a=1} 3", None),
        ("tgi_queue_sizes 3", None),
        ("# tgi_queue_size 3", None),
    ],
)
def test_one_line(line: str, value: float | None) -> None:
    assert read_page(f"tgi_batch_current_size 1\n{line}\n").values.get("waiting") == value


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("", "no Prometheus text"),
        ("<html><body>Not here</body></html>", "no Prometheus text"),
        ('{"detail":"Not Found"}', "no Prometheus text"),
        ("# HELP up Is it?\n# TYPE up gauge\nup 1\n", "none of its names"),
        ('http_requests_total{code="200"} 4\n', "none of its names"),
        ("vllm:num_requests_running NaN\n", "none of its names"),
    ],
)
def test_a_page_that_tells_nothing_says_so(page: str, words: str) -> None:
    with pytest.raises(NoMetricsError, match=words):
        read_page(page)


known = st.sampled_from([name for names in NAMES.values() for name in names] + ["vllm:cache_config_info"])
piece = known | st.sampled_from(
    ['{engine="', 'a="', '"', "}", "\\", ",", " ", "\n", "{", "1", "1e400", "-", "NaN", "#"]
)


@given(st.text() | st.lists(piece | st.text(max_size=3), max_size=60).map("".join))
def test_garbage_is_read_or_refused_and_never_worse(page: str) -> None:
    try:
        reading = read_page(page)
    except NoMetricsError:
        return
    assert reading.values
    assert not any(math.isnan(value) for value in reading.values.values())


@given(st.lists(st.text(max_size=40).filter(lambda line: "\n" not in line), max_size=10), st.data())
def test_what_stands_around_a_line_does_not_change_it(lines: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(lines)))
    page = "\n".join((*lines[:at], 'tgi_queue_size{pod="p"} 3', *lines[at:]))
    assert read_page(page).values == {"waiting": 3}


@pytest.mark.parametrize(
    "hostile",
    [
        "tgi_queue_size{" + 'a="' * 5000,
        "tgi_queue_size{" + "a" * 16_000,
        "tgi_queue_size{" + " " * 16_000,
        'tgi_queue_size{a="' + "\\" * 16_000,
        "tgi_queue_size{" + 'a="b",' * 2600,
        "tgi_queue_size " + "9" * 16_000,
    ],
    ids=["open quotes", "one name", "spaces", "escapes", "labels", "digits"],
)
def test_no_text_takes_long(hostile: str) -> None:
    page = "\n".join([hostile] * 60)  # about a megabyte
    start = time.process_time()
    with pytest.raises(NoMetricsError):
        read_page(page)
    assert time.process_time() - start < 2.0, "linear it takes some ten milliseconds"


def test_every_counter_is_a_term() -> None:
    assert set(NAMES) >= COUNTERS
