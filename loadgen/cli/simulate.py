"""`loadgen simulate`: the simulated server on a port."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .sections import SectionedCommand, section
from .values import Whole

if TYPE_CHECKING:
    from ..simulator.engine import EngineConfig

_EPILOG = """\b
Examples:
  loadgen simulate
  loadgen simulate --preset h100-llama-3.1-8b --weight-bytes 1 --speculate 3
  loadgen simulate --port 9000 --max-batch 64 --step-ms 20 --noise-sigma 0
  curl -sN localhost:8000/v1/completions -d '{"prompt":"Once","max_tokens":8,"stream":true}' | grep -c '^data: {'
  loadgen sweep http://127.0.0.1:8000 --json | jq .
"""
_STEP_TIMES = ("step_ms", "decode_ms", "prefill_ms")


class _Presets(click.ParamType[str]):
    """The name of a preset; its mistakes name those there are."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from ..simulator.presets import PRESETS

        if value not in PRESETS:
            self.fail(f"{value!r} is none of {', '.join(PRESETS)}", param, ctx)
        return str(value)


def _number(*names: str, text: str, kind: type = float) -> Any:
    return click.option(*names, type=kind, metavar="N", help=text)


_SERVER = section(
    "Server",
    click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    click.option(
        "--port", type=Whole(0, 65535), metavar="N", default=8000, show_default=True, help="0 takes a free one."
    ),
    click.option("--api-key", default=None, help="Ask for this key under /v1; without it, none is asked for."),
    click.option("--timeout-keep-alive", type=Whole(1), metavar="N", default=5, show_default=True, help="Seconds."),
)
_TIME = section(
    "Time of a step, without a machine",
    _number("--step-ms", text="Of every step.  [default: 12]"),
    _number("--decode-ms", text="Added for each sequence decoding in a step.  [default: 0.2]"),
    _number("--prefill-ms", text="Added for each prompt token.  [default: 0.085]"),
)
_MACHINE = section(
    "Time of a step, on a machine",
    click.option(
        "--preset",
        type=_Presets(),
        metavar="NAME",
        help="A model on an accelerator: a step lasts as long as its FLOPs or its bytes take, whichever is more. "
        "Every other option then changes the preset. A wrong name lists them.",
    ),
    _number("--tensor-parallel", kind=int, text="Accelerators that share each layer, at two all-reduces a layer."),
    _number("--weight-bytes", text="Bytes a parameter: 2 for bf16, 1 for fp8 or int8, 0.5 for 4 bits."),
    _number("--kv-bytes", text="Bytes a KV element: half of them, and twice the tokens fit."),
    click.option(
        "--tiled-attention/--naive-attention",
        default=None,
        help="Attention that keeps its scores on chip, or one that writes and reads the whole score matrix.",
    ),
)
_SCHEDULER = section(
    "Scheduler",
    click.option(
        "--batching",
        type=click.Choice(["continuous", "static"]),
        help="Refill a place as it falls free, or only when the whole batch has ended.  [default: continuous]",
    ),
    _number("--max-batch", "--max-num-seqs", kind=int, text="Sequences running at once.  [default: 16]"),
    click.option(
        "--chunked-prefill/--whole-prefill",
        default=None,
        help="Prefill long prompts in pieces beside decoding, or whole while decoding waits.  [default: chunked]",
    ),
    _number("--max-prefill-tokens", kind=int, text="Prompt tokens a step.  [default: 2048]"),
    _number(
        "--max-batched-tokens",
        "--max-num-batched-tokens",
        kind=int,
        text="Prompt and decoded tokens a step; decoding goes first.  [default: 0, no limit]",
    ),
    _number("--context-length", kind=int, text="Prompt and output tokens together.  [default: 32768]"),
    _number(
        "--overhead-ms",
        text="From a request's arrival until the scheduler sees it; costs no engine time.  [default: 22]",
    ),
)
_MEMORY = section(
    "KV memory",
    click.option(
        "--kv",
        type=click.Choice(["paged", "contiguous"]),
        help="Give blocks as tokens come, and preempt the last comer when they run out; or reserve the context length "
        "for each.  [default: paged]",
    ),
    _number("--kv-blocks", kind=int, text="Blocks there are.  [default: what the machine holds; else no limit]"),
    _number("--block-tokens", kind=int, text="Tokens a block.  [default: 16]"),
    click.option(
        "--prefix-cache/--no-prefix-cache",
        default=None,
        help="Keep the blocks of prompts by their text, the least recently used going first.  [default: off]",
    ),
)
_FURTHER = section(
    "Speculation and separate pools",
    _number("--speculate", kind=int, text="Tokens drafted for each sequence in a step.  [default: 0]"),
    _number("--acceptance", text="Chance that a drafted token is accepted.  [default: 0.7]"),
    _number("--draft-ms", text="Time of a step for each drafted position.  [default: 0]"),
    click.option(
        "--disaggregated/--one-pool",
        default=None,
        help="Prefill and decode in a pool each; every prompt's KV crosses a link.  [default: one pool]",
    ),
    _number("--link-gb-s", text="Bandwidth of that link.  [default: 50]"),
    _number("--link-latency-ms", text="Latency of that link.  [default: 1]"),
)
_VARIATION = section(
    "Variation",
    _number("--seed", kind=int, text="Fixes the noise and where answers stop.  [default: 0]"),
    _number("--noise-sigma", text="Lognormal noise on each step's duration.  [default: 0.03]"),
    _number("--drift", text="Amplitude of a slow sine on the duration, as a share.  [default: 0]"),
    _number("--drift-period-s", text="Period of that sine.  [default: 60]"),
    _number("--stall-every-s", text="Mean time between stalls of a busy engine.  [default: 0, none]"),
    _number("--stall-ms", text="Length of a stall.  [default: 200]"),
)


