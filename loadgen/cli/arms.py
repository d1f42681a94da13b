"""The arms of an experiment on real sockets: two servers, one that is restarted in between, or simulated ones."""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError

if TYPE_CHECKING:
    from ..experiments.definition import Arm, Setting
    from ..results import StepSummary

LOOK_S = 1.0  # between two looks at a server that restarts
_READY_S = 600.0  # that it may then take to load


def measure_arms(
    setting: Setting, urls: Sequence[str], seed: int, flags: dict[str, Any]
) -> tuple[list[StepSummary], list[StepSummary]] | Exit:
    """All runs in the order ABBA, each pair with a seed of its own; an exit code where one was broken off. Without URLs
    each arm is a simulated server of its own."""
    from ..analysis.interleaved import order
    from ..client.loop import run
    from ..report.text import headline
    from ..runner import execute

    measured: dict[str, list[StepSummary]] = {"A": [], "B": []}
    before = ""
    with ExitStack() as stack:
        addresses = _addresses(setting, urls, flags["endpoint"], stack)
        for number, which in enumerate(order(setting.load.pairs)):
            arm = setting.a if which == "A" else setting.b
            if len(urls) == 1 and which != before:
                _wait_for_change(which, arm, addresses[which][0])
            before = which
            config = _config(
                *(setting, arm, addresses[which], seed + number // 2, flags),
                simulated=not urls,
                restarted=len(urls) == 1,
            )
            finished = run(execute, config)
            if not flags["quiet"]:
                told = headline(finished.summaries[-1]) if finished.summaries else "nothing was measured"
                click.echo(f"{which} {number // 2 + 1}/{setting.load.pairs}  {told}  {finished.where}", err=True)
            if finished.exit_code in (Exit.TARGET, Exit.INTERRUPTED, Exit.TERMINATED) or not finished.summaries:
                return Exit(finished.exit_code) if finished.exit_code else Exit.UNDECIDED
            measured[which].append(finished.summaries[-1])
    return measured["A"], measured["B"]


def _addresses(setting: Setting, urls: Sequence[str], endpoint: str | None, stack: ExitStack) -> dict[str, list[str]]:
    if urls:
        sides = [[url for url in side.split(",") if url] for side in urls]
        for side in sides:
            _check_addresses(side, endpoint)
        return {"A": sides[0], "B": sides[-1]}
    from ..simulator.process import SimulatorProcess

    return {
        which: [stack.enter_context(SimulatorProcess(arm.engine)).url for _ in range(arm.replicas)]
        for which, arm in (("A", setting.a), ("B", setting.b))
    }


def _check_addresses(urls: Sequence[str], endpoint: str | None) -> None:
    """Raises UsageError for an arm without an address, or with one that cannot be meant, before any server is waited
    for."""
    from ..client.target import resolve

    if not urls:
        raise UsageError("an arm has no URL", "give the server's address, of replicas with commas between")
    for url in urls:
        resolve(url, endpoint)


def _config(
    setting: Setting,
    arm: Arm,
    addresses: Sequence[str],
    seed: int,
    flags: dict[str, Any],
    *,
    simulated: bool,
    restarted: bool,
) -> Any:
    from dataclasses import asdict

    from ..runner import OpenLoop
    from ..search.sweep import SweepPlan
    from .options import run_config

    load = setting.load
    plan = SweepPlan(levels=(load.concurrency,)) if load.rate is None else SweepPlan()
    given = {
        **flags,
        "urls": tuple(addresses),
        "definition": setting.workload,
        "seed": seed,
        "requests": load.requests,
        "describe": (*flags["describe"], ("arm", arm.label)),
        "open_loop": None if load.rate is None else OpenLoop(load.rate),
        "slo": tuple(objective.text for objective in setting.slo.objectives),
        "wait_ready": flags["wait_ready"] or (_READY_S if restarted else None),
    }
    truth = {"engine": asdict(arm.engine)} if simulated else None
    return run_config("run", plan, given, urls=list(addresses), simulator=truth)


def _wait_for_change(which: str, arm: Arm, url: str) -> None:
    """Say which flags this arm needs; return when the server has gone and come back, or Enter is pressed."""
    from ..report.experiment import flag_lines

    click.echo(f"\nstart the server at {url} as arm {which}, {arm.label}:", err=True)
    for text in flag_lines(arm):
        click.echo(f"  {text}", err=True)
    click.echo("it goes on when the server has gone and is back, or at Enter", err=True)
    came_back(lambda: _answers(url), _enter)


def came_back(answers: Callable[[], bool], pressed: Callable[[float], bool]) -> None:
    """Returns when `answers` has turned false and true again, or `pressed`, which waits so long, says so."""
    gone = False
    while not pressed(LOOK_S):
        up = answers()
        if gone and up:
            return
        gone = gone or not up


def _answers(url: str) -> bool:
    from urllib.parse import urlsplit

    parts = urlsplit(url if "//" in url else f"http://{url}")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "localhost", port), timeout=LOOK_S).close()
    except OSError:
        return False
    return True


def _enter(seconds: float) -> bool:
    """Was Enter pressed within so long? Without a terminal it only waits."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    ready, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(ready and sys.stdin.readline())
