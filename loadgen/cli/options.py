"""The flags that `run` and `sweep` share, and how they become a `RunConfig`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from ..errors import UsageError
from . import conversations
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
    click.argument("urls", nargs=-1, metavar="[URL]..."),
    click.option("--simulate", is_flag=True, help="Measure an embedded simulated server instead of a URL."),
    click.option(
        "--endpoint",
        metavar="NAME",
        help="API to use: chat, completions, responses, generate_stream (TGI's), ollama_chat, ollama_generate, or"
        " MODULE:NAME of your own.  [default: chat]",
    ),
    click.option("--no-stream", is_flag=True, help="Ask for whole answers: then there is no TTFT, TPOT or ITL."),
    click.option(
        "--model",
        multiple=True,
        metavar="NAME[=SHARE]",
        help="Model or adapter to ask for; several, each with its share, are mixed.  [default: the only one there]",
    ),
    click.option(
        "--wait-ready",
        type=Duration(),
        metavar="TIME",
        help="Wait so long for a server that loads, or went away.  [default: off]",
    ),
)
_WORKLOAD = section(
    "Workload",
    click.option(
        "-w",
        "--workload",
        metavar="NAME|FILE",
        help="Requests as a definition says; `loadgen workloads list` has those that are ready.",
    ),
    click.option(
        "--max-total-len",
        type=Whole(2),
        metavar="N",
        help="With --workload: draw again what has more tokens, input and output together.",
    ),
    click.option("--input-len", metavar="N|A-B", help="Prompt tokens, or a range of them.  [default: 512]"),
    click.option("--output-len", metavar="N|A-B", help="Tokens to generate, or a range.  [default: 128]"),
    click.option(
        "--prompts",
        type=click.Path(),
        metavar="FILE",
        help="Send the prompts, whole request bodies or OpenAI batch of a JSON Lines file.",
    ),
    click.option(
        "--tokenizer", metavar="PATH", help="Local tokenizer.json, or its folder; counts what the server does not."
    ),
    click.option("--token-ids", is_flag=True, help="Prompts of exactly N token ids (completions, as in vLLM)."),
    click.option("--natural-length", is_flag=True, help="Let answers end by themselves, --output-len at the latest."),
    click.option("--seed", type=Whole(0), metavar="N", help="Fixes lengths and structure.  [default: random]"),
    click.option(
        "--same-text", is_flag=True, help="With --seed: the same text in every run, so prefix caches will be warm."
    ),
)
_LENGTH = section(
    "Objectives and the length of a step",
    click.option(
        "--slo",
        multiple=True,
        metavar="OBJECTIVE",
        help="ttft_p95=500ms, tpot=50ms, e2el:900, attainment=95%, mlperf:llama2-70b; repeatable.",
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
_SAMPLING = section(
    "Sampling, by the server's own default where not given",
    click.option("--temperature", type=Number(), metavar="T", help="0 takes the likeliest token each time."),
    click.option("--top-p", type=Number(0, 1), metavar="P", help="Among the likeliest that make up P together."),
    click.option("--top-k", type=Whole(-1), metavar="K", help="Among the K likeliest."),
    click.option("--min-p", type=Number(0, 1), metavar="P", help="Among those P times as likely as the first."),
    click.option("--frequency-penalty", type=Number(-2, 2), metavar="X", help="Per earlier use of a token."),
    click.option("--presence-penalty", type=Number(-2, 2), metavar="X", help="For any earlier use of a token."),
    click.option("--repetition-penalty", type=Number(above=0), metavar="X", help="A factor for any earlier use."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End an answer at this text; repeatable."),
    click.option("--n", type=Whole(1, 1024), metavar="N", help="Answers to each request."),
    click.option("--logprobs", type=Whole(0, 1000), metavar="N", help="Tell the N likeliest of each token."),
    click.option("--sampling-seed", type=Whole(0, 2**63 - 1), metavar="N", help="The seed sent to the server."),
)
_REQUEST = section(
    "Request",
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
    click.option(
        "--retries", type=Whole(0, 100), default=0, show_default=True, metavar="N", help="Tries after a 429 or 503."
    ),
    click.option(
        "--retry-max-wait", type=Duration(), metavar="TIME", help="Last try so long after the first.  [default: 60s]"
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
    click.option("--unix-socket", type=click.Path(), metavar="PATH", help="Connect to this socket, whatever the host."),
    click.option(
        "--reconnect-every", type=Count(), metavar="N", help="Close a connection after N requests.  [default: never]"
    ),
)
_METRICS = section(
    "The server's own metrics",
    click.option(
        "--scrape-interval", type=Duration(), metavar="TIME", help="Read its Prometheus page so often.  [default: 1s]"
    ),
    click.option(
        "--metrics-url",
        multiple=True,
        metavar="URL",
        help="Where it is, if not at the server's /metrics; repeatable, one for each replica.",
    ),
    click.option("--no-scrape", is_flag=True, help="Leave the server's metrics alone."),
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
    click.option(
        "--metrics-port",
        metavar="[HOST:]PORT",
        help="Serve the run's own counters as OpenMetrics there.  [default: off]",
    ),
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
_RAY = click.option(
    "--ray",
    metavar="HOST:PORT|auto",
    help="Place each of the --workers N in an actor of this Ray cluster instead.",
)


def shared(*load: Callable[[Any], Any], own: Callable[[Any], Any] = lambda function: function) -> Callable[[F], F]:
    """All flags of a measuring verb: those which say the load, and its `own`, among those that all of them take."""

    def decorate(function: F) -> F:
        says = section("Load", *load, _WORKERS, _RAY)
        for group in (_OUTPUT, _METRICS, _ACCESS, _REQUEST, _SAMPLING, _BUDGETS, _LENGTH):
            function = group(function)
        for group in (conversations.FLAGS, own, _WORKLOAD, says, _TARGET):
            function = group(function)
        return function

    return decorate


_EXCLUDING = (
    *(("duration", "requests"), ("insecure", "ca_file"), ("proxy", "trust_env")),
    *(("unix_socket", "proxy"), ("unix_socket", "trust_env"), ("unix_socket", "ray"), ("simulate", "ray")),
)


def _words() -> list[str]:
    """The command line, as `main` was given it."""
    context = click.get_current_context(silent=True)
    found = context.find_root().obj if context is not None else None
    return found if isinstance(found, list) else sys.argv[1:]


def run_config(
    verb: Any, plan: SweepPlan, flags: Mapping[str, Any], *, urls: Sequence[str], simulator: Mapping[str, Any] | None
) -> RunConfig:
    """The flags as values. Raises UsageError for what cannot be meant together."""
    from ..client.dialects.sampling import FLAGS as SAMPLING
    from ..client.exchange import Timeouts
    from ..client.retry import Retry
    from ..client.scrape import INTERVAL_S, metrics_url
    from ..client.transport import Access
    from ..runner import Budgets, RunConfig, Scraping, WorkloadChoice
    from ..runner.exporter import parse_address
    from ..slo import parse_slo
    from ..workload.models import parse_models

    for one, other in _EXCLUDING:
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
    if flags["ray"] is not None:
        if not flags["workers"]:
            raise UsageError(
                "--ray is to place workers, but not how many", "add --workers N, of which each takes a CPU"
            )
        if flags["output"] == "-":
            raise UsageError(
                "--output - streams the log of one process, but --ray has more", "give a folder to --output"
            )
    slo = parse_slo(flags["slo"])
    if flags["no_stream"]:
        unseen = [o.metric for o in slo.objectives if o.metric not in ("e2e", "e2e_scheduled")]
        if unseen:
            raise UsageError(
                f"without a stream there is no {unseen[0]} to judge", "leave --no-stream out, or bound e2e alone"
            )
    price = _price(flags["price"])
    if flags["max_cost"] is not None and price is None:
        raise UsageError("--max-cost needs prices", "add --price IN/OUT per million tokens, as in --price 0.15/0.60")
    if flags["max_cost"] is None and price is not None:
        raise UsageError("--price does nothing without --max-cost", "add --max-cost, or leave --price out")
    if flags["retry_max_wait"] is not None and not flags["retries"]:
        raise UsageError("--retry-max-wait does nothing without --retries", "add --retries N, or leave it out")
    if flags["no_scrape"] and (flags["metrics_url"] or flags["scrape_interval"]):
        raise UsageError("--no-scrape leaves nothing to read", "leave it out, or --metrics-url and --scrape-interval")
    if flags["token_ids"] and flags["prompts"]:
        raise UsageError("--token-ids and --prompts exclude each other", "leave one of the two out")
    if flags["same_text"] and flags["seed"] is None:
        raise UsageError("--same-text needs a seed to repeat", "add --seed N, the same in every run")
    sampling = {name: flags[name] for name in SAMPLING if flags[name] not in (None, ())}
    return RunConfig(
        verb=verb,
        url=urls[0],
        more_urls=tuple(urls[1:]),
        endpoint=flags["endpoint"],
        models=parse_models(flags["model"]),
        workload=WorkloadChoice(
            flags["input_len"],
            flags["output_len"],
            flags["prompts"],
            flags["seed"],
            flags["same_text"],
            definition=flags.get("definition"),
            own_slo=flags.get("own_slo", False),
            trace=flags.get("replayed"),
            **conversations.values(flags),
        ),
        plan=plan,
        cache_block=flags["cache_block"],
        resume=flags.get("resume_from"),
        metrics_address=parse_address(flags["metrics_port"]) if flags["metrics_port"] is not None else None,
        open_loop=flags.get("open_loop"),
        rates=flags.get("rates"),
        slo=slo,
        effort=flags["effort"],
        requests=flags["requests"],
        duration_s=flags["duration"],
        budgets=Budgets(flags["max_time"], flags["max_requests"], flags["max_tokens"], flags["max_cost"], price),
        max_error_rate=flags["max_error_rate"],
        warmup=flags["warmup"],
        timeouts=Timeouts(
            flags["connect_timeout"], flags["first_token_timeout"], flags["idle_timeout"], flags["timeout"]
        ),
        retry=Retry(flags["retries"], flags["retry_max_wait"] or 60.0),
        access=Access(
            headers=_headers(urls, flags),
            ca_file=flags["ca_file"],
            insecure=flags["insecure"],
            client_cert=flags["client_cert"],
            proxy=_proxy(flags["proxy"]),
            trust_env=flags["trust_env"],
            unix_socket=_unix_socket(flags["unix_socket"]),
            reconnect_every=flags["reconnect_every"],
        ),
        scraping=None
        if flags["no_scrape"]
        else Scraping(
            flags["scrape_interval"] or INTERVAL_S, tuple(dict.fromkeys(map(metrics_url, flags["metrics_url"])))
        ),
        wait_ready_s=flags["wait_ready"],
        sampling=sampling,
        extra_body=flags["extra_body"] or {},
        force_length=not flags["natural_length"],
        stream=not flags["no_stream"],
        describe=dict(flags["describe"]),
        token_log=flags["token_log"],
        tokenizer=flags["tokenizer"],
        token_ids=flags["token_ids"],
        output=flags["output"],
        workers=flags["workers"] or None,
        ray=flags["ray"],
        simulator=simulator,
        command=redacted_command(flags.get("command") or _words()),
    )


def _unix_socket(path: str | None) -> str | None:
    if path is None:
        return None
    if len(os.fsencode(path)) > 107:  # sizeof sun_path
        raise UsageError(
            f"--unix-socket {path} is longer than the 107 bytes that a socket's path may have", "link to it"
        )
    if not Path(path).is_socket():
        what = "is no socket" if Path(path).exists() else "does not exist"
        raise UsageError(f"--unix-socket {path} {what}", "give the path that the server listens on")
    return path


def _headers(urls: Sequence[str], flags: Mapping[str, Any]) -> dict[str, str]:
    """The key's header, unless there is no key or the user's own headers say otherwise."""
    headers: dict[str, str] = {}
    key = _api_key(urls, flags["api_key_env"], flags["api_key_file"], flags.get("api_key"))
    if key:
        headers["authorization"] = f"Bearer {key}"
    for name, value in flags["header"]:
        headers[name.lower()] = value
    return headers


def _api_key(urls: Sequence[str], env: str | None, file: str | None, key: str | None = None) -> str | None:
    if env and file:
        raise UsageError("--api-key-env and --api-key-file exclude each other", "leave one of the two out")
    if key is not None:
        if env or file:
            raise UsageError("api_key stands beside another place for the key", "leave one of the two out")
        key = key.strip()
    elif file:
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
        hosts = {_host_of(url) for url in urls}
        if not key and hosts == {OPENAI_HOST}:  # a key for one service is never shown to another
            key = os.environ.get("OPENAI_API_KEY", "").strip()
    if any(ord(letter) < 33 or ord(letter) > 126 for letter in key):
        raise UsageError("the API key holds a space or a control character", "check the file or variable it came from")
    return key or None


def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url if "//" in url else f"//{url}").hostname
    except ValueError:  # no address: whoever reads it in earnest says why
        return None


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
    from ..client.target import mask

    if url is None:
        return None
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return url
        if parts.scheme in ("socks5", "socks5h") and parts.hostname and parts.port != 0:
            if find_spec("socksio") is not None:
                return url
            raise UsageError(
                f"--proxy {mask(url)} needs a package that is not installed",
                "pip install 'httpx[socks]', or name an HTTP proxy",
            )
    except ValueError:
        pass  # a port that is no number

    raise UsageError(f"--proxy {mask(url)} is no address of an HTTP proxy", "write it as http://HOST:PORT")


# Flags whose value is, or may hold, a secret.
SECRET_FLAGS = ("--header", "--proxy", "--extra-body")


def redacted_command(arguments: list[str]) -> tuple[str, ...]:
    """The command line as it may be kept: values of secret flags, keys in the URL's query and passwords masked."""
    from ..client.target import mask

    kept: list[str] = []
    hide = False
    for argument in arguments:
        flag, equals, _ = argument.partition("=")
        if hide:
            kept.append("***")
        elif flag in SECRET_FLAGS and equals:
            kept.append(f"{flag}=***")
        else:
            kept.append(mask(argument) if any(mark in argument for mark in ("://", "@", "?")) else argument)
        hide = argument in SECRET_FLAGS
    return tuple(kept)
