"""The flags that `run` and `sweep` share, and how they become a `RunConfig`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from ..errors import UsageError
from .sections import section
from .values import Count, Duration, Header, JsonObject, Number, Pair, Share, Whole, Workers

if TYPE_CHECKING:
    from ..runner import RunConfig
    from ..search.sweep import SweepPlan

F = TypeVar("F", bound=Callable[..., Any])

OPENAI_HOST = "api.openai.com"
FILE = click.Path(exists=True, dir_okay=False, readable=True)

_TARGET = section(
    "Target",
    click.argument("url", required=False),
    click.option("--simulate", is_flag=True, help="Measure an embedded simulated server instead of a URL."),
    click.option(
        "--endpoint", type=click.Choice(["chat", "completions", "generate_stream"]), help="API to use.  [default: chat]"
    ),
    click.option("--model", metavar="NAME", help="Model to ask for.  [default: the only one in /v1/models]"),
    click.option(
        "--wait-ready", type=Duration(), metavar="TIME", help="Wait so long for the server to load.  [default: off]"
    ),
)
_WORKLOAD = section(
    "Workload",
    click.option("--input-len", metavar="N|A-B", help="Prompt tokens, or a range of them.  [default: 512]"),
    click.option("--output-len", metavar="N|A-B", help="Tokens to generate, or a range.  [default: 128]"),
    click.option(
        "--prompts", type=click.Path(), metavar="FILE", help="Send the prompts or request bodies of a JSON Lines file."
    ),
    click.option("--natural-length", is_flag=True, help="Let answers end by themselves, --output-len at the latest."),
    click.option("--seed", type=Whole(0), metavar="N", help="Fixes lengths and structure.  [default: random]"),
    click.option(
        "--same-text", is_flag=True, help="With --seed: the same text in every run, so prefix caches will be warm."
    ),
)
_LENGTH = section(
    "Objectives and the length of a step",
    click.option(
        "--slo", multiple=True, metavar="OBJECTIVE", help="ttft_p95=500ms, tpot=50ms, attainment=95%; repeatable."
    ),
    click.option(
        "--effort",
        type=click.Choice(["quick", "normal", "thorough"]),
        default="normal",
        show_default=True,
        help="How long a step lasts.",
    ),
    click.option("--duration", type=Duration(), metavar="TIME", help="Measure each step for exactly so long."),
    click.option(
        "--requests", "--num-prompts", type=Count(), metavar="N", help="Measure exactly N requests in each step."
    ),
    click.option(
        "--warmup", type=Whole(0), metavar="N", help="Requests before each window.  [default: the concurrency]"
    ),
    click.option(
        "--max-error-rate",
        type=Share(),
        default="1%",
        show_default=True,
        metavar="SHARE",
        help="Share of failed requests that a step may have.",
    ),
)
_BUDGETS = section(
    "Budgets of the whole run",
    click.option("--max-time", type=Duration(), metavar="TIME", help="End the whole run by then."),
    click.option("--max-requests", type=Count(), metavar="N", help="Send no more requests than this in all."),
    click.option("--max-tokens", type=Count(), metavar="N", help="Ask for no more tokens, input and output, in all."),
    click.option("--max-cost", type=Number(above=0), metavar="SUM", help="Spend no more, with --price."),
    click.option("--price", metavar="IN/OUT", help="Price per million input and output tokens, as in 0.15/0.60."),
)
_REQUEST = section(
    "Request",
    click.option("--temperature", type=Number(), metavar="T", help="Sampling temperature.  [default: not sent]"),
    click.option("--top-p", type=Number(0, 1), metavar="P", help="Nucleus sampling.  [default: not sent]"),
    click.option(
        "--extra-body", type=JsonObject(), metavar="JSON|@FILE", help="Merge these fields into every body; they win."
    ),
    click.option(
        "--connect-timeout",
        type=Duration(),
        default="10s",
        show_default=True,
        metavar="TIME",
        help="For a new connection.",
    ),
    click.option(
        "--first-token-timeout",
        type=Duration(),
        default="10m",
        show_default=True,
        metavar="TIME",
        help="From the request to its first token.",
    ),
    click.option(
        "--idle-timeout", type=Duration(), default="60s", show_default=True, metavar="TIME", help="Between two tokens."
    ),
    click.option(
        "--timeout", type=Duration(), default="1h", show_default=True, metavar="TIME", help="For a whole request."
    ),
)
_ACCESS = section(
    "Access",
    click.option("--api-key-env", metavar="NAME", help="Variable with the key.  [default: LOADGEN_API_KEY]"),
    click.option("--api-key-file", type=click.Path(), metavar="FILE", help="File with the key."),
    click.option("--header", type=Header(), multiple=True, metavar="'NAME: VALUE'", help="Send it; repeatable."),
    click.option("--ca-file", type=FILE, metavar="FILE", help="Trust this CA.  [default: the system's]"),
    click.option("--insecure", is_flag=True, help="Do not verify the server's certificate."),
    click.option("--client-cert", type=FILE, metavar="FILE", help="PEM file with certificate and key."),
    click.option("--proxy", metavar="URL", help="Send through this proxy.  [default: none, whatever the environment]"),
    click.option("--trust-env", is_flag=True, help="Obey HTTP_PROXY and its like."),
)
_OUTPUT = section(
    "Output",
    click.option(
        "-o",
        "--output",
        default="results",
        show_default=True,
        metavar="DIR|-",
        help="Where the run folder goes; - streams the log to stdout.",
    ),
    click.option("--quiet", is_flag=True, help="Print the result only."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
    click.option("--dry-run", is_flag=True, help="Show the address and the body that would be sent, and send nothing."),
    click.option("--describe", type=Pair(), multiple=True, metavar="KEY=VALUE", help="Record a fact; repeatable."),
    click.option("--token-log/--no-token-log", default=True, help="Log each token's time.  [default: on]"),
)


_WORKERS = click.option(
    "--workers",
    type=Workers(),
    default="auto",
    show_default=True,
    metavar="auto|N",
    help="Processes that share the load; auto: one, or as many as it needs.",
)


def shared(*load: Callable[[Any], Any]) -> Callable[[F], F]:
    """All flags of a measuring verb: its own, which say the load, among those that all of them take."""

    def decorate(function: F) -> F:
        own = section("Load", *load, _WORKERS)
        for group in (_OUTPUT, _ACCESS, _REQUEST, _BUDGETS, _LENGTH, _WORKLOAD, own, _TARGET):
            function = group(function)
        return function

    return decorate


def run_config(
    verb: Any, plan: SweepPlan, flags: Mapping[str, Any], *, url: str, simulator: Mapping[str, Any] | None
) -> RunConfig:
    """The flags as values. Raises UsageError for what cannot be meant together."""
    from ..client.exchange import Timeouts
    from ..client.transport import Access
    from ..runner import Budgets, RunConfig, WorkloadChoice
    from ..slo import parse_slo

    for one, other in (("duration", "requests"), ("insecure", "ca_file"), ("proxy", "trust_env")):
        if flags[one] and flags[other]:
            names = [name.replace("_", "-") for name in (one, other)]
            raise UsageError(f"--{names[0]} and --{names[1]} exclude each other", "leave one of the two out")
    if not flags["output"]:
        raise UsageError("--output is empty", "give a folder, or - to stream the log to stdout")
    if flags["output"] == "-" and flags["workers"] > 1:
        raise UsageError(
            "--output - streams the log of one process, but --workers asks for more",
            "give a folder to --output, or leave --workers out",
        )
    price = _price(flags["price"])
    if flags["max_cost"] is not None and price is None:
        raise UsageError("--max-cost needs prices", "add --price IN/OUT per million tokens, as in --price 0.15/0.60")
    if flags["max_cost"] is None and price is not None:
        raise UsageError("--price does nothing without --max-cost", "add --max-cost, or leave --price out")
    if flags["same_text"] and flags["seed"] is None:
        raise UsageError("--same-text needs a seed to repeat", "add --seed N, the same in every run")
    sampling = {name: flags[name] for name in ("temperature", "top_p") if flags[name] is not None}
    return RunConfig(
        verb=verb,
        url=url,
        endpoint=flags["endpoint"],
        model=flags["model"],
        workload=WorkloadChoice(
            flags["input_len"], flags["output_len"], flags["prompts"], flags["seed"], flags["same_text"]
        ),
        plan=plan,
        open_loop=flags.get("open_loop"),
        slo=parse_slo(flags["slo"]),
        effort=flags["effort"],
        requests=flags["requests"],
        duration_s=flags["duration"],
        budgets=Budgets(flags["max_time"], flags["max_requests"], flags["max_tokens"], flags["max_cost"], price),
        max_error_rate=flags["max_error_rate"],
        warmup=flags["warmup"],
        timeouts=Timeouts(
            flags["connect_timeout"], flags["first_token_timeout"], flags["idle_timeout"], flags["timeout"]
        ),
        access=Access(
            headers=_headers(url, flags),
            ca_file=flags["ca_file"],
            insecure=flags["insecure"],
            client_cert=flags["client_cert"],
            proxy=_proxy(flags["proxy"]),
            trust_env=flags["trust_env"],
        ),
        wait_ready_s=flags["wait_ready"],
        sampling=sampling,
        extra_body=flags["extra_body"] or {},
        force_length=not flags["natural_length"],
        describe=dict(flags["describe"]),
        token_log=flags["token_log"],
        output=flags["output"],
        workers=flags["workers"] or None,
        simulator=simulator,
        command=redacted_command(sys.argv[1:]),
    )


def _headers(url: str, flags: Mapping[str, Any]) -> dict[str, str]:
    """The key's header, unless there is no key or the user's own headers say otherwise."""
    headers: dict[str, str] = {}
    key = _api_key(url, flags["api_key_env"], flags["api_key_file"])
    if key:
        headers["authorization"] = f"Bearer {key}"
    for name, value in flags["header"]:
        headers[name.lower()] = value
    return headers


def _api_key(url: str, env: str | None, file: str | None) -> str | None:
    if env and file:
        raise UsageError("--api-key-env and --api-key-file exclude each other", "leave one of the two out")
    if file:
        try:
            key = Path(file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise UsageError(
                f"the key file {file} cannot be read: {why}", "give a readable file to --api-key-file"
            ) from None
    elif env:
        if env not in os.environ:
            raise UsageError(f"the environment has no {env}", f"export {env}=… or leave --api-key-env out")
        key = os.environ[env].strip()
    else:
        key = os.environ.get("LOADGEN_API_KEY", "").strip()
        host = urlsplit(url if "//" in url else f"//{url}").hostname
        if not key and host == OPENAI_HOST:  # a key for one service is never shown to another
            key = os.environ.get("OPENAI_API_KEY", "").strip()
    if any(ord(letter) < 33 or ord(letter) > 126 for letter in key):
        raise UsageError("the API key holds a space or a control character", "check the file or variable it came from")
    return key or None


def _price(text: str | None) -> tuple[float, float] | None:
    if text is None:
        return None
    try:
        first, _, second = text.partition("/")
        price = (float(first), float(second or first))
        if not all(0 <= one < math.inf for one in price):
            raise ValueError
    except ValueError:
        raise UsageError(f"--price {text} is not a price", "write IN/OUT per million tokens, as in 0.15/0.60") from None
    return price


def _proxy(url: str | None) -> str | None:
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
    except ValueError:
        pass  # a port that is no number
    from ..client.target import mask

    raise UsageError(f"--proxy {mask(url)} is no address of an HTTP proxy", "write it as http://HOST:PORT")


# Flags whose value is, or may hold, a secret.
_SECRET_FLAGS = ("--header", "--proxy", "--extra-body")


def redacted_command(arguments: list[str]) -> tuple[str, ...]:
    """The command line as it may be kept: values of secret flags, keys in the URL's query and passwords masked."""
    from ..client.target import mask

    kept: list[str] = []
    hide = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if hide:
            kept.append("***")
        elif flag in _SECRET_FLAGS and equals:
            kept.append(f"{flag}=***")
        else:
            kept.append(mask(argument) if "://" in argument or "@" in argument else argument)
        hide = argument in _SECRET_FLAGS
    return tuple(kept)
