"""`loadgen plan`: does a model fit, how much does it hold, and what would the hardware allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import Exit, UsageError
from .sections import SectionedCommand, section
from .streams import reader_may_go
from .values import Count, Number, Rate, Whole, screen_width

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..analysis.planning import Lengths
    from ..hardware.deployment import Deployment
    from ..hardware.model import Model

EPILOG = """\
\b
Examples:
  loadgen plan --model llama-3.1-70b --gpu h100 --tp 4 --input-len 1000 --output-len 200
  loadgen plan --config ./config.json --gpu l4 -w sharegpt-first-turn
  loadgen plan --params 70e9 --weight-bits 4 --layers 80 --heads 64 --kv-heads 8 --head-dim 128 --gpu a100
  loadgen plan --model deepseek-v3 --gpu h200 --tp 8 --json | jq .kv_cache
  loadgen plan --model qwen3-8b --gpu l40s --plot memory.svg
  loadgen plan --run results/RUN --model llama-3.1-8b --gpu h100 --rps 40 --price 2.5
  loadgen plan --list
"""


MOST_GIB = 1e6
DRAWS = 100_000  # of the lengths, for their means and percentiles


class Positive(click.ParamType[float]):
    """A number above zero, also as 70e9 or 70B."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        scale = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}.get(text[-1:].lower(), 1.0)
        try:
            number = float(text[:-1] if scale > 1 else text) * scale
        except ValueError:
            number = 0.0
        if not 0 < number < 1e18:
            hint = ": write it with a point, and without commas" if "," in text else ""
            self.fail(f"{value!r} is not a number above zero{hint}", param, ctx)
        return number


@click.command(cls=SectionedCommand, epilog=EPILOG)
@section(
    "Model",
    click.option("--model", metavar="NAME", help="One of the table (--list)."),
    click.option("--config", "config_file", metavar="FILE", help="A local Hugging Face config.json."),
    click.option("--params", type=Positive(), metavar="N", help="Parameters in all, as in 70e9 or 70B."),
    click.option("--active-params", type=Positive(), metavar="N", help="Those that one token uses.  [default: all]"),
    click.option("--weight-bits", type=Positive(), metavar="N", help="Bits of a weight: 16, 8, 4."),
    click.option(
        "--group-size", type=Whole(0), metavar="N", help="Weights that share a scale and zero point.  [default: none]"
    ),
    click.option("--layers", type=Whole(1), metavar="N", help="With --params: layers that attend."),
    click.option(
        "--hidden", type=Whole(1), metavar="N", help="With --params: hidden size.  [default: heads × head dimension]"
    ),
    click.option("--heads", type=Whole(1), metavar="N", help="With --params: attention heads."),
    click.option(
        "--kv-heads", type=Whole(1), metavar="N", help="With --params: heads of keys and values.  [default: --heads]"
    ),
    click.option("--head-dim", type=Whole(1), metavar="N", help="With --params: dimension of a head."),
)
@section(
    "Hardware",
    click.option("--gpu", metavar="NAME", help="One of the table (--list).  [default: h100]"),
    click.option("--memory", type=Positive(), metavar="GIB", help="Memory of a GPU instead."),
    click.option("--bandwidth", type=Positive(), metavar="TB/S", help="Memory bandwidth instead."),
    click.option("--peak", type=Positive(), metavar="TFLOPS", help="Peak of dense matrix products instead."),
    click.option(
        "--tp",
        type=Whole(1, 1024),
        metavar="N",
        default=1,
        help="Tensor parallel: GPUs that share each layer.  [default: 1]",
    ),
    click.option("--pp", type=Whole(1, 1024), metavar="N", default=1, help="Pipeline stages.  [default: 1]"),
    click.option(
        "--ep",
        type=Whole(1, 1024),
        metavar="N",
        default=1,
        help="Groups that share the experts and hold attention whole.  [default: 1]",
    ),
)
@section(
    "Memory",
    click.option(
        "--kv-bits", type=Positive(), metavar="N", default=16, help="Bits of an element of the KV cache.  [default: 16]"
    ),
    click.option("--block", type=Whole(1), metavar="N", default=16, help="Tokens of a KV block.  [default: 16]"),
    click.option(
        "--utilisation",
        type=Number(0, 1, above=0),
        metavar="SHARE",
        default=0.9,
        help="Of the memory used at all.  [default: 0.9]",
    ),
    click.option(
        "--runtime",
        type=Number(0, MOST_GIB),
        metavar="GIB",
        default=1.0,
        help="For context, graphs and libraries.  [default: 1]",
    ),
    click.option(
        "--activations", type=Number(0, MOST_GIB), metavar="GIB", help="For activations.  [default: estimated]"
    ),
    click.option(
        "--batch-tokens",
        type=Count(),
        metavar="N",
        default=8192,
        help="Tokens of a step, for that estimate.  [default: 8192]",
    ),
)
@section(
    "Requests",
    click.option(
        "-w",
        "--workload",
        metavar="NAME|FILE",
        help="Lengths as a definition has them (loadgen workloads list); of sessions, those of their first turns.",
    ),
    click.option("--input-len", metavar="N|A-B", help="Prompt tokens, or a range of them.  [default: 512]"),
    click.option("--output-len", metavar="N|A-B", help="Tokens to generate, or a range.  [default: 128]"),
)
@section(
    "Beside a run",
    click.option(
        "--run",
        "run_path",
        metavar="RUN",
        help="A measured run: its lengths, the share of each ceiling it reached, and what ran out first. Model and GPU"
        " are its own where it tells them.",
    ),
    click.option(
        "--rps", type=Rate(), multiple=True, metavar="N", help="Requests/s to find the replicas for; repeatable."
    ),
    click.option("--slo", multiple=True, metavar="OBJECTIVE", help="In place of the run's own objectives."),
    click.option("--price", type=Number(above=0), metavar="SUM", help="Of one GPU and hour, for the cost of tokens."),
)
@section(
    "Output",
    click.option("--json", "as_json", is_flag=True, help="The plan as JSON."),
    click.option("--plot", metavar="FILE", help="Memory against requests in flight, as .svg or .png."),
    click.option("--list", "listed", is_flag=True, help="The models and GPUs there are."),
)
def plan(**given: Any) -> int:
    """Say whether a model fits, what it holds, and what the hardware would allow.

    Weights, KV cache and reserves against the memory of a GPU; how many requests of this workload's lengths are held at
    once; and the floors under TTFT and TPOT that bandwidth and peak set. Exit 1 where it does not fit.

    With --run the floors are held against what was measured: the share of each ceiling at each load, the KV limit, the
    replicas for --rps requests/s inside the objectives, the cost of tokens, and what the next doubling would buy.
    """
    from pathlib import Path

    import orjson

    from ..analysis.planning import plan as planned
    from ..report.memory_chart import write_memory_chart
    from ..report.planned import as_json, render

    _refuse_empty(given)
    if given["listed"]:
        click.echo(_tables())
        return Exit.DONE
    if given["run_path"] is not None:
        from .beside import print_beside

        return print_beside(given, _model, _deployment)
    if option := next((name for name in ("rps", "slo", "price") if given[name]), None):
        raise UsageError(f"--{option} is of a measured run", f"add --run RUN, or leave --{option} out")
    result = planned(_model(given), _deployment(given), _lengths(given))
    if given["plot"]:
        write_memory_chart(result, Path(given["plot"]))
    with reader_may_go():
        click.echo(
            orjson.dumps(as_json(result), option=orjson.OPT_INDENT_2)
            if given["as_json"]
            else render(result, screen_width())
        )
    return Exit.DONE if result.fits else Exit.NO


