from __future__ import annotations

import json
import re
from pathlib import Path

from loadgen.simulator.capacity import capacity
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess
from tests.cli.command import finish, start


def test_a_simulated_run_says_what_the_server_could_carry(tmp_path: Path) -> None:
    run = start(
        *("run", "--simulate", "-c", "32", "--input-len", "40", "--output-len", "8", "--requests", "96"),
        *("--seed", "5", "--json", "-o", tmp_path),
    )
    report = json.loads(finish(run).out)
    note = next(note for note in report["notes"] if "computed capacity" in note)
    found = re.match(r".* is ([\d,]+) output tokens/s; (\d+) % of it was measured", note)
    assert found
    computed = capacity(EngineConfig(seed=5), 40, 8)
    assert abs(int(found[1].replace(",", "")) / computed - 1) < 0.02
    measured = report["steps"][0]["output_throughput"]
    assert abs(int(found[2]) / 100 - measured / computed) < 0.03
    again = start("report", next(tmp_path.iterdir()))  # it is kept with the run
    assert note in " ".join(finish(again).out.split())


def test_a_server_of_ones_own_has_no_such_note(tmp_path: Path) -> None:
    with SimulatorProcess() as simulator:
        run = start("run", simulator.url, "--requests", "8", "--input-len", "40", "--output-len", "4", "-o", tmp_path)
        assert "computed capacity" not in finish(run).out
