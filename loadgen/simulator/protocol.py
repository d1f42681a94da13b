"""The simulated server's side of the OpenAI-compatible protocol, in vLLM's envelopes: bodies in, bodies out. No I/O.

Prompt tokens: a word (a run without white space) of up to 6 characters is 1 token, a longer one 2, so that English
costs about 1.3 tokens a word; a chat adds 8 tokens for each message, as a template would. A list of token ids counts
its length. Output words are one token each under the same rule.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from .engine.prefix import chain

Kind = Literal["chat", "completions"]

VERSION = "1.0"
FINGERPRINT = f"loadgen-simulator-{VERSION}"
TOKENS_PER_MESSAGE = 8
SHORT_WORD = 6  # characters
DEFAULT_COMPLETION_TOKENS = 16  # of /v1/completions without max_tokens
USUAL_ANSWER_TOKENS = 256  # what a chat without max_tokens plans for
STOP_MEAN, STOP_SPREAD = 0.6, 0.15  # where an answer ends by itself, as shares of max_tokens

WORDS = (
    *(" time", " work", " load", " data", " line", " rate", " step", " flow", " path", " node", " part", " word"),
    *(" form", " case", " test", " plan", " idea", " point", " queue", " batch", " model", " token", " table"),
    *(" clock", " count", " state", " event", " limit", " level", " match", " order", " phase", " range", " store"),
    *(" trace", " value", " watch", " width", " write", " graph", " reply", " shape", " slope", " start"),
)


class ApiError(Exception):
    """A request that is refused; `body` is what the client gets."""

    def __init__(self, status: int, message: str, param: str | None = None, kind: str = "BadRequestError") -> None:
        super().__init__(message)
        self.status = status
        self.body = dumps({"error": {"message": message, "type": kind, "param": param, "code": status}})


@dataclass(frozen=True, slots=True)
class Generation:
    """What a request asks the engine for, and how it wants to hear of it."""

    kind: Kind
    prompt_tokens: int
    output_tokens: int
    finish_reason: Literal["stop", "length"]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    blocks: tuple[int, ...] = ()  # chained hashes of the prompt's blocks, for a prefix cache


def count_tokens(text: str) -> int:
    """Tokens of a text under the rule above."""
    return sum(1 if len(word) <= SHORT_WORD else 2 for word in text.split())


def parse(
    kind: Kind, raw: bytes, model: str, context_length: int, rng: random.Random, block_tokens: int = 0
) -> Generation:
    """Check a request body and settle its lengths. `rng` draws where an answer without `ignore_eos` stops. With
    `block_tokens`, the prompt's blocks of so many tokens are hashed. ApiError."""
    body = _body(raw)
    asked = body.get("model", model)
    if asked != model:
        message = f"The model `{_shown(asked)}` does not exist. Valid aliases: {model}."
        raise ApiError(404, message, "model", "NotFoundError")
    stream = _flag(body, "stream")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise _bad("stream_options", "must be an object", options)
    if options and not stream:
        raise _bad("stream_options", "can only be set when `stream` is true", options)
    _number(body, "temperature", 0)
    if _integer(body, "n", 1) not in (None, 1):
        raise _bad("n", "must be 1: this server gives one answer a request", body["n"])
    prompt_tokens = _chat_tokens(body) if kind == "chat" else _prompt_tokens(body)
    room = context_length - prompt_tokens
    if room < 1:
        raise ApiError(
            400,
            f"This model's maximum context length is {context_length} tokens. However, your prompt contains "
            f"{prompt_tokens} input tokens. Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={prompt_tokens})",
            "input_tokens",
        )
    limit = _integer(body, "max_completion_tokens", 1) if kind == "chat" else None
    if limit is None:
        limit = _integer(body, "max_tokens", 1)
    if limit is not None and limit > room:
        raise ApiError(
            400,
            f"This model's maximum context length is {context_length} tokens. However, you requested {limit} output "
            f"tokens and your prompt contains {prompt_tokens} input tokens. Please reduce the length of the input "
            f"prompt or the number of requested output tokens. (parameter=max_tokens, value={limit})",
            "max_tokens",
        )
    planned = limit if limit is not None else USUAL_ANSWER_TOKENS if kind == "chat" else DEFAULT_COMPLETION_TOKENS
    planned = min(planned, room)
    if limit is None:
        limit = room if kind == "chat" else planned
    least = _integer(body, "min_tokens", 0) or 0
    if least > limit:
        raise _bad("min_tokens", f"must be at most max_tokens={limit}", least)
    if _flag(body, "ignore_eos"):
        output_tokens = limit
    else:
        natural = round(rng.gauss(STOP_MEAN * planned, STOP_SPREAD * planned))
        output_tokens = min(limit, max(natural, least, 1))
    return Generation(
        kind,
        prompt_tokens,
        output_tokens,
        "length" if output_tokens == limit else "stop",
        stream,
        bool(options.get("include_usage")),
        bool(options.get("include_usage") and options.get("continuous_usage_stats")),
        chain(_pieces(kind, body), block_tokens) if block_tokens else (),
    )


