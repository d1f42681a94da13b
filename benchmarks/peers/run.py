"""Each client under the same load on `tokend`, one at a time, in interleaved rounds; one table.

    python -m benchmarks.peers.run                       every client that is here, 16 to 1,024 streams
    python -m benchmarks.peers.run --clients loadgen,aiohttp,httpx --rounds 1 --waves 4

An error is what the client reported minus the same statistic of the same requests by the server's own stamps: a TTFT
runs from the request's arrival in the server's kernel to the first token's departure from there, as that kernel stamps
them, so that no client answers for the server's own way through it. Server and client have a core each. CPU is that of
all the client's processes between its first request and its last token, over the events sent.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from . import child
from .table import COLUMNS, section, text_table, write_section
from .tools import ENVIRONMENT, OFFLINE, ROOT, Told, Tool, tools
from .truth import Load, Tokend, Truth, build

OWN = ("loadgen", "aiohttp", "httpx")


class RunError(Exception):
    """One client's run came to nothing; its text says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where server and client run, and how far before the machine's other processes."""

    server_core: int
    client_cores: frozenset[int]
    nice: int = 0


def measure(tool: Tool, load: Load, binary: Path, place: Place) -> dict[str, float]:
    """One run of one client: a value a column of the table. Raises RunError."""
    folder = Path(tempfile.mkdtemp(prefix="peer-"))
    server = Tokend(binary, load, place.server_core, place.nice)
    try:
        output = folder / "output.txt"
        usage = child.run(
            tool.command(tool.python, load, server.url, folder),
            cores=set(place.client_cores),
            timeout_s=120 + 5 * load.seconds,
            out=output,
            folder=folder,
            env=_environment(tool),
            nice=place.nice,
        )
        truth = server.stop()
        if usage.code not in tool.codes:
            how = "ended for lasting too long" if usage.code is None else f"exit code {usage.code}"
            raise RunError(f"{how}: {_last_words(output)}")
        try:
            told = tool.read(folder)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise RunError(f"its output could not be read ({error!r}): {_last_words(output)}") from error
        return _row(load, truth, told, usage)
    finally:
        if server.process.poll() is None:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _environment(tool: Tool) -> dict[str, str]:
    """Ours without what pins libraries to this project or to a GPU's server; each tool's own binaries first."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "LD_PRELOAD", "VIRTUAL_ENV")}
    kept["PATH"] = f"{tool.python.parent}{os.pathsep}{kept.get('PATH', '')}"
    if tool.venv is None:
        kept["PYTHONPATH"] = str(ROOT)
    return {**kept, **ENVIRONMENT, **(OFFLINE if tool.offline else {})}


def _last_words(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-300:] or "no output"


def _row(load: Load, truth: Truth, told: Told, usage: child.Usage) -> dict[str, float]:
    sample = _sample(truth, told)
    if not sample.requests:
        raise RunError("the server saw no request answered in full")
    real = sample.stats()
    row = {f"{key}_error": told.stats[key] - value for key, value in real.items() if key in told.stats}
    row |= _per_event(sample, told)
    first, last = truth.span_ns
    own, busy = usage.between(first, last)
    row |= {
        "events_s": truth.rate(*_busy(sample, load.streams)),
        "cpu_us": own / truth.events * 1e6,
        "cpu_s": usage.cpu_s,
        "wall": usage.wall_s,
        "rss": usage.rss_bytes / 2**20,
        "startup": (first - usage.started_ns) / 1e9,
        "others": max(0.0, busy - own) / ((last - first) / 1e9) * 100,
        "n": float(len(sample.requests)),
        "doubted": float(told.doubted),
    }
    return row


def _sample(truth: Truth, told: Told) -> Truth:
    """The requests that the client's figures are of: by name where it names them, else the last it sent."""
    if told.requests and min(told.requests) >= 0:
        return truth.only(told.requests.keys())
    return truth.last(told.counted)


def _busy(sample: Truth, streams: int) -> tuple[int, int]:
    """From when so many requests of the sample have come, one for each stream, until the last one comes."""
    arrivals = [r.arrived_ns for r in sample.requests]
    return arrivals[min(streams, len(arrivals)) - 1], arrivals[-1]


