"""A whole run keeps what its client said of itself, and says it again from the log."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from loadgen.client.transport import Access
from loadgen.log.store import open_run
from loadgen.simulator.engine import EngineConfig
from loadgen.simulator.process import SimulatorProcess
from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import Call, folder_in, manifest_of, serve
from tests.cycles import cycles

RUN = ("--input-len", "16", "--output-len", "8", "-c", "4", "--duration", "0.6s", "--json")


pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_run_tells_and_keeps_how_its_client_fared(call: Call, tmp_path: Path) -> None:
    gc.unfreeze()  # what is set aside for all tests: a run leaves nothing frozen
    before = (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks))
    with ThreadedServer(serve(20)) as server:
        said = call("run", server.url, *RUN, "-o", tmp_path / "results")
    assert said.code in (0, 4), said.err  # a busy machine may well have been the limit here
    assert (gc.isenabled(), gc.get_freeze_count(), list(gc.callbacks)) == before

    step = json.loads(said.out)["steps"][0]
    client = step["client"]
    assert client["seconds"] > 0.3 and client["loop_lag_us"]["n"] > 0 and client["refill_lag_us"]["n"] > 0
    assert client["descriptors"] > 3
    assert 0 < step["error_bounds_ms"]["ttft"]["p50"] <= step["error_bounds_ms"]["ttft"]["p99"] + 50
    assert (step["verdict"] == "invalid") == (step["client_limit"] is not None)

    folder = folder_in(tmp_path / "results")
    whose = client["stamps"]
    assert manifest_of(folder)["clock"]["source"] == whose
    if Access().transport == "kernel" and whose == "kernel":
        assert client["reads"] >= client["stamped"] > 0 and client["read_lag_us"]["n"] == client["stamped"]
    kept = open_run(folder).observations[0].health
    assert kept is not None and kept.loop_lag_us is not None and kept.loop_lag_us.n == client["loop_lag_us"]["n"]

    again = call("report", folder)
    assert again.code == 0, again.err
    assert "error     the client added at most" in again.out
    assert json.loads(call("report", folder, "--json").out)["steps"][0]["error_bounds_ms"] == step["error_bounds_ms"]


@pytest.mark.parametrize("transport", [(), ("--trust-env",)])
def test_a_run_keeps_nothing_of_its_requests(call: Call, tmp_path: Path, transport: tuple[str, ...]) -> None:
    """Looks at the server's metrics among them."""
    with SimulatorProcess(EngineConfig(step_ms=1.0, decode_ms=0.0, prefill_ms=0.0, overhead_ms=0.0)) as server:
        shape = ("--input-len", "16", "--output-len", "4", "-c", "4", "--duration", "1.2s", "--quiet")
        with cycles() as kept:
            said = call("run", server.url, *shape, *transport, "-o", tmp_path / "results")
    assert said.code in (0, 4), said.err
    assert len(list(open_run(folder_in(tmp_path / "results")).records())) > 20
    # Those of the preflight were sent before garbage was put off.
    assert max(kept.values(), default=0) <= 2, kept
