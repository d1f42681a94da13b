"""The keywords of `run` and `sweep`: the flags of these verbs, in Python's spelling and with Python's values.

A keyword is a flag's long name with underscores. Times are seconds, or text as on the command line (`"500ms"`);
whatever else the command line takes as text may be text here too. None is the same as leaving it out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike, fspath
from typing import Any, Literal, TypedDict

import click
import orjson

from ..errors import UsageError

Time = float | str
Texts = str | Sequence[str]
Path = str | PathLike[str]


class Options(TypedDict, total=False):
    """What `run` and `sweep` both take. `api_key` is a key itself, which is never written down."""

    simulate: bool
    endpoint: str | None
    no_stream: bool
    model: Texts | Mapping[str, float] | None
    wait_ready: Time | None
    workload: Path | None
    max_total_len: int | None
    input_len: int | str | None
    output_len: int | str | None
    prompts: Path | None
    tokenizer: Path | None
    token_ids: bool
    natural_length: bool
    seed: int | None
    same_text: bool
    rate: float | None
    arrivals: str | None
    workers: int | Literal["auto"]
    ray: str | None
    shared_prefix_len: int | None
    prefix_groups: int | None
    cache_block: int | None
    turns: int | str | None
    turn_input_len: int | str | None
    think_time: Time | None
    history: Literal["server", "made"] | None
    slo: Texts | None
    effort: Literal["quick", "normal", "thorough"]
    duration: Time | None
    requests: int | str | None
    warmup: int | None
    max_error_rate: float | str
    max_time: Time | None
    max_requests: int | str | None
    max_tokens: int | str | None
    max_cost: float | None
    price: float | str | tuple[float, float] | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    stop: Texts | None
    n: int | None
    logprobs: int | None
    sampling_seed: int | None
    extra_body: Mapping[str, Any] | None
    connect_timeout: Time
    first_token_timeout: Time
    idle_timeout: Time
    timeout: Time
    retries: int
    retry_max_wait: Time | None
    api_key: str | None
    api_key_env: str | None
    api_key_file: Path | None
    header: Mapping[str, str] | Texts | None
    ca_file: Path | None
    insecure: bool
    client_cert: Path | None
    proxy: str | None
    trust_env: bool
    unix_socket: Path | None
    reconnect_every: int | None
    scrape_interval: Time | None
    metrics_url: Texts | None
    no_scrape: bool
    output: Path
    metrics_port: int | str | None
    describe: Mapping[str, str] | Texts | None
    token_log: bool


class RunOptions(Options, total=False):
    """What `run` takes."""

    concurrency: int | None
    trace: Path | None
    time_scale: float | None
    as_recorded: bool
    mapping: str | None


class SweepOptions(Options, total=False):
    """What `sweep` takes."""

    start: int
    factor: float
    max_level: int
    repeats: int
    precision: float | str | None
    levels: Sequence[int] | str | None
    max_rate: float | None
    demo: bool
    resume: Path | None
    anyway: bool


# Flags of the screen, which a program has no use for.
SCREEN = frozenset(("as_json", "quiet", "dry_run"))
_JOINED = {"header": "{}: {}", "describe": "{}={}", "model": "{}={}"}  # how a mapping becomes texts


def arguments(command: click.Command, urls: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    """The command line that means the same. Raises TypeError for a keyword that is none, UsageError for a value that
    no text can say."""
    params = {str(param.name): param for param in command.params if param.name not in SCREEN}
    words: list[str] = []
    for name, value in options.items():
        param = params.get(name)
        if not isinstance(param, click.Option):
            close = get_close_matches(name, params, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise TypeError(f"{command.name}() has no keyword {name!r}{hint}")
        words += _words(param, name, value)
    for url in urls:
        if not isinstance(url, str):
            raise UsageError(f"a URL is text, not {type(url).__name__}", "give addresses as in http://localhost:8000")
    return [*words, *(["--", *urls] if any(url.startswith("-") for url in urls) else urls)]


def _words(param: click.Option, name: str, value: Any) -> Iterator[str]:
    flag = next(word for word in param.opts if word.startswith("--"))
    if value is None:
        return
    if param.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{name} is True or False, not {value!r}", "say which")
        if value:
            yield flag
        elif param.secondary_opts:
            yield param.secondary_opts[0]
        return
    if param.multiple and isinstance(value, Mapping):
        value = [_JOINED[name].format(key, one) for key, one in value.items()]
    values = value if param.multiple and not isinstance(value, str) else [value]
    for one in values:
        yield f"{flag}={_text(name, one)}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        try:
            return orjson.dumps(value).decode()
        except TypeError as error:
            raise UsageError(f"{name} is no JSON: {error}", "give plain values") from None
    if isinstance(value, bool):
        raise UsageError(f"{name} is not True or False", "give its value")
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, (list, tuple, range)):
        return ("/" if name == "price" else ",").join(map(str, value))
    return str(value)
