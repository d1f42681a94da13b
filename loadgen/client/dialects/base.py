"""What every dialect gives and takes, and how a request body is put together. Pure.

A body is built in layers, later ones winning: the prompt (or a body of its own, sent as it is), what the options say,
and last the user's extra fields, merged deeply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from ...errors import Failure
from ...records import Prompt
from ..sse import SSEEvent

# The names under which servers take the longest output, in tokens; a body uses one of them.
LENGTH_KEYS = ("max_completion_tokens", "max_tokens")


class MalformedEvent(ValueError):  # noqa: N818
    """An event, or a whole answer, that is not JSON."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What is asked for beside the prompt, the same for every request of a run.

    `usage` asks for the server's token counts at the end of a stream, `continuous_usage` for them with every event.
    `force_length` asks for exactly the prompt's `output_tokens`. `temperature` and `top_p` are sent only when given.
    """

    model: str
    stream: bool = True
    usage: bool = True
    continuous_usage: bool = False
    force_length: bool = False
    temperature: float | None = None
    top_p: float | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


class Usage(NamedTuple):
    """The server's token counts so far; None is not told. `cached` prompt tokens came from its prefix cache."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


@dataclass(slots=True)
class Piece:
    """What one event carries. `choices` are the indices of the choices in it, `finished` those that say they ended.

    `token_ids` is the number of token ids, None where the event lists none. `ignored` marks an event that is legal but
    of no known shape. `text` is for people to read; nothing is counted in it.
    """

    has_output: bool = False
    has_content: bool = False  # output that is not reasoning
    text: str = ""
    token_ids: int | None = None
    usage: Usage | None = None
    choices: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    finish_reason: str | None = None
    error: Failure | None = None
    done: bool = False
    server_id: str | None = None
    ignored: bool = False


class Dialect(Protocol):
    """One request and answer format. `path` is what follows the base address of the API."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        """The JSON body to send. It may share nested values with `prompt` and `options`: not to be changed."""
        ...

    def read(self, event: SSEEvent) -> Piece:
        """What an event carries. Raises `MalformedEvent`, and nothing else, whatever the server sent."""
        ...

    def read_whole(self, payload: bytes) -> Piece:
        """The same of a whole JSON completion, sent in place of a stream. Raises `MalformedEvent`."""
        ...


def deep_merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A new dict: `over` wins key by key; objects in both are merged in turn, all else (lists too) is replaced."""
    merged = dict(under)
    for key, value in over.items():
        mine = merged.get(key)
        merged[key] = deep_merge(mine, value) if isinstance(mine, Mapping) and isinstance(value, Mapping) else value
    return merged


def asked_output(body: Mapping[str, Any]) -> int | None:
    """The longest output that a body asks for, in tokens; None where it does not say."""
    parameters = body.get("parameters")
    inner = parameters.get("max_new_tokens") if isinstance(parameters, Mapping) else None  # TGI's own
    for value in (*(body.get(key) for key in LENGTH_KEYS), inner):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def asked_choices(body: Mapping[str, Any]) -> int:
    """How many answers a body asks for: `n` for each of its prompts."""
    n, prompt = body.get("n"), body.get("prompt")
    choices = n if isinstance(n, int) and not isinstance(n, bool) and n > 1 else 1
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):  # a list of prompts, not of token ids
        choices *= len(prompt)
    return choices


def completion_body(own: Mapping[str, Any], prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
    """The body of a completion request; `own` is how the dialect says the prompt's text.

    A `prompt.body` is sent as it is, but for what the options ask for; its length is left alone unless
    `prompt.output_tokens` is given.
    """
    extra = options.extra_body
    body: dict[str, Any] = dict(own if prompt.body is None else prompt.body)
    if not body.get("model"):
        body = {"model": options.model, **{key: value for key, value in body.items() if key != "model"}}
    if prompt.output_tokens is not None:
        # Servers refuse two names for the same limit: a name that the user or the body chose stays the only one.
        key = "max_tokens"
        if "max_completion_tokens" in extra or "max_completion_tokens" in body:
            key = "max_completion_tokens"
            body.pop("max_tokens", None)
        body[key] = prompt.output_tokens
        if options.force_length:
            body["ignore_eos"] = True
            body["min_tokens"] = prompt.output_tokens
    if options.temperature is not None:
        body["temperature"] = options.temperature
    if options.top_p is not None:
        body["top_p"] = options.top_p
    body["stream"] = options.stream
    if options.usage or options.continuous_usage:
        mine = body.get("stream_options")
        body["stream_options"] = dict(mine) if isinstance(mine, Mapping) else {}
        body["stream_options"]["include_usage"] = True
        if options.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    merged = deep_merge(body, extra)
    if not merged["stream"] and "stream_options" not in extra:
        merged.pop("stream_options", None)  # refused without a stream
    longest = asked_output(merged)
    if "min_tokens" not in extra and options.force_length and longest is not None and "min_tokens" in merged:
        merged["min_tokens"] = min(longest, merged["min_tokens"])  # the user's own limit may be lower than the prompt's
    return merged
