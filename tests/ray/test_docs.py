"""The documentation's commands of a cluster, run on a real one: as they stand, but for addresses and lengths."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import folder_in, manifest_of, run, serve
from tests.ray.conftest import LocalCluster
from tests.test_docs import COMMANDS, COMMENT, split

OF_A_CLUSTER = sorted({command for _, command in COMMANDS if "--ray" in command})


@pytest.mark.parametrize("command", OF_A_CLUSTER)
def test_it_runs(command: str, cluster: LocalCluster, tmp_path: Path) -> None:
    with ThreadedServer(serve(20.0)) as server:
        ours = re.sub(r"http://\S+", server.url, COMMENT.sub("", command))
        ours = re.sub(r"--ray \S+", f"--ray {cluster.address}", ours).replace("--workers 8", "--workers 6")
        words = [*split(ours), "--input-len", "16", "--output-len", "4", "-o", str(tmp_path / "out")]
        if "sweep" in words:
            words += ["--start", "6", "--max-level", "12", "--requests", "24"]
        said = run(*words, timeout_s=120.0)
    assert said.code in (0, 1, 4) and "Traceback" not in said.err, said.err
    if "--dry-run" in words:
        assert said.out.count("node_id") == 6 and not server.requests
    else:
        assert manifest_of(folder_in(tmp_path / "out"))["workers"]["placed"]


def test_there_are_some() -> None:
    assert len(OF_A_CLUSTER) >= 2