def _per_event(sample: Truth, told: Told) -> dict[str, float]:
    """How far single gaps were off, for clients whose output has them."""
    if not told.requests:
        return {}
    errors = []
    for real in sample.requests:
        found = told.requests.get(real.rid) or told.requests.get(-real.begins)
        if found is not None and len(found[1]) == len(real.tokens_ns) - 1:
            errors.append(np.abs(found[1] - real.gaps_ms))
    if not errors:
        return {}
    p50, p99 = np.percentile(np.concatenate(errors), [50, 99])
    return {"gap_p50": float(p50), "gap_p99": float(p99)}


def version(tool: Tool) -> str:
    if tool.venv is None:
        return importlib.metadata.version(tool.package)
    ask = f"import importlib.metadata as m; print(m.version({tool.package!r}))"
    found = subprocess.run([str(tool.python), "-c", ask], capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown version"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    wanted = [t for t in tools() if not options.clients or t.name.replace(" ", "-") in options.clients.split(",")]
    if options.own:
        wanted = [t for t in wanted if t.name in OWN]
    cores = sorted(os.sched_getaffinity(0))
    place = Place(cores[0], frozenset(cores[1 : 1 + options.client_cores] or cores), options.nice)
    os.sched_setaffinity(0, {place.server_core})  # the sampler stays off the client's core
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))

    skipped: dict[str, str] = {}
    for tool in list(wanted):
        why = tool.absent()
        if why:
            skipped[tool.name] = why
            wanted.remove(tool)
            print(f"{tool.name}: skipped, {why}", file=sys.stderr)
    rows: dict[str, dict[str, list[dict[str, float]]]] = {}
    started = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    with tempfile.TemporaryDirectory(prefix="tokend-") as folder:
        binary = build(Path(folder))
        loads = _loads(options)
        for round_ in range(options.rounds):
            for load in loads:
                order = wanted if round_ % 2 == 0 else wanted[::-1]
                for tool in order:
                    _one(tool, load, binary, place, rows, skipped, f"round {round_ + 1}")
    medians = {
        load.name: {t.name: _median(rows[load.name][t.name]) for t in wanted if rows.get(load.name, {}).get(t.name)}
        for load in loads
    }
    print(text_table(medians, skipped))
    if options.write:
        command = shlex.join(["python", "-m", "benchmarks.peers.run", *(arguments or sys.argv[1:])])
        facts = {
            "command": command,
            "date": started,
            "host": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}, "
            f"Python {platform.python_version()}",
            "versions": ", ".join(f"{t.name} {version(t)}" for t in wanted),
        }
        write_section(options.write, section(medians, skipped, loads, options.rounds, facts))
    return 0


def _one(
    tool: Tool,
    load: Load,
    binary: Path,
    place: Place,
    rows: dict[str, dict[str, list[dict[str, float]]]],
    skipped: dict[str, str],
    label: str,
) -> None:
    try:
        row = measure(tool, load, binary, place)
    except RunError as error:
        skipped[f"{tool.name} at {load.name}"] = str(error)
        print(f"{label}, {load.name}: {tool.name}: {error!s}", file=sys.stderr)
        return
    rows.setdefault(load.name, {}).setdefault(tool.name, []).append(row)
    shown = "  ".join(f"{c.key} {row[c.key]:.3g}" for c in COLUMNS if c.key in row)
    print(f"{label}, {load.name}: {tool.name}: {shown}", file=sys.stderr)


def _median(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    found = {key: float(np.median([r[key] for r in runs if key in r])) for key in runs[0]}
    return found | {"runs": float(len(runs)), "doubted": sum(r["doubted"] for r in runs)}


def _loads(options: argparse.Namespace) -> list[Load]:
    found = []
    for streams in options.streams:
        itl = options.itl_ms or (10.0 if streams <= 64 else 20.0 if streams <= 256 else 40.0)
        waves = options.waves if streams <= 256 else -(-options.waves // 2)
        smooth = Load(streams, streams * waves, options.tokens, options.ttft_ms, itl, lockstep=False)
        found += [smooth] if options.smooth_only else [smooth, replace(smooth, lockstep=True)]
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--waves", type=int, default=6, help="requests a stream; default 6, half above 256 streams")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--ttft-ms", type=float, default=50.0)
    parser.add_argument("--itl-ms", type=float, help="default 10 to 64 streams, 20 to 256, 40 above")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", help="comma-separated names, a space written as a dash; default all")
    parser.add_argument("--own", action="store_true", help="ours and the two reference clients only")
    parser.add_argument("--smooth-only", action="store_true")
    parser.add_argument("--client-cores", type=int, default=1)
    parser.add_argument("--nice", type=int, default=0, help="of server and client; below 0 (root) on a busy machine")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table into its section of this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
