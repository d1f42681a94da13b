"""`loadgen simulate`: the simulated server on a port."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from ..simulator.engine import EngineConfig
from .values import Whole

_EPILOG = """\b
Examples:
  loadgen simulate
  loadgen simulate --port 9000 --max-batch 64 --step-ms 20 --noise-sigma 0
  curl -sN localhost:8000/v1/completions -d '{"prompt":"Once","max_tokens":8,"stream":true}' | grep -c '^data: {'
  loadgen sweep http://127.0.0.1:8000 --json | jq .
"""

_ENGINE_HELP = {
    "step_ms": "Time of every step.",
    "decode_ms": "Added for each sequence decoding in a step.",
    "prefill_ms": "Added for each prompt token.",
    "overhead_ms": "From a request's arrival until the scheduler sees it; costs no engine time.",
    "max_batch": "Sequences running at once.",
    "max_prefill_tokens": "Prompt tokens a step; a longer prompt takes several.",
    "noise_sigma": "Lognormal noise on each step's duration.",
    "seed": "Fixes the noise and where answers stop.",
    "context_length": "Prompt and output tokens together.",
}


def _engine_options(command: Any) -> Any:
    for field in reversed(dataclasses.fields(EngineConfig)):
        name = "--" + field.name.replace("_", "-")
        option = click.option(
            name, type=type(field.default), default=field.default, show_default=True, help=_ENGINE_HELP[field.name]
        )
        command = option(command)
    return command


@click.command(epilog=_EPILOG)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=Whole(0, 65535), metavar="N", default=8000, show_default=True, help="0 takes a free one.")
@_engine_options
@click.option("--api-key", default=None, help="Ask for this key under /v1; without it, none is asked for.")
@click.option("--timeout-keep-alive", type=Whole(1), metavar="N", default=5, show_default=True, help="Seconds.")
def simulate(host: str, port: int, api_key: str | None, timeout_keep_alive: int, **engine: Any) -> None:
    """Serve a simulated model whose capacity is known.

    A continuous-batching engine in virtual steps behind real HTTP: chat and completions, streamed or not, /v1/models,
    /health, /version and /metrics. TTFT queues and throughput levels off as on a real server.
    """
    from ..simulator.capacity import capacity
    from ..simulator.server import Simulator, bind, make_server

    config = EngineConfig(**engine)
    sock = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    url = f"http://{shown}:{sock.getsockname()[1]}"
    server = make_server(Simulator(config, api_key=api_key or None), timeout_keep_alive=timeout_keep_alive)
    click.echo(
        f"simulator at {url} · carries {capacity(config, 512, 128):,.0f} output tokens/s at 512 tokens in, 128 out · "
        f"try: loadgen sweep {url} --input-len 512 --output-len 128",
        err=True,
    )
    server.run(sockets=[sock])
