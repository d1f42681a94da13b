"""Conditions side by side: unknown is never equal, and what was changed is named."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.analysis.conditions import changed, conditions, same_work, unknown

BASE: dict[str, Any] = {
    "server": {"kind": "vllm", "version": "1", "model": "m", "context_length": 2048, "flags": {"dtype": "bf16"}},
    "request": {"force_length": True, "temperature": "server default"},
    "workload": {"content_sha256": "abc", "seed": 7},
    "describe": {"gpu": "H100"},
    "target": {"url": "http://a", "endpoint": "chat"},
    "host": {"loadgen": "0.1.0"},
    "definitions": {"version": "1"},
}


def with_(**change: Any) -> dict[str, Any]:
    return {**BASE, **{key: {**BASE.get(key, {}), **value} for key, value in change.items()}}


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, []),
        ({"target": {"url": "http://b"}}, []),  # not what is asked about
        ({"workload": {"seed": 8}}, []),
        ({"host": {"loadgen": "0.2.0"}}, []),
        ({"server": {"model": "other"}}, ["model"]),
        ({"server": {"version": "2"}}, ["server version"]),
        ({"server": {"flags": {"dtype": "fp8"}}}, ["precision"]),
        ({"server": {"flags": {"dtype": "bf16", "num_gpu_blocks": "9"}}}, []),  # learnt anew at each start
        ({"server": {"context_length": 4096}}, ["context length"]),
        ({"request": {"temperature": 0.0}}, ["sampling"]),
        ({"request": {"force_length": False}}, ["completion"]),
        ({"workload": {"content_sha256": "xyz"}}, ["workload"]),
        ({"describe": {"gpu": "H200"}}, ["GPU"]),
        ({"definitions": {"version": "2"}}, ["metric definitions"]),
        ({"server": {"version": "2", "model": "other"}}, ["model", "server version"]),
    ],
)
def test_what_was_changed_is_named(change: dict[str, Any], names: list[str]) -> None:
    found = conditions([BASE, with_(**change)], [[], []])
    assert changed(found) == names


def test_what_nobody_wrote_down_is_not_equal() -> None:
    found = conditions([None, None], [[], []])
    assert changed(found) == [] and {"model", "GPU", "workload"} <= set(unknown(found))
    assert all(c.state == "unknown" for c in found)


def test_a_manifest_of_another_shape_is_read_as_far_as_it_goes() -> None:
    odd = {"server": "vllm", "workload": ["x"], "describe": None, "request": 3, "simulator": {"engine": 1}}
    assert all(c.values[0] is None for c in conditions([odd], [[]]))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (BASE, True),
        (with_(workload={"seed": 8}), False),
        (with_(workload={"content_sha256": "x"}), False),
        (None, False),
        ({"workload": {}}, False),
    ],
)
def test_equal_work_needs_hash_and_seed(other: dict[str, Any] | None, same: bool) -> None:
    assert same_work(BASE, other) is same


def test_nothing_known_is_not_equal_work() -> None:
    assert not same_work({}, {}) and not same_work(None, None)
