"""Sampling flags by the names that servers have for them."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.client.dialects import DIALECTS
from loadgen.client.dialects.base import RequestOptions
from loadgen.client.dialects.sampling import FLAGS, NAMES, sampling_fields
from loadgen.errors import UsageError
from loadgen.records import Prompt

ALL: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.3,
    "repetition_penalty": 1.1,
    "stop": ("a", "b"),
    "n": 2,
    "sampling_seed": 7,
    "logprobs": 5,
}
OPENAI = {key: value for key, value in ALL.items() if key not in ("sampling_seed", "logprobs")} | {"seed": 7}


def without(*flags: str) -> dict[str, Any]:
    return {flag: value for flag, value in ALL.items() if flag not in flags}


def test_every_endpoint_and_flag_is_in_the_table() -> None:
    assert set(NAMES) == set(DIALECTS)
    assert set(FLAGS) == set(ALL)


def test_chat() -> None:
    assert sampling_fields("chat", ALL) == {**OPENAI, "logprobs": True, "top_logprobs": 5}


def test_completions() -> None:
    assert sampling_fields("completions", ALL) == {**OPENAI, "logprobs": 5}


def test_tgi_has_them_among_its_parameters() -> None:
    fields = sampling_fields("generate_stream", without("min_p", "presence_penalty", "n"))
    body = DIALECTS["generate_stream"].body(Prompt("p"), RequestOptions("m", sampling=fields))
    assert body["parameters"] == {
        **{name: ALL[name] for name in ("temperature", "top_p", "top_k", "frequency_penalty", "repetition_penalty")},
        "stop": ("a", "b"),
        "seed": 7,
        "top_n_tokens": 5,
        "details": True,
    }


@pytest.mark.parametrize(
    ("endpoint", "flag"),
    [("generate_stream", "min_p"), ("generate_stream", "n"), ("responses", "top_k"), ("ollama_chat", "n")],
)
def test_a_flag_without_a_name_is_refused(endpoint: str, flag: str) -> None:
    with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')} has no field in the {endpoint} endpoint"):
        sampling_fields(endpoint, {flag: ALL[flag]})


def test_the_flags_win_over_a_body_and_the_users_own_fields_over_them() -> None:
    options = RequestOptions("m", sampling={"top_k": 5, "seed": 1}, extra_body={"seed": 2})
    body = DIALECTS["chat"].body(Prompt(body={"messages": [1], "top_k": 9, "min_p": 0.1}), options)
    assert (body["top_k"], body["seed"], body["min_p"]) == (5, 2, 0.1)