class Envelope:
    """The answer's bytes: SSE events for a stream, or one JSON body."""

    def __init__(self, request: Generation, request_id: str, model: str, created: int) -> None:
        chat = request.kind == "chat"
        self.request = request
        name = "chat.completion" if chat else "text_completion"
        about = f'"created":{created},"model":{json.dumps(model)},"choices":'
        self._whole = f'{{"id":"{request_id}","object":"{name}",{about}'
        self._chunk = f'data: {{"id":"{request_id}","object":"{name + ".chunk" if chat else name}",{about}'
        self._before, self._after = (
            ('[{"index":0,"delta":{"content":"', '"},"logprobs":null,"finish_reason":')
            if chat
            else ('[{"index":0,"text":"', '","logprobs":null,"finish_reason":')
        )
        self._middle = (
            'null,"token_ids":null}]' if chat else 'null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
        )
        stop = "" if chat else '"prompt_token_ids":null,'
        self._last = f'"{request.finish_reason}","stop_reason":null,{stop}"token_ids":null}}]'

    def role(self) -> bytes:
        """The first event of a chat, which carries no output."""
        choice = '[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return (
            self._chunk + choice + self._usage_field(0) + ',"prompt_token_ids":null,"prompt_text":null}\n\n'
        ).encode()

    def token(self, text: str, number: int) -> bytes:
        """Output event `number`, from 1. `text` needs no JSON escapes."""
        if number < self.request.output_tokens:
            end = self._middle + self._usage_field(number) + "}\n\n"
        else:
            fingerprint = "" if self.request.include_usage else f',"system_fingerprint":"{FINGERPRINT}"'
            end = self._last + self._usage_field(number) + fingerprint + "}\n\n"
        return (self._chunk + self._before + text + self._after + end).encode()

    def around(self) -> tuple[bytes, bytes, int] | None:
        """What stands before and after a token's text in every event but the last, and its length; None where each
        event tells its own usage."""
        if self.request.continuous_usage:
            return None
        head, tail = (self._chunk + self._before).encode(), (self._after + self._middle + "}\n\n").encode()
        return head, tail, len(head) + len(tail)

    def usage(self, cached: int | None = None) -> bytes:
        """The event with empty choices that tells the totals; `cached` prompt tokens only where they are known."""
        total = _counts(self.request.prompt_tokens, self.request.output_tokens)
        details = "" if cached is None else f',"prompt_tokens_details":{{"cached_tokens":{cached}}}'
        return f'{self._chunk}[],"usage":{{{total}{details}}},"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()

    def whole(self, text: str, cached: int | None = None) -> bytes:
        """The answer to a request without `stream`."""
        request = self.request
        choice: dict[str, Any] = {"index": 0}
        if request.kind == "chat":
            blank = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            choice["message"] = {"role": "assistant", "content": text, **blank}
        else:
            choice["text"] = text
        choice |= {"logprobs": None, "finish_reason": request.finish_reason, "stop_reason": None, "token_ids": None}
        total = _counts(request.prompt_tokens, request.output_tokens)
        details = "null" if cached is None else f'{{"cached_tokens":{cached}}}'
        return (
            self._whole
            + f'[{dumps(choice).decode()}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}",'
            + f'"usage":{{{total},"prompt_tokens_details":{details},"completion_tokens_details":null}}}}'
        ).encode()

    def _usage_field(self, tokens: int) -> str:
        if not self.request.continuous_usage:
            return ""
        return f',"usage":{{{_counts(self.request.prompt_tokens, tokens)},"completion_tokens_details":null}}'