@click.command(epilog=_EPILOG, cls=SectionedCommand)
@_SERVER
@_MACHINE
@_TIME
@_SCHEDULER
@_MEMORY
@_FURTHER
@_VARIATION
def simulate(
    host: str, port: int, api_key: str | None, timeout_keep_alive: int, preset: str | None, **engine: Any
) -> None:
    """Serve a simulated model whose capacity is known.

    A continuous-batching engine in virtual steps behind real HTTP: chat and completions, streamed or not, /v1/models,
    /health, /version and /metrics. TTFT queues and throughput levels off as on a real server.
    """
    from ..simulator.oracle import quick_capacity
    from ..simulator.server import Simulator, bind, make_server

    config = _config(preset, {name: value for name, value in engine.items() if value is not None})
    sock = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{sock.getsockname()[1]}"
    simulator = Simulator(config, api_key=api_key or None)
    server = make_server(simulator, timeout_keep_alive=timeout_keep_alive)
    if simulator.context_length >= 640:
        about = "" if config.simple else "about "  # of one short run, where there is no closed form
        carries = f"carries {about}{quick_capacity(config, 512, 128):,.0f} output tokens/s at 512 tokens in, 128 out"
        trial = f"loadgen sweep {url} --input-len 512 --output-len 128"
    else:
        carries, trial = f"context of {simulator.context_length} tokens", f"loadgen sweep {url}"
    click.echo(f"simulator at {url} · {carries} · try: {trial}", err=True)
    server.run(sockets=[sock])


def _config(preset: str | None, given: dict[str, Any]) -> EngineConfig:
    """The preset, or else the engine without a machine, with what was given in place of what it says."""
    from ..simulator.engine import EngineConfig, Machine
    from ..simulator.presets import PRESETS

    config = PRESETS[preset] if preset else EngineConfig()
    names = {field.name for field in dataclasses.fields(Machine)}
    machine = {name: given.pop(name) for name in names & given.keys()}
    if config.machine is None and machine:
        option = sorted(machine)[0].replace("_", "-")
        raise UsageError(f"{option} is of a machine, and none was named", "give --preset")
    if config.machine is not None:
        if wrong := [name for name in _STEP_TIMES if name in given]:
            option = wrong[0].replace("_", "-")
            raise UsageError(f"--{option} is of an engine without a machine", f"leave out --{option} or --preset")
        given["machine"] = dataclasses.replace(config.machine, **machine)
    return dataclasses.replace(config, **given)
