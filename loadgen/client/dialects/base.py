"""What every dialect gives and takes, and how a request body is put together. Pure.

A body is built in layers, later ones winning: the prompt (or a body of its own, sent as it is), what the options say,
and last the user's extra fields, merged deeply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeGuard

from ...errors import Failure
from ...records import Prompt
from ..sse import SSEEvent

# The names under which servers take the longest output, in tokens; a body uses one of them.
LENGTH_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


class MalformedEvent(ValueError):  # noqa: N818
    """An event, or a whole answer, that is not JSON."""


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What is asked for beside the prompt, the same for every request of a run.

    `usage` asks for the server's token counts at the end of a stream, `continuous_usage` for them with every event.
    `force_length` asks for exactly the prompt's `output_tokens`. `sampling` are fields as this endpoint names them.
    """

    model: str
    stream: bool = True
    usage: bool = True
    continuous_usage: bool = False
    force_length: bool = False
    sampling: Mapping[str, Any] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)


class Usage(NamedTuple):
    """The server's token counts so far; None is not told. `cached` prompt tokens came from its prefix cache."""

    prompt: int | None = None
    completion: int | None = None
    cached: int | None = None


class CallPart(NamedTuple):
    """What one event adds to one tool call, which is known by its `choice` and its `place` (index) there."""

    choice: int
    place: int
    name: str
    arguments: str


@dataclass(slots=True)
class Piece:
    """What one event carries. `choices` are the indices of the choices in it, `finished` those that say they ended.

    `token_ids` is the number of token ids, None where the event lists none. `ignored` marks an event that is legal but
    of no known shape. `text` and `calls` are for people to read; nothing is counted in them.
    """

    has_output: bool = False
    has_content: bool = False  # output that is not reasoning
    text: str = ""
    calls: tuple[CallPart, ...] = ()
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
    """One request and answer format. Its objects hold no state: all requests of a run share one.

    `path` is what follows the base address of the API: `…/v1`, or the server's root where `at_root` says so. `media` is
    the content type of its streams, which also says how they are framed: `text/event-stream`, or
    `application/x-ndjson` for one JSON value a line. `names_model` says whether a request has to name a model,
    `whole` whether the API also answers without a stream.
    """

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def at_root(self) -> bool: ...

    @property
    def media(self) -> str: ...

    @property
    def names_model(self) -> bool: ...

    @property
    def whole(self) -> bool: ...

    def body(self, prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
        """The JSON body to send. It may share nested values with `prompt` and `options`: not to be changed."""
        ...

    def read(self, event: SSEEvent) -> Piece:
        """What an event carries; a line is one, named "message". Raises `MalformedEvent` and nothing else, whatever the
        server sent."""
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
    for key in LENGTH_KEYS:
        if _is_length(value := body.get(key)):
            return value
    for place, key in (("parameters", "max_new_tokens"), ("options", "num_predict")):  # TGI's own, Ollama's own
        inner = body.get(place)
        if isinstance(inner, Mapping) and _is_length(value := inner.get(key)):
            return value
    return None


def _is_length(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def asked_choices(body: Mapping[str, Any]) -> int:
    """How many answers a body asks for: `n` for each of its prompts."""
    n, prompt = body.get("n"), body.get("prompt")
    choices = n if isinstance(n, int) and not isinstance(n, bool) and n > 1 else 1
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):  # a list of prompts, not of token ids
        choices *= len(prompt)
    return choices


def asked_length(prompt: Prompt) -> int | None:
    """The output length to write into a prompt's request; None where there is none, or where it is its body's own."""
    own = None if prompt.body is None else asked_output(prompt.body)
    return None if prompt.output_tokens == own else prompt.output_tokens


def completion_body(own: Mapping[str, Any], prompt: Prompt, options: RequestOptions) -> dict[str, Any]:
    """The body of a completion request; `own` is how the dialect says the prompt's text.

    A `prompt.body` is sent as it is, but for `stream` and `stream_options`, without which nothing can be measured, and
    what is asked for: `prompt.model`, a `prompt.output_tokens` that is not its own length, the sampling, the extra
    fields. A body without a model gets the run's.
    """
    extra = options.extra_body
    body = with_model(own if prompt.body is None else prompt.body, options, prompt.model)
    length = asked_length(prompt)
    if length is not None:
        # Servers refuse two names for the same limit: a name that the user or the body chose stays the only one.
        key = "max_tokens"
        if "max_completion_tokens" in extra or "max_completion_tokens" in body:
            key = "max_completion_tokens"
            body.pop("max_tokens", None)
        body[key] = length
        if options.force_length:
            body.update(forced(length))
    body.update(sampling(options), stream=options.stream)
    if options.usage or options.continuous_usage:
        mine = body.get("stream_options")
        body["stream_options"] = dict(mine) if isinstance(mine, Mapping) else {}
        body["stream_options"]["include_usage"] = True
        if options.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
    merged = with_extra(body, options)
    if not merged["stream"] and "stream_options" not in extra:
        merged.pop("stream_options", None)  # refused without a stream
    return merged


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """The prompt as chat messages: what was said before it, user and assistant in turn, then its own."""
    said = (*prompt.history, prompt.text)
    return [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(said)]


def whole_text(prompt: Prompt) -> str:
    """The prompt as one text that goes on: an answer follows as it was given, the next message after a space."""
    if not prompt.history:
        return prompt.text
    said = (*prompt.history, prompt.text)
    return "".join(text if i % 2 or not i else f" {text}" for i, text in enumerate(said))


def with_model(own: Mapping[str, Any], options: RequestOptions, model: str | None = None) -> dict[str, Any]:
    """A copy that names a model: the prompt's (`model`), else its own, else that of the options."""
    if own.get("model"):
        return {**own, "model": model} if model else dict(own)
    return {"model": model or options.model, **{key: value for key, value in own.items() if key != "model"}}


def sampling(options: RequestOptions) -> dict[str, Any]:
    """The sampling that is asked for."""
    return dict(options.sampling)


def forced(output_tokens: int) -> dict[str, Any]:
    """What vLLM and SGLang generate a length by, whatever the model says."""
    return {"ignore_eos": True, "min_tokens": output_tokens}


def with_extra(body: Mapping[str, Any], options: RequestOptions) -> dict[str, Any]:
    """The body with the user's extra fields, which win; a forced length is never above the longest then asked for."""
    merged = deep_merge(body, options.extra_body)
    longest = asked_output(merged)
    if (
        "min_tokens" not in options.extra_body
        and options.force_length
        and longest is not None
        and "min_tokens" in merged
    ):
        merged["min_tokens"] = min(longest, merged["min_tokens"])  # the user's own limit may be lower than the prompt's
    return merged