def _refuse_empty(given: Mapping[str, Any]) -> None:
    """A variable of a script that was never set is no way to leave a flag out."""
    for param in click.get_current_context().command.params:
        if given[str(param.name)] in ("", ("",)):
            flag = max(param.opts, key=len)
            raise UsageError(f"{flag} is empty", f"give it a value, or leave {flag} out")


def _model(given: dict[str, Any]) -> Model:
    from dataclasses import replace

    from ..hardware.model import Quantisation
    from ..hardware.named import model_named

    ways = [name for name in ("model", "config_file", "params") if given[name] is not None]
    if len(ways) > 1:
        raise UsageError("the model is given twice", "give one of --model, --config and --params")
    if not ways:
        raise UsageError("no model is given", "give --model NAME (--list shows them), --config FILE or --params N")
    if given["params"] is None and (
        more := [n for n in ("layers", "heads", "kv_heads", "head_dim", "hidden") if given[n] is not None]
    ):
        flag = more[0].replace("_", "-")
        raise UsageError(f"--{flag} goes with --params only", "leave it out: the model says it")
    if given["model"] is not None:
        model = model_named(given["model"])
    elif given["config_file"] is not None:
        model = _from_file(given["config_file"])
    else:
        model = _from_flags(given)
    if given["active_params"] is not None:
        model = replace(model, active_parameters=min(given["active_params"], model.parameters))
    bits, group = given["weight_bits"], given["group_size"] or 0
    if bits is not None:
        model = model.quantised(Quantisation(bits, group, 16 + bits if group else 0, name=f"{bits:g} bit"))
    elif group:
        raise UsageError("--group-size goes with --weight-bits", "say how many bits a weight has")
    return model


def _from_file(name: str) -> Model:
    from pathlib import Path

    import orjson

    from ..hardware.config import model_from_config

    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    try:
        config = orjson.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "give the path of a config.json") from None
    except orjson.JSONDecodeError as error:
        raise UsageError(f"{path} is not JSON: {error}", "give the model's own config.json") from None
    if not isinstance(config, dict):
        raise UsageError(f"{path} holds no JSON object", "give the model's own config.json")
    return model_from_config(config, path.parent.resolve().name, source=str(path))


