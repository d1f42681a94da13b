"""A Ray cluster of three nodes on this machine, in a process of its own: `python -m tests.ray.cluster`.

It prints one line of JSON once it stands, does what it is told by lines (`kill NODE`), and ends, with all of its
processes, when its standard input does.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

CPUS = (2, 2, 2)
MEMORY = 80 << 20  # of an object store: the least that Ray takes


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints does not end up between the lines
    cluster: Any = importlib.import_module("ray.cluster_utils").Cluster()
    try:
        nodes = [cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY, include_dashboard=False) for cpus in CPUS]
        told = {"address": cluster.address, "nodes": [node.node_id for node in nodes]}
        print(json.dumps({**told, "session": nodes[0].get_session_dir_path()}), file=out, flush=True)
        for line in sys.stdin:
            word, _, number = line.strip().partition(" ")
            if word == "kill":
                cluster.remove_node(nodes[int(number)], allow_graceful=False)
                nodes[int(number)] = cluster.add_node(
                    num_cpus=CPUS[int(number)], object_store_memory=MEMORY, include_dashboard=False
                )
                print(json.dumps({"nodes": [node.node_id for node in nodes]}), file=out, flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
