"""The page of all experiments, with their results and pictures: docs/experiments.md and docs/experiments/*.svg.

    python -m benchmarks.experiments_page [--to docs] [--seed 7] [--requests N] [--repeats N]

What stands there as a command is what is run here, in this process; `--requests` and `--repeats` shorten every run.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from loadgen.cli.main import main as loadgen
from loadgen.experiments.definition import SERVERS, Setting
from loadgen.experiments.library import READY, load_experiment, names
from loadgen.report.experiment import DEFAULT_FLAGS

HEAD = """# Experiments

One question, one changed variable, two arms measured in turn, one verdict.

```
loadgen experiment --list
loadgen experiment prefix-cache                        # both arms simulated, in virtual time: seconds
loadgen experiment prefix-cache --dry-run              # what would be run, with the flags of vLLM, SGLang and TGI
loadgen experiment prefix-cache --http                 # simulated arms over HTTP, in real time
loadgen experiment prefix-cache http://off:8000 http://on:8000
loadgen experiment prefix-cache http://localhost:8000  # pauses wherever the server's flags are to be changed
loadgen experiment ./mine.toml --repeats 10 --plot mine.svg
```

Arms are run A B B A …, each pair with lengths of its own that both arms are sent, and judged as `check --pairs` does:
Student's t over the log ratios of whole runs, Holm's rule over the figures asked for. Two settings belong to an
experiment: the effect, and the boundary where the technique costs more than it gains or gains nothing. *By hand* is the
expected effect in closed form (`loadgen/experiments/effects.py`); it leaves queues out. The exit code is 0 where all is
as expected, 1 where something is contrary, 4 where it is undecided.

Of one URL the run stops before each change of arm, says which flags the server needs, and goes on when the server has
gone and is back, or at Enter. Of real servers only those settings are run that the same servers can do; `--setting 2`
runs the boundary alone. Replicas of one arm are joined with commas.

The figures below are the simulated engine's ([`engine.md`](engine.md)): computed, not measured on hardware. They show
what each technique does and how surely an experiment finds it; how often it does is in
[`benchmarks/RESULTS.md`](../benchmarks/RESULTS.md), section *Experiments*. This page is made by
`python -m benchmarks.experiments_page`.

## One of your own

```toml
{example}```

`[workload]` is what a workload file has ([`workloads.md`](workloads.md)); `[load]` has `concurrency` or `rate`,
`requests` of a run and `pairs`; `[engine]` and each arm's `engine` take the flags of `loadgen simulate` with `_` in
place of `-`, and `tp_link_gb_s`; `replicas` are that many such engines with an equal share of the load. `flags` name
what a real server is started with: empty is its defaults, a server left out has no switch for it. `expect.metrics` are
`output_throughput` and percentiles as in `tpot_p95`, the first being the one that `direction` (`higher`, `lower`,
`same`) speaks of; `formula` is `tpot`, `ttft`, `gap`, `throughput` or `none`; `margin` is how far apart `same` may be,
0.05 if not given. Each table of `[boundary]` changes the table of that name for the second setting.

"""


def section(name: str, folder: Path, options: list[str]) -> str:
    """One experiment: run as its command says, with its picture beside."""
    found = load_experiment(name)
    picture = folder / "experiments" / f"{name}.svg"
    said = run(["experiment", name, *options, "--quiet", "--plot", str(picture)])
    shown = " ".join(["loadgen experiment", name, *options])
    lines = [f"## {name}", "", found.question, "", f"![{name}](experiments/{name}.svg)", ""]
    lines += ["```", f"$ {shown}", said.rstrip(), "```", ""]
    lines += ["| setting, arm | vLLM | SGLang | TGI |", "| --- | --- | --- | --- |"]
    lines += [row for setting in found.settings for row in flags(setting)]
    return "\n".join(lines) + "\n"


def flags(setting: Setting) -> list[str]:
    rows = []
    for letter, arm in (("A", setting.a), ("B", setting.b)):
        told = arm.flags or {}
        cells = [
            "no switch"
            if server not in told
            else f"`{told[server].strip()}`"
            if told[server].strip()
            else DEFAULT_FLAGS
            for server in SERVERS
        ]
        rows.append(f"| {setting.title}: {letter}, {arm.label} | {' | '.join(cells)} |")
    return rows


def run(arguments: list[str]) -> str:
    """What the command prints, in 120 columns. Raises SystemExit where it could not be run."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            loadgen(arguments)
    except SystemExit as ended:
        if ended.code not in (0, 1, 4):  # an answer, whatever it is
            raise
    return said.getvalue()


def page(folder: Path, options: list[str], chosen: Sequence[str] = ()) -> None:
    """All of it, or that of the experiments `chosen`."""
    (folder / "experiments").mkdir(parents=True, exist_ok=True)
    example = (READY / "prefix-cache.toml").read_text()
    parts = [HEAD.format(example=example)]
    for name in chosen or names():
        print(f"{name} …", file=sys.stderr, flush=True)
        parts.append(section(name, folder, options))
    (folder / "experiments.md").write_text("\n".join(parts).rstrip() + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path(__file__).parent.parent / "docs")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--repeats", type=int)
    given = parser.parse_args()
    options = ["--seed", str(given.seed)]
    for name in ("requests", "repeats"):
        if getattr(given, name):
            options += [f"--{name}", str(getattr(given, name))]
    page(given.to, options)


if __name__ == "__main__":
    main()
