"""`loadgen simulate`: the simulated server on a port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import UsageError
from .sections import SectionedCommand, section
from .truth import Rates, print_truth
from .values import Levels, Whole

if TYPE_CHECKING:
    from ..simulator.engine import EngineConfig

_EPILOG = """\b
Examples:
  loadgen simulate
  loadgen simulate --preset h100-llama-3.1-8b --speculate 3
  loadgen simulate --model qwen3-32b --gpu h200 --tp 2 --weight-bits 8
  loadgen simulate --truth --levels 1,4,16,64 --slo ttft_p95=500ms --preset h100-llama-3.1-8b --json
  loadgen simulate --like results/RUN --levels 48,96    # fitted to a measured run: what loads not measured would give
  loadgen simulate --port 9000 --max-batch 64 --step-ms 20 --noise-sigma 0
  curl -sN localhost:8000/v1/completions -d '{"prompt":"Once","max_tokens":8,"stream":true}' | grep -c '^data: {'
  loadgen sweep http://127.0.0.1:8000 --json | jq .
"""


def _list(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from ..simulator.presets import PRESETS

    for name, config in PRESETS.items():
        machine = config.machine
        assert machine is not None
        on, kv = machine.on, config.blocks * config.block_tokens
        click.echo(
            f"{name:26} {on.gpus} x {on.gpu.name:10} weights {machine.model.quantisation.name:8} KV {kv:>9,} tokens,"
            f" context {config.context_length:,}"
        )
    ctx.exit()


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
    _number("--context-us", text="Added for each token of KV that decoding reads, in µs.  [default: 0]"),
    _number("--prefill-ms", text="Added for each prompt token.  [default: 0.085]"),
)
_MACHINE = section(
    "Time of a step, on a machine",
    click.option(
        "--preset",
        metavar="NAME",
        help="A model on accelerators, as vLLM serves it: a step lasts as long as its FLOPs or its bytes take, "
        "whichever is more. Every other option then changes the preset.",
    ),
    click.option(
        "--list-presets", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="The presets there are."
    ),
    click.option("--model", metavar="NAME", help="A model of `loadgen plan --list`, in place of a preset."),
    click.option("--gpu", metavar="NAME", help="An accelerator of that list.  [default: the preset's, else h100]"),
    _number("--tp", "--tensor-parallel", kind=int, text="Accelerators that share a layer, at two all-reduces each."),
    _number("--weight-bits", text="Bits of a weight: 16, 8, 4. Fewer are read faster, and leave more memory."),
    _number("--kv-bits", text="Bits of a KV element: half of them, and twice the tokens fit."),
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


_TRUTH = section(
    "Truth, in place of a server",
    click.option("--truth", is_flag=True, help="Print this engine's true answers, by long runs in virtual time."),
    click.option(
        "--like",
        metavar="RUN",
        help="Fit the step to a measured run: its error at loads held out, and predictions for --levels.",
    ),
    click.option(
        "--levels", type=Levels(), metavar="N,N,…", help="Loads in flight.  [default: doubling, past the batch]"
    ),
    click.option("--rates", type=Rates(), metavar="X,X,…", help="Requests a second instead, as Poisson arrivals."),
    click.option(
        "--slo", multiple=True, metavar="OBJECTIVE", help="Also the load at which it falls through its level."
    ),
    click.option("--input-len", metavar="N|A-B", help="Prompt tokens, or a range.  [default: that of `run`, 512]"),
    click.option(
        "--output-len", metavar="N|A-B", help="Tokens to generate, or a range.  [default: that of `run`, 128]"
    ),
    click.option("--requests", type=Whole(1), metavar="N", help="Measured in each replication.  [default: 4,000]"),
    click.option("--replications", type=Whole(2), metavar="N", help="Runs with seeds of their own.  [default: eight]"),
    click.option("--json", "as_json", is_flag=True, help="As JSON."),
)
_TRUTH_ONLY = ("levels", "rates", "slo", "input_len", "output_len", "requests", "replications", "as_json")


@click.command(epilog=_EPILOG, cls=SectionedCommand)
@_SERVER
@_MACHINE
@_TIME
@_SCHEDULER
@_MEMORY
@_FURTHER
@_VARIATION
@_TRUTH
def simulate(
    host: str, port: int, api_key: str | None, timeout_keep_alive: int, truth: bool, like: str | None, **given: Any
) -> None:
    """Serve a simulated model whose capacity is known.

    A continuous-batching engine in virtual steps behind real HTTP: chat and completions, streamed or not, /v1/models,
    /health, /version and /metrics. TTFT queues and throughput levels off as on a real server. docs/engine.md has the
    formula of each mechanism.
    """
    asked = {name: given.pop(name) for name in _TRUTH_ONLY}
    named = {name: given.pop(name) for name in ("preset", "model", "gpu")}
    if like is not None:
        from .like import print_like

        if truth:
            raise UsageError("--like and --truth exclude each other", "leave one of the two out")
        print_like(like, named, {name: value for name, value in given.items() if value is not None}, asked)
        return
    config = _config(named, {name: value for name, value in given.items() if value is not None})
    if truth:
        print_truth(config, asked)
        return
    if wrong := [name for name in _TRUTH_ONLY if asked[name]]:
        option = wrong[0].removeprefix("as_").replace("_", "-")
        raise UsageError(f"--{option} goes with --truth only", f"add --truth, or leave --{option} out")
    _serve(config, host, port, api_key, timeout_keep_alive)


def _serve(config: EngineConfig, host: str, port: int, api_key: str | None, timeout_keep_alive: int) -> None:
    from ..simulator.oracle import quick_capacity
    from ..simulator.server import Simulator, bind, make_server

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


def _config(named: dict[str, str | None], given: dict[str, Any]) -> EngineConfig:
    """The engine that was named, or else the one without a machine, with what was given in place of what it says."""
    from ..simulator.configured import configured

    return configured({**named, **given})
