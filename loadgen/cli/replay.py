"""`loadgen replay`: send what a run sent, again, to another server."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import LogError, UsageError
from .options import shared
from .sections import SectionedCommand, section
from .tracing import replay as set_replay
from .values import Number, Whole

if TYPE_CHECKING:
    from ..workload.traces.origin import Origin
    from ..workload.traces.replayed import Replayed

EPILOG = """\
\b
Examples:
  loadgen replay results/RUN http://gpu2:8000
  loadgen replay results/RUN http://gpu2:8000 --time-scale 2 --slo ttft_p95=500ms
  loadgen replay results/RUN http://gpu2:8000 --same-text
  loadgen replay results/RUN http://gpu2:8000 --prompts batch.jsonl
"""


@click.command(cls=SectionedCommand, epilog=EPILOG)
@click.argument("source", metavar="RUN", type=click.Path())
@shared(
    click.option(
        "-c",
        "--max-in-flight",
        "--max-concurrency",
        "concurrency",
        type=Whole(1),
        metavar="N",
        help="The most requests in flight.  [default: no limit]",
    ),
    own=section(
        "Replay",
        click.option(
            "--time-scale", type=Number(above=0), metavar="X", help="X times as fast.  [default: 1, as it was]"
        ),
    ),
)
def replay(source: str, concurrency: int | None, time_scale: float | None, **flags: Any) -> int:
    """Send the requests of a recorded run again: their lengths, models and order, at the times they were due.

    Of a run with a number in flight, that is when they were sent. The phases of that run are not those of this one,
    which is measured from its first request to its last. Prompts are of the same lengths with fresh text; with
    --same-text they are those of the run, where its seed and the server's tokenizer make them; requests that came from
    a file need it (--prompts).
    """
    from ..search.sweep import SweepPlan
    from ..workload.traces.replayed import Choice
    from .measure import measure

    for name in ("input_len", "output_len", "workload", "token_ids"):
        if flags[name]:
            raise UsageError(f"--{name.replace('_', '-')} would change what the run sent", "leave it out")
    requests, manifest = _run(source)
    origin = _origin(manifest, flags)
    names, sent = _sent(requests)
    told = {
        "name": requests.parent.name,
        "requests_sha256": _sha256(requests),
        "started_epoch_ns": (manifest or {}).get("started_epoch_ns"),
    }
    again = _trace(manifest)
    if again is not None:  # it is sent itself, as far as the run came
        origin = again.origin
        scale = again.choice.scale * (time_scale or 1.0)
        choice = replace(again.choice, scale=scale, run=told, seconds=None, requests=None, looked_at=None)
        flags["requests"] = min(sent, flags["requests"] or sent)
        flags["seed"] = choice.seed if flags["seed"] is None else flags["seed"]
    else:
        choice = Choice(
            str(requests),
            scale=time_scale or 1.0,
            as_recorded=True,
            models=len(names) > 1,
            max_total=flags["max_total_len"],
            run={**told, "shared": _lost(manifest, origin)},
        )
    if choice.models and flags["model"]:
        raise UsageError(f"the run asked for {len(names)} models by name, which --model would replace", "leave it out")
    flags["prompts"] = None
    flags["same_text"] = False
    load = set_replay(flags, choice, concurrency, origin)
    return measure("run", SweepPlan(has_slo=bool(flags["slo"])), {**flags, "open_loop": load})


def _run(source: str) -> tuple[Path, dict[str, Any] | None]:
    """The requests of a run folder, and its manifest. Raises LogError or UsageError."""
    from ..log.store import REQUESTS, open_run

    run = open_run(source)
    path = Path(source)
    requests = path / REQUESTS if path.is_dir() else path
    if run.foreign is not None:
        raise UsageError(
            f"{source} is a log of {run.foreign.tool}",
            f"loadgen export {source} -o requests.csv, then loadgen run URL --trace requests.csv",
        )
    if run.is_csv:
        raise UsageError(f"{source} is a CSV", "send it with loadgen run URL --trace FILE")
    if not requests.is_file():
        raise UsageError(f"{source} has no {REQUESTS}: the run was ended before it was gathered", "give another run")
    if (run.manifest or {}).get("resumed"):
        raise UsageError(
            f"the run in {source} was interrupted and resumed: a replay would pause as it did, and send twice what it"
            " measured again",
            "give a run that was not interrupted",
        )
    return requests, run.manifest


def _origin(manifest: dict[str, Any] | None, flags: dict[str, Any]) -> Origin | None:
    """Where its requests come from, if they are not to be made anew. Raises UsageError."""
    from ..workload.traces.origin import run_origin

    found: dict[str, Any] = dict((manifest or {}).get("workload") or {})
    kind, file = found.get("kind"), flags["prompts"]
    if kind == "prompts" and file is None:
        raise UsageError(
            f"the run sent the prompts of {found.get('source')}, which its log does not hold",
            "give that file with --prompts",
        )
    if file is not None and kind != "prompts":
        raise UsageError("the run did not send the prompts of a file", "leave --prompts out")
    if file is None and flags["same_text"] and kind not in ("shape", "definition"):
        raise UsageError("only the text of a run whose text was made can be made again", "leave --same-text out")
    try:
        origin = run_origin(found, file, same_text=flags["same_text"])
        if origin is not None and file is None:
            origin.opened()
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LogError(
            f"the run's manifest does not say how its text was made: {error!r}", "give another run"
        ) from None
    if origin is not None and file is None and flags["seed"] is None:
        flags["seed"] = origin.seed
    return origin


def _lost(manifest: dict[str, Any] | None, origin: Origin | None) -> bool:
    """Had its prompts text in common that those of the replay have not?"""
    workload: dict[str, Any] = dict((manifest or {}).get("workload") or {})
    trace: dict[str, Any] = dict(workload.get("trace") or {})
    found = [workload.get("sharing"), workload.get("sessions"), trace.get("shared"), trace.get("block_tokens")]
    return origin is None and any(map(bool, found))


def _trace(manifest: dict[str, Any] | None) -> Replayed | None:
    """The trace whose requests the run sent, where they have text in common and it is still to be had."""
    from ..workload.traces.looking import replayed_of

    try:
        found = replayed_of((manifest or {})["workload"]["made"]["trace"], None)
    except (UsageError, KeyError, TypeError, ValueError, AttributeError):
        return None
    origin = found.origin
    kept = origin if origin is None or origin.file is not None else replace(origin, nonce=None)
    return replace(found, origin=kept)


def _sent(requests: Path) -> tuple[tuple[str, ...], int]:
    """The models that the run asked for by name, and how many requests it sent."""
    from collections import Counter

    from ..workload.traces import open_trace

    rows = [row.model for row in open_trace(requests).rows(Counter())]
    return tuple(dict.fromkeys(model for model in rows if model is not None)), len(rows)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