def _from_flags(given: dict[str, Any]) -> Model:
    from ..hardware.model import AttentionLayers, Model

    missing = [f"--{name.replace('_', '-')}" for name in ("layers", "heads", "head_dim") if given[name] is None]
    if missing:
        raise UsageError(f"with --params, {' and '.join(missing)} must be given", "they set the size of the KV cache")
    heads = given["heads"]
    kv_heads = given["kv_heads"] or heads
    if kv_heads > heads:
        raise UsageError(f"{kv_heads} KV heads are more than {heads} heads", "--kv-heads is at most --heads")
    return Model(
        name=f"{given['params'] / 1e9:g} B parameters",
        parameters=given["params"],
        active_parameters=given["params"],
        layers=given["layers"],
        hidden=given["hidden"] or heads * given["head_dim"],
        heads=heads,
        kv_heads=kv_heads,
        head_dim=given["head_dim"],
        attention=(AttentionLayers(given["layers"]),),
    )


def _deployment(given: dict[str, Any]) -> Deployment:
    from dataclasses import replace

    from ..hardware.deployment import Deployment
    from ..hardware.gpus import Gpu, gpu_named
    from ..hardware.model import GIB

    parts = {name: given[name] for name in ("memory", "bandwidth", "peak") if given[name] is not None}
    if given["gpu"] is None and len(parts) == 3:
        peak = parts["peak"] * 1e12
        gpu = Gpu("a GPU as given", parts["memory"] * GIB, parts["bandwidth"] * 1e12, peak, peak, 0.0, "as given")
    else:
        gpu = gpu_named(given["gpu"] or "h100")
        if parts:
            peak = parts["peak"] * 1e12 if "peak" in parts else None
            gpu = replace(
                gpu,
                memory=parts["memory"] * GIB if "memory" in parts else gpu.memory,
                bandwidth=parts["bandwidth"] * 1e12 if "bandwidth" in parts else gpu.bandwidth,
                peak_16=peak or gpu.peak_16,
                peak_8=peak or gpu.peak_8,
                source=f"{gpu.source}; {', '.join(parts)} as given",
            )
    return Deployment(
        gpu,
        tensor_parallel=given["tp"],
        pipeline_parallel=given["pp"],
        expert_parallel=given["ep"],
        kv_bits=given["kv_bits"],
        block=given["block"],
        utilisation=given["utilisation"],
        runtime_bytes=given["runtime"] * GIB,
        activation_bytes=None if given["activations"] is None else given["activations"] * GIB,
        batch_tokens=given["batch_tokens"],
    )


def _lengths(given: dict[str, Any]) -> Lengths:
    import numpy as np

    from ..analysis.planning import Lengths
    from ..workload.plain import DEFAULT_INPUT_LEN, DEFAULT_OUTPUT_LEN
    from ..workload.prompts import parse_length

    if given["workload"] is not None:
        if other := next((name for name in ("input_len", "output_len") if given[name] is not None), None):
            flag = other.replace("_", "-")
            raise UsageError(f"--workload and --{flag} exclude each other", "leave one of the two out")
        from ..workload.library import load_workload

        drawn_in, drawn_out, _ = load_workload(given["workload"]).lengths.sample(0, DRAWS)
        return Lengths.of(drawn_in, drawn_out)
    ranges = [
        parse_length(given[flag.removeprefix("--").replace("-", "_")], flag)
        if given[flag[2:].replace("-", "_")]
        else default
        for flag, default in (("--input-len", DEFAULT_INPUT_LEN), ("--output-len", DEFAULT_OUTPUT_LEN))
    ]
    rng = np.random.default_rng(0)
    inputs, outputs = (rng.integers(r.low, r.high, size=DRAWS, endpoint=True) for r in ranges)
    return Lengths.of(inputs, outputs)


def _tables() -> str:
    from ..hardware.gpus import GPUS
    from ..hardware.named import model_named, table

    models = {name: (model_named(name), entry["source"]) for name, entry in table().items()}
    rows = [
        f"  {name:20} {model.parameters / 1e9:7,.1f} B {model.kv_bytes_per_token() / 1024:7,.1f} KiB a token  {source}"
        for name, (model, source) in models.items()
    ]
    gpus = [
        f"  {gpu.name:20} {gpu.memory / 2**30:7,.1f} GiB {gpu.bandwidth / 1e12:6.2f} TB/s"
        f" {gpu.peak_16 / 1e12:7,.0f} TFLOPS  {gpu.source}"
        for gpu in GPUS.values()
    ]
    return "\n".join(["models", *rows, "GPUs", *gpus])