def models(model: str, context_length: int, created: int) -> bytes:
    """The answer to GET /v1/models."""
    entry = {
        "id": model,
        "object": "model",
        "created": created,
        "owned_by": "loadgen-simulator",
        "root": model,
        "parent": None,
        "max_model_len": context_length,
    }
    return dumps({"object": "list", "data": [entry]})


def dumps(obj: Any) -> bytes:
    return json.dumps(obj, ensure_ascii=False, separators=(",", ":")).encode()


def _counts(prompt: int, completion: int) -> str:
    return f'"prompt_tokens":{prompt},"total_tokens":{prompt + completion},"completion_tokens":{completion}'


def _body(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)  # refuses what cannot be answered: half a surrogate pair, endless nesting
    except ValueError as error:
        at = getattr(error, "pos", 0)
        message = f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.{at}', 'msg': 'JSON decode error'}}"
        raise ApiError(400, message, f"body.{at}", "Bad Request") from error
    if not isinstance(body, dict):
        raise ApiError(400, "1 validation error:\n  the body must be a JSON object", "body", "Bad Request")
    return body


def _chat_tokens(body: dict[str, Any]) -> int:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _bad("messages", "must be a list of at least one message", messages)
    total = 0
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _bad("messages", "must hold objects with a role", message)
        content = _content(message)
        if not isinstance(content, str):
            raise _bad("messages", "must have text as content", content)
        total += TOKENS_PER_MESSAGE + count_tokens(content)
    return total


def _content(message: dict[str, Any]) -> Any:
    content = message.get("content") or ""
    if isinstance(content, list):
        content = " ".join(_shown(part.get("text", "")) for part in content if isinstance(part, dict))
    return content


def _sole_prompt(body: dict[str, Any]) -> Any:
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    return prompt


def _prompt_tokens(body: dict[str, Any]) -> int:
    prompt = _sole_prompt(body)
    if isinstance(prompt, str) and prompt:
        return max(1, count_tokens(prompt))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return len(prompt)
    raise _bad("prompt", "must be one text or one list of token ids, not empty", prompt)


def _pieces(kind: Kind, body: dict[str, Any]) -> list[str | int]:
    """The prompt's tokens, one piece each, of a body that was checked."""
    if kind == "completions":
        prompt = _sole_prompt(body)
        return prompt if isinstance(prompt, list) else _words(prompt)
    pieces: list[str | int] = []
    for message in body["messages"]:
        pieces += [message["role"]] * TOKENS_PER_MESSAGE + _words(_content(message))
    return pieces


def _words(text: str) -> list[str | int]:
    pieces: list[str | int] = []
    for word in text.split():
        pieces += [word] if len(word) <= SHORT_WORD else [word, word]
    return pieces


def _flag(body: dict[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _bad(name, "must be a boolean", value)
    return bool(value)


def _integer(body: dict[str, Any], name: str, lowest: int) -> int | None:
    value = _number(body, name, lowest)
    if value is not None and not isinstance(value, int):
        raise _bad(name, "must be an integer", value)
    return value


def _number(body: dict[str, Any], name: str, lowest: float) -> float | int | None:
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _bad(name, "must be a number", value)
    if value < lowest:
        raise _bad(name, f"must be at least {lowest}", value)
    return value


def _bad(param: str, problem: str, value: Any) -> ApiError:
    shown = _shown(value)[:80]
    return ApiError(400, f"{param} {problem}, got {shown}. (parameter={param}, value={shown})", param)


def _shown(value: Any) -> str:
    try:
        return str(value)
    except RecursionError:
        return "a value nested too deeply"
