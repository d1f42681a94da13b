"""The step model fitted to runs of engines whose step is known."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loadgen.errors import UsageError
from loadgen.experiments.fitted import FIGURES, NAMES, Fit, MeasuredLevel, fit, run_level, told_by
from loadgen.report.fitted import command, fit_lines, fit_object
from loadgen.simulator.engine import EngineConfig

TRUE = EngineConfig(
    step_ms=9.0, decode_ms=0.15, prefill_ms=0.05, context_us=0.0, overhead_ms=7.0, max_batch=256, noise_sigma=0.02
)
LIKE = EngineConfig(max_batch=256)


def measured(config: EngineConfig, loads: tuple[int, ...], *, spread: float = 0.5) -> list[MeasuredLevel]:
    random = np.random.default_rng(3)
    prompt = random.uniform(400 * (1 - spread), 400 * (1 + spread), 400).astype(np.int64)
    output = random.integers(6, 15, 400)
    nothing = np.empty(0)
    found = []
    for i, load in enumerate(loads):
        asked = MeasuredLevel(load, nothing, prompt, output, nothing, nothing)
        found.append(run_level(replace(config, seed=i), asked, 60))
    return found


@pytest.fixture(scope="module")
def found() -> Fit:
    return fit(measured(TRUE, (1, 4, 8, 16)), LIKE, (32,))


def test_a_known_step_is_found_again(found: Fit) -> None:
    """What decoding, its context and its prompts add is told apart only in part; in all it is known."""
    for name, close in (("step_ms", 0.05), ("prefill_ms", 0.1), ("overhead_ms", 0.2)):
        assert getattr(found.config, name) == pytest.approx(getattr(TRUE, name), rel=close), name
    assert each(found.config) == pytest.approx(each(TRUE), rel=0.05)


def each(config: EngineConfig) -> float:
    """What one more sequence adds to a step, in ms."""
    return config.decode_ms + config.context_us * 405 / 1e3 + config.prefill_ms * 400 / 10


def test_loads_held_out_are_predicted_and_the_error_is_theirs(found: Fit) -> None:
    assert [one.concurrency for one in found.held_out] == [4]
    assert [one.concurrency for one in found.fitted] == [1, 4, 8, 16]
    error = found.error("output_throughput")
    assert error is not None and error < 0.03
    errors = found.held_out[0].errors
    assert errors is not None and error == pytest.approx(abs(errors[0]))


def test_a_load_that_was_not_measured_is_predicted(found: Fit) -> None:
    (one,) = found.predicted
    (truth,) = measured(TRUE, (32,))
    assert one.measured is None and one.errors is None
    assert one.figures[0] == pytest.approx(truth.figures[0], rel=0.05)
    assert one.figures[3] == pytest.approx(truth.figures[3], rel=0.05)


def test_one_level_can_be_fitted_and_its_error_is_not_known() -> None:
    alone = fit(measured(TRUE, (1,)), LIKE)
    assert alone.held_out == () and all(alone.error(name) is None for name in FIGURES)
    assert alone.fitted[0].errors is not None and abs(alone.fitted[0].errors[0]) < 0.03
    assert "not known" in "\n".join(fit_lines(alone, "RUN"))


def test_inputs_that_are_all_alike_are_said_not_to_tell() -> None:
    same = fit(measured(TRUE, (1, 8), spread=0.0), LIKE)
    assert not same.told_apart
    assert any("cannot be told apart" in line for line in fit_lines(same, "RUN"))
    errors = same.fitted[0].errors
    assert errors is not None and abs(errors[0]) < 0.05


def test_a_step_that_no_such_model_has_is_fitted_within_what_is_possible() -> None:
    """A roofline hides prompts under the reading of weights: nothing falls below zero, and throughput holds."""
    from loadgen.simulator.presets import PRESETS

    machine = replace(PRESETS["h100-llama-3.1-8b"], prefix_cache=False)
    roofline = fit(measured(machine, (1, 8)), LIKE)
    assert all(getattr(roofline.config, name) >= 0 for name in NAMES)
    assert all(one.errors is not None and abs(one.errors[0]) < 0.15 for one in roofline.fitted)


def test_nothing_to_fit_to() -> None:
    with pytest.raises(ValueError, match="no level"):
        fit([], LIKE)
    (one,) = measured(TRUE, (1,))
    with pytest.raises(ValueError, match="no level"):
        fit([replace(one, tpot_ms=np.full(len(one.prompt), math.nan))], LIKE)


def test_what_is_told_of_a_noiseless_engine_alone_is_exact() -> None:
    told = dict(zip(NAMES, told_by(measured(replace(TRUE, noise_sigma=0.0), (1, 2)), 256), strict=True))
    assert told["prefill_ms"] == pytest.approx(TRUE.prefill_ms, rel=0.01)
    assert told["overhead_ms"] + told["step_ms"] == pytest.approx(TRUE.overhead_ms + TRUE.step_ms, rel=0.02)


def test_the_words_and_the_object(found: Fit) -> None:
    text = "\n".join(fit_lines(found, "results/RUN", ("a note",)))
    assert "held out" in text and "a note" in text and "beyond the loads measured (32)" in text
    assert command(found).split()[:2] == ["loadgen", "simulate"]
    told = fit_object(found, "results/RUN")
    assert told["held_out"][0]["concurrency"] == 4
    assert set(told["predicted"][0]["predicted"]) == set(FIGURES)


@pytest.mark.parametrize("small", [{"kv_blocks": 2}, {"context_length": 50}])
def test_an_engine_that_cannot_hold_a_request_of_the_run_is_refused(small: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="tokens, and such an engine holds"):
        fit(measured(TRUE, (1, 4)), replace(LIKE, **small))
