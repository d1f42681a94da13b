"""Sampling flags as each endpoint names them in a body: a table. What is not given is not sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UsageError

_OPENAI = {
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty")},
    **{name: name for name in ("repetition_penalty", "stop", "n")},
    "sampling_seed": "seed",
}
_OLLAMA = {
    **{name: name for name in _OPENAI if name not in ("n", "repetition_penalty", "sampling_seed")},
    "repetition_penalty": "repeat_penalty",
    "sampling_seed": "seed",
}
# Endpoint → flag → field. Those beyond OpenAI's own (top_k, min_p, repetition_penalty) are vLLM's and SGLang's.
NAMES: Mapping[str, Mapping[str, str]] = {
    "chat": {**_OPENAI, "logprobs": "top_logprobs"},
    "completions": {**_OPENAI, "logprobs": "logprobs"},
    "responses": {"temperature": "temperature", "top_p": "top_p", "logprobs": "top_logprobs"},
    "generate_stream": {
        **{name: name for name in ("temperature", "top_p", "top_k", "frequency_penalty", "repetition_penalty", "stop")},
        "sampling_seed": "seed",
        "logprobs": "top_n_tokens",
    },
    "ollama_chat": _OLLAMA,
    "ollama_generate": _OLLAMA,
}
# What has to be said beside a field for it to have an effect.
_BESIDE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("chat", "logprobs"): {"logprobs": True},
    ("responses", "logprobs"): {"include": ["message.output_text.logprobs"]},
}
FLAGS = (*_OPENAI, "logprobs")


def sampling_fields(endpoint: str, sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Flags (`top_k`, …) with their values → the fields of a body. Raises UsageError for one that has no name there."""
    names = NAMES.get(endpoint, {})
    fields: dict[str, Any] = {}
    for flag, value in sampling.items():
        if flag not in names:
            raise UsageError(
                f"--{flag.replace('_', '-')} has no field in the {endpoint} endpoint",
                "leave it out, or give the server's own name for it with --extra-body",
            )
        fields |= _BESIDE.get((endpoint, flag), {})
        fields[names[flag]] = value
    return fields
