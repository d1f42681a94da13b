"""Experiment files: what they may say, and what is told of those that cannot be meant."""

from __future__ import annotations

import pytest

from loadgen.errors import UsageError
from loadgen.experiments.definition import SERVERS, parse_experiment
from loadgen.experiments.library import READY, load_experiment, names

NINE = {
    *("quantisation", "flash-attention", "paged-kv", "continuous-batching", "chunked-prefill", "prefix-cache"),
    *("speculative-decoding", "tensor-parallel", "pd-disaggregation"),
}
SMALL = """
name = "mine"
question = "Is a longer step slower?"
changed = "the step"
[workload]
lengths = { input = { kind = "uniform", low = 16, high = 48 }, output = { kind = "uniform", low = 4, high = 8 } }
[load]
concurrency = 4
requests = 40
pairs = 5
[engine]
max_batch = 8
[a]
label = "12 ms"
flags = { vllm = "" }
[b]
label = "24 ms"
engine = { step_ms = 24 }
flags = { vllm = "--slow" }
[expect]
metrics = ["tpot_p95", "output_throughput"]
direction = "higher"
formula = "tpot"
effect = "TPOT is the step"
[boundary]
title = "no step at all is different"
b = { engine = { step_ms = 12 } }
expect = { direction = "same", effect = "equal arms" }
"""


def test_the_nine_are_there_each_with_its_boundary() -> None:
    assert set(names()) == NINE
    for name in names():
        found = load_experiment(name)
        assert found.name == name and found.question.endswith("?") and len(found.settings) == 2
        for setting in found.settings:
            assert setting.a.engine != setting.b.engine or setting.a.replicas != setting.b.replicas
            assert setting.expect.text
        told = {server for setting in found.settings for arm in (setting.a, setting.b) for server in arm.flags or {}}
        assert told <= set(SERVERS) and "vllm" in told


def test_arms_differ_in_nothing_but_what_is_changed() -> None:
    """The settings that the arms do not have in common are few, and the same in number."""
    for name in names():
        for setting in load_experiment(name).settings:
            a, b = setting.a.settings, setting.b.settings
            differing = {key for key in {*a, *b} if a.get(key) != b.get(key)}
            # Precision is of weights and KV; a chunk is on or off with its size; acceptance is of what is drafted.
            assert 1 <= len(differing) + (setting.a.replicas != setting.b.replicas) <= 2, (name, differing)


def test_a_boundary_changes_what_it_names_and_nothing_else() -> None:
    effect, boundary = parse_experiment(SMALL, "mine.toml").settings
    assert (effect.b.engine.step_ms, boundary.b.engine.step_ms) == (24, 12)
    assert effect.a == boundary.a and effect.load == boundary.load and effect.workload == boundary.workload
    assert boundary.b.flags == {"vllm": "--slow"} and boundary.b.label == "24 ms"
    assert (effect.expect.direction, boundary.expect.direction) == ("higher", "same")
    assert boundary.figures == effect.figures
    short = effect.shortened(12, None)
    assert (short.load.requests, short.load.pairs) == (12, 5)


def test_a_sharing_is_taken_away_by_an_empty_one() -> None:
    effect, boundary = load_experiment("prefix-cache").settings
    assert effect.workload.sharing is not None and boundary.workload.sharing is None
    assert effect.workload.lengths == boundary.workload.lengths


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[load]", "[load", "is no TOML"),
        ('question = "Is a longer step slower?"', "", "question is missing"),
        ("concurrency = 4", "concurrency = 0", "load.concurrency is 0"),
        ("concurrency = 4", "rate = 2\nconcurrency = 4", "exclude each other"),
        ("pairs = 5", "pairs = 2", "load.pairs is 2"),
        ("step_ms = 24", "step_mss = 24", "no setting step_mss"),
        ("step_ms = 24", 'step_ms = "long"', "step_ms is 'long'"),
        ("max_batch = 8", "max_batch = true", "max_batch is True"),
        ("max_batch = 8", 'gpu = "h100"', "names no model"),
        ("max_batch = 8", 'model = ""', "model is ''"),
        ("max_batch = 8", 'model = "llama-3.1-8b"\ntp = 2\ntp_link_gb_s = nan', "tp_link_gb_s is nan"),
        ("max_batch = 8", 'model = "llama-3.1-8b"\ntp = 2\ntp_link_gb_s = -1', "tp_link_gb_s is -1"),
        ('label = "24 ms"', 'label = "24 ms"\nreplicas = 8', "b.replicas is 8, and load.concurrency 4"),
        ('"tpot_p95", "output', '"tpot_p42", "output', "names 'tpot_p42'"),
        ('direction = "higher"', 'direction = "up"', "direction is 'up'"),
        ('formula = "tpot"', 'formula = "magic"', "formula is 'magic'"),
        ('label = "12 ms"', "", "a.label is missing"),
        ("flags = { vllm = ", "flags = { vlm = ", "no key a.flags.vlm"),
        ("[boundary]", "[boundary]\nquestion = 3", "boundary.question cannot be overridden"),
        ("high = 48", "high = 4800000", "exceed what a's engine holds"),
        ('changed = "the step"', 'changed = "the step"\nfoo = 1', "no key foo"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_place(old: str, new: str, words: str) -> None:
    assert old in SMALL
    with pytest.raises(UsageError) as told:
        parse_experiment(SMALL.replace(old, new, 1), "mine.toml")
    assert words in told.value.message and "mine.toml" in told.value.message and told.value.remedy
    assert "\n" not in told.value.message.replace(told.value.remedy, "")


def test_files_are_found_by_name_and_by_path(tmp_path: object) -> None:
    for given, words in (
        ("prefix-cash", "no experiment prefix-cash"),
        ("/no/such.toml", "cannot be read"),
        (str(READY), "cannot be read"),
        ("\0.toml", "cannot be read"),
    ):
        with pytest.raises(UsageError, match=words):
            load_experiment(given)
