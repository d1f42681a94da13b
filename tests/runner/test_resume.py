"""What a run folder gives back is what the run itself had in hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from loadgen.client.budget import Budget
from loadgen.log.store import open_run
from loadgen.runner import Finished, OpenLoop, RunConfig, WorkloadChoice, execute
from loadgen.runner.config import Resume
from loadgen.runner.resume import exhausted, in_flight, is_finished, take_up
from loadgen.runner.setting import workload_of
from loadgen.search.rates import RatePlan
from loadgen.search.sweep import SweepPlan
from loadgen.simulator.scripted import ThreadedServer
from loadgen.slo import parse_slo
from tests.cli.command import serve

SHAPE = WorkloadChoice("32", "4", seed=3)
PLAN = SweepPlan(levels=(1, 2), has_slo=True)
SWEEPS = {
    "levels": RunConfig("sweep", "", plan=PLAN, slo=parse_slo(["e2e_p90=2s"]), requests=12),
    "climb": RunConfig("sweep", "", plan=SweepPlan(max_level=4, refine=0, revisit=False), requests=12),
    "rates": RunConfig("sweep", "", open_loop=OpenLoop(40.0), rates=RatePlan(40.0, 2.0, 60.0), requests=12),
}


def measured(config: RunConfig, output: Path, tries: int = 1) -> tuple[RunConfig, Finished]:
    """A sweep of a server that is gone afterwards; up to `tries` times where this machine was too busy to measure."""
    for _ in range(tries):
        with ThreadedServer(serve(40.0)) as server:
            config = replace(config, url=server.url, workload=SHAPE, output=str(output))
            finished = anyio.run(execute, config)
        if not disturbed(finished):
            break
    return config, finished


def disturbed(finished: Finished) -> bool:
    return any(level.verdict == "invalid" for level in finished.levels)


def unlimited() -> Budget:
    return Budget(requests=1000, tokens=100_000)


@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_the_levels_of_a_run_are_the_ones_it_came_to(tmp_path: Path, name: str) -> None:
    config, finished = measured(SWEEPS[name], tmp_path)
    budget = unlimited()
    earlier = take_up(Path(finished.where), config, workload_of(config), budget)
    valid = [level for level in finished.levels if level.verdict != "invalid"]
    assert [level for _, level in earlier.levels] == valid
    assert earlier.summaries == tuple(
        s for s, level in zip(finished.summaries, finished.levels, strict=True) if level.verdict != "invalid"
    )
    assert earlier.outcomes == finished.outcomes and earlier.seed == 3
    assert earlier.next_step == len(finished.levels) + 1
    assert budget.requests == 1000 - sum(finished.outcomes.values())
    records = list(open_run(finished.where).records())
    used = sum((r.input_tokens.server or 0) + (r.output_tokens.count or 0) for r in records)
    assert budget.tokens == 100_000 - used
    assert earlier.last_ns >= max(r.done_ns for r in records)
    assert earlier.now_ns() > earlier.last_ns


def test_a_run_of_which_only_the_answer_is_missing_is_answered_without_a_server(tmp_path: Path) -> None:
    config, finished = measured(SWEEPS["levels"], tmp_path, tries=4)
    if disturbed(finished):
        pytest.skip("the machine is too busy for a level to count")
    folder = Path(finished.where)
    manifest = {k: v for k, v in finished.manifest.items() if k not in ("stop", "levels", "exit_code", "duration_s")}
    (folder / "manifest.json").write_bytes(orjson.dumps({**manifest, "status": "running"}))
    assert not is_finished(open_run(folder))
    again = anyio.run(execute, replace(config, resume=Resume(folder)))  # its server is gone
    assert again.stop == finished.stop and again.levels == finished.levels and again.exit_code == finished.exit_code
    assert is_finished(open_run(folder))
    assert again.manifest["resumed"][0]["uncounted"] == []


@pytest.mark.parametrize(
    ("limits", "lost", "spent"),
    [
        ({"requests": 3}, 2, None),
        ({"requests": 3}, 3, "requests"),
        ({"tokens": 100}, 1, None),  # a request of 32 tokens in and 4 out
        ({"tokens": 100}, 2, "tokens"),
        ({"deadline": 10.0}, 0, "time"),
        ({"deadline": 10.1}, 0, None),
        ({}, 50, None),
    ],
)
def test_what_was_in_flight_when_it_was_killed_is_paid_for(
    limits: dict[str, Any], lost: int, spent: str | None
) -> None:
    workload = workload_of(RunConfig("sweep", "", workload=SHAPE))

    async def left() -> str | None:
        if "deadline" in limits:
            limits["deadline"] += anyio.current_time() - 10.0
        budget, now = Budget(**limits), anyio.current_time()
        in_flight(budget, workload, lost)
        exhausted(budget, workload, now)
        return budget.spent

    assert anyio.run(left) == spent
