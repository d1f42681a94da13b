"""Causes planted in a real vLLM, and what `diagnose` says of each: the server is started anew with the flags of each.

    python -m benchmarks.real_diagnose "tools/real-vllm start DIR" [--only admission,…] [--requests 120]

The command is one that, with a port and flags behind it, starts a server on the CPU and prints its process id once it
answers. The right cause must come first, and a healthy server get no finding of an error. The model is tiny and the
CPU may be shared with the client, which is then said to be the limit: give each a core of its own (`taskset -c 0` for
this, and `taskset -c 1` within the command).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.real_experiments import LOADGEN, OFF, PORTS, server

LENGTHS = '{{ kind = "uniform", low = {}, high = {} }}'


class Case(NamedTuple):
    flags: str
    workload: str
    levels: str
    right: tuple[str, ...]  # causes that are right first; none: nothing may be an error


def lengths(inputs: tuple[int, int], outputs: tuple[int, int]) -> str:
    return f"lengths = {{ input = {LENGTHS.format(*inputs)}, output = {LENGTHS.format(*outputs)} }}"


MIXED = (
    'lengths = { input = { kind = "mixture", weights = [90, 10], parts = [{ kind = "uniform", low = 32, high = 96 },'
    ' { kind = "uniform", low = 1500, high = 1800 }] }, output = { kind = "uniform", low = 24, high = 48 } }'
)
SHARED = f"{lengths((1100, 1300), (16, 32))}\nsharing = {{ prefix_tokens = 1024, groups = 4 }}"
DETAILS = "--enable-prompt-tokens-details"
LIMITS = ("batch_limit", "admission_limit")
CASES = {
    "admission": Case(
        f"{OFF} --max-num-seqs 4", lengths((32, 96), (48, 96)), "1,4,16,32", ("batch_limit", "admission_limit")
    ),
    "kv": Case(f"{OFF} --num-gpu-blocks-override 17", lengths((300, 500), (60, 120)), "1,8", ("kv_exhausted",)),
    "long-prompts": Case(f"{OFF} --max-num-batched-tokens 2048", MIXED, "1,4,8", ("long_prompts",)),
    "prefix-on": Case(f"--enable-prefix-caching {DETAILS}", SHARED, "1,4", ("prefix_cache",)),
    "prefix-off": Case(f"{OFF} {DETAILS}", SHARED, "1,4", ("prefill_bound",)),
    "healthy": Case(OFF, lengths((32, 96), (24, 48)), "1,2", ()),
}


def measured(name: str, start: str, requests: int, runs: Path) -> dict[str, Any]:
    case = CASES[name]
    definition = runs / f"{name}.toml"
    definition.write_text(f'name = "{name}"\n{case.workload}\n')
    with server(start, PORTS[0], case.flags) as url:
        how = ["--levels", case.levels, "--requests", str(requests), "--max-error-rate", "1", "--quiet"]
        subprocess.run([*LOADGEN, "sweep", url, "--workload", str(definition), *how, "-o", str(runs / name)])
    (run,) = (runs / name).iterdir()
    said = subprocess.run([*LOADGEN, "diagnose", str(run), "--json"], stdout=subprocess.PIPE, text=True)
    return dict(json.loads(said.stdout))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("start", help="a command that takes PORT and flags, and prints the server's process id")
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--runs", type=Path)
    flags = parser.parse_args()
    runs = flags.runs or Path(tempfile.mkdtemp(prefix="diagnoses-"))
    runs.mkdir(parents=True, exist_ok=True)
    print("| planted | first | right | then |\n| --- | --- | --- | --- |", flush=True)
    for name in flags.only.split(","):
        found = measured(name, flags.start, flags.requests, runs)["findings"]
        causes = [f"{one['cause']} ({one['level']}, {one['confidence']})" for one in found]
        right = CASES[name].right
        good = found and found[0]["cause"] in right if right else all(one["level"] != "error" for one in found)
        first, rest = (causes[0], ", ".join(causes[1:])) if causes else ("nothing", "")
        print(f"| {name} | {first} | {'yes' if good else 'no'} | {rest} |", flush=True)


if __name__ == "__main__":
    main()
