"""An experiment before it is run, and what it found: as text and as JSON. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..experiments.definition import SERVERS, Arm, Experiment, Setting
from ..experiments.effects import expected_ratio
from ..experiments.verdict import Judged
from ..log.codec import plain
from .compared import difference_object, failing_object, failing_text, sentence, wrapped
from .numbers import clean, number, percent

_SERVER_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "tgi": "TGI"}
_ANSWERS = {
    "as expected": "as expected",
    "contrary": "CONTRARY to what is expected",
    "undecided": "undecided: more pairs (--repeats) or longer runs (--requests) would tell",
}
DEFAULT_FLAGS = "its defaults"


def plan_lines(experiment: Experiment, settings: Sequence[Setting], width: int = 120) -> list[str]:
    """What would be run, and what is expected of it."""
    lines = head_lines(experiment)
    for setting in settings:
        runs = 2 * setting.load.pairs
        lines += [
            "",
            *setting_lines(setting),
            *_arm_lines("A", setting, setting.a),
            *_arm_lines("B", setting, setting.b),
        ]
        lines.append(f"runs      {runs} runs of {setting.load.requests:,} requests after a warm-up, in the order ABBA…")
    return wrapped(lines, width)


def head_lines(experiment: Experiment) -> list[str]:
    lines = [f"question  {clean(experiment.question)}", f"changed   {clean(experiment.changed)}"]
    if experiment.source:
        lines.append(f"source    {clean(experiment.source)}")
    return [*lines, *(f"note      {clean(note)}" for note in experiment.notes)]


def setting_lines(setting: Setting) -> list[str]:
    workload, load = setting.workload, setting.load
    shared = f" · {workload.sharing}" if workload.sharing else ""
    ratio = expected_ratio(setting)
    by_hand = f" · by hand {_name(setting)} x {number(ratio)}" if ratio is not None else ""
    return [
        f"setting   {clean(setting.title)}",
        f"workload  {workload.describe()}{shared} · {load}",
        f"expected  {_name(setting)} {_WAYS[setting.expect.direction]}{by_hand}",
        f"          {clean(setting.expect.text)}",
    ]


_WAYS = {"higher": "higher in B", "lower": "lower in B", "same": "the same"}


def _arm_lines(letter: str, setting: Setting, arm: Arm) -> list[str]:
    of = " · ".join(f"{key}={_value(value)}" for key, value in sorted(arm.settings.items()))
    lines = [f"{letter}         {clean(arm.label)} · simulated: {f'{arm.replicas} x ' if arm.replicas > 1 else ''}{of}"]
    return [*lines, *(f"          {text}" for text in flag_lines(arm))]


def flag_lines(arm: Arm) -> list[str]:
    """The exact flags of each server."""
    flags = arm.flags or {}
    return [
        f"{_SERVER_NAMES[server]:8}{clean(flags[server]) or DEFAULT_FLAGS}" if server in flags else
        f"{_SERVER_NAMES[server]:8}has no switch for it"
        for server in SERVERS
    ]  # fmt: skip


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(setting: Setting) -> str:
    figure = setting.expect.figure
    return "output throughput" if figure.percentile is None else f"p{figure.percentile:g} {figure.metric.upper()}"


# --- what was found -------------------------------------------------------------------------------------------------


def result_lines(experiment: Experiment, found: Sequence[Judged], how: str, width: int = 120) -> list[str]:
    """`how` says where and how it was measured."""
    lines = [*head_lines(experiment), f"measured  {how}"]
    for one in found:
        setting = one.setting
        runs = f"{setting.load.pairs} pairs of runs of {setting.load.requests:,} requests, ABBA"
        lines += ["", *setting_lines(setting)]
        lines.append(f"arms      A {clean(setting.a.label)} · B {clean(setting.b.label)} · {runs}")
        lines += [f"  {sentence(d)}" for d in one.differences]
        lines += [f"  {text}" for f in one.failing if (text := failing_text(f, "B"))]
        lines += [f"  {goal.objective}: met in {_met(goal.a)} of A's runs, {_met(goal.b)} of B's" for goal in one.goals]
        lines.append(f"verdict   {_verdict(one)}")
    return wrapped(lines, width)


def _met(share: float) -> str:
    return "none" if math.isnan(share) or not share else percent(share)


def _verdict(one: Judged) -> str:
    if one.limits:
        runs = 2 * one.setting.load.pairs
        return f"undecided: the client may have shaped {len(one.limits)} of {runs} runs: {one.limits[0].what}"
    text = _ANSWERS[one.answer]
    ratio = one.differences[0].ratio
    if ratio is None or ratio.error is None:
        return text
    low, high = ratio.ratio.low, ratio.ratio.high
    measured = f"{_name(one.setting)} x {number(ratio.ratio.value)} [{number(low)}, {number(high)}]"
    return f"{text}: {measured}" + (f", by hand x {number(one.formula)}" if one.formula is not None else "")


def result_object(experiment: Experiment, found: Sequence[Judged], how: str) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "question": experiment.question,
        "changed": experiment.changed,
        "source": experiment.source or None,
        "notes": list(experiment.notes),
        "measured": how,
        "settings": [
            {
                **setting_object(one.setting),
                "differences": [difference_object(d) for d in one.differences],
                "failed": [plain(failing_object(f)) for f in one.failing],
                "objectives": [
                    {"objective": goal.objective, "a_runs_met_share": goal.a, "b_runs_met_share": goal.b}
                    for goal in one.goals
                ],
                "answer": one.answer,
                "runs_shaped_by_the_client": len(one.limits),
            }
            for one in found
        ],
    }


def plan_object(experiment: Experiment, settings: Sequence[Setting]) -> dict[str, Any]:
    return {
        "name": experiment.name,
        "question": experiment.question,
        "changed": experiment.changed,
        "source": experiment.source or None,
        "notes": list(experiment.notes),
        "settings": [setting_object(setting) for setting in settings],
    }


def setting_object(setting: Setting) -> dict[str, Any]:
    load, expect = setting.load, setting.expect
    return {
        "title": setting.title,
        "workload": {"hash": setting.workload.hash, "words": setting.workload.describe()},
        "load": {"concurrency": load.concurrency or None, "rate": load.rate},
        "requests": load.requests,
        "pairs": load.pairs,
        "a": _arm_object(setting.a),
        "b": _arm_object(setting.b),
        "expected": {
            "figure": expect.figure.name,
            "direction": expect.direction,
            "text": expect.text,
            "margin_share": expect.margin,
            "ratio_by_hand": expected_ratio(setting),
        },
        "figures": [figure.name for figure in setting.figures],
    }


def _arm_object(arm: Arm) -> dict[str, Any]:
    return {
        "label": arm.label,
        "engine": dict(arm.settings),
        "replicas": arm.replicas,
        "flags": {server: (arm.flags or {}).get(server) for server in SERVERS},
    }
