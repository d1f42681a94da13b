"""What one event of a stream carries, read once more from the formats' own descriptions. Shares no code with the
client."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Row:
    """What one event carries. `read` is the index of the read that completed it."""

    read: int
    malformed: bool = False
    ignored: bool = False
    done: bool = False
    error: tuple[str, str, Any] | None = None
    text: str = ""
    calls: list[tuple[int, int, str, str]] = field(default_factory=list)  # choice, index, name, arguments
    output: bool = False
    content: bool = False
    choices: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    finish: str | None = None
    usage: tuple[int | None, int | None, int | None] | None = None  # prompt, completion, cached
    ids: int | None = None
    id: str | None = None
    late_ns: int = 0

    @property
    def last(self) -> bool:
        """Nothing that follows counts."""
        return self.done or self.error is not None


def text_in(value: Any) -> str:
    return value if isinstance(value, str) else ""


def count_in(value: Any, *keys: str) -> int | None:
    """The first of these keys that holds a whole number that can be a count."""
    for key in keys:
        number = value.get(key)
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        if number != number or number in (float("inf"), float("-inf")) or number != int(number):
            continue
        if 0 <= number < 2**53:
            return int(number)
    return None


def code_in(value: Any) -> Any:
    for key in ("code", "status_code", "status", "error_type", "type"):
        code = value.get(key)
        if (isinstance(code, int) and not isinstance(code, bool)) or (
            isinstance(code, str) and code not in ("", "error")
        ):
            return code
    return None


def server_error(error: Any, around: dict[str, Any]) -> tuple[str, str, Any]:
    message, code = "", None
    if isinstance(error, dict):
        for key in ("message", "detail", "msg"):
            message = message or text_in(error.get(key))
        code = code_in(error)
    elif isinstance(error, str):
        message = error
    if code is None:
        code = code_in(around)
    if not message:
        message = "the server sent an error without a message"
        if error:
            message = json.dumps(error, ensure_ascii=False, separators=(",", ":"))
    return "server", message[:2000], code


def error_in(value: dict[str, Any], known: bool) -> tuple[str, str, Any] | None:
    if value.get("error"):
        return server_error(value["error"], value)
    if value.get("object") == "error" or value.get("type") == "error":
        return server_error(value, value)
    if not known and value.get("detail"):
        return server_error(value["detail"], value)
    status = count_in(value, "status_code", "status", "code")
    if not known and text_in(value.get("message")) and status is not None and status >= 400:
        return server_error(value, value)
    return None


def usage_in(value: Any) -> tuple[int | None, int | None, int | None] | None:
    if not isinstance(value, dict):
        return None
    prompt = count_in(value, "prompt_tokens", "input_tokens")
    completion = count_in(value, "completion_tokens", "output_tokens")
    if prompt is None and completion is None:
        return None
    cached = count_in(value, "prompt_cache_hit_tokens")
    for key in ("prompt_tokens_details", "input_tokens_details"):
        if cached is None and isinstance(value.get(key), dict):
            cached = count_in(value[key], "cached_tokens")
    return prompt, completion, cached


def speech_in(delta: dict[str, Any]) -> list[tuple[str, str]]:
    """What a delta says, as (kind, text): reasoning, content, text, refusal, tool."""
    said: list[tuple[str, str]] = []
    reasoning = text_in(delta.get("reasoning_content")) or text_in(delta.get("reasoning"))
    said.append(("reasoning", reasoning))
    for key in ("content", "text", "refusal"):
        value = delta.get(key)
        if isinstance(value, list):
            for part in value:
                part = {"text": part} if isinstance(part, str) else part
                if isinstance(part, dict):
                    thought = part.get("type") in ("thinking", "reasoning", "reasoning_text")
                    kind = "reasoning" if thought else key
                    said += [(kind, text_in(part.get(name))) for name in ("text", "thinking", "refusal")]
        else:
            said.append((key, text_in(value)))
    return [(kind, text) for kind, text in said if text]


def calls_in(delta: dict[str, Any]) -> list[tuple[int, str, str]]:
    """What a delta adds to tool calls: (index, name, arguments)."""
    found = []
    calls = delta.get("tool_calls")
    if isinstance(calls, list):
        for place, call in enumerate(calls):
            if isinstance(call, dict):
                index = count_in(call, "index")
                found.append(
                    (place if index is None else index, call["function"] if "function" in call else call.get("custom"))
                )
    found.append((0, delta.get("function_call")))
    parts = []
    for index, function in found:
        if isinstance(function, dict):
            said = {}
            for key in ("name", "arguments", "input"):
                value = function.get(key)
                if isinstance(value, dict) and value:
                    value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
                said[key] = text_in(value)
            if any(said.values()):
                parts.append((index, said["name"], said["arguments"] + said["input"]))
    return parts


def finish_in(choice: dict[str, Any]) -> str | None:
    reason = choice.get("finish_reason")
    if isinstance(reason, dict):
        reason = reason.get("type")
    return text_in(reason) or None


def openai_row(value: Any, row: Row) -> None:
    """An event of chat or text completions."""
    if not isinstance(value, dict):
        row.ignored = True
        return
    row.id = text_in(value.get("id")) or None
    row.usage = usage_in(value.get("usage"))
    if row.usage is None and isinstance(value.get("x_groq"), dict):
        row.usage = usage_in(value["x_groq"].get("usage"))
    known = row.usage is not None
    choices = value.get("choices", "missing")
    if choices is None or choices == []:
        known = True
    for place, choice in enumerate(choices if isinstance(choices, list) else []):
        if not isinstance(choice, dict):
            continue
        known = True
        index = count_in(choice, "index")
        index = place if index is None else index
        row.choices.append(index)
        delta: Any = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if not isinstance(delta, dict):
            delta = {}
        said = speech_in(delta)
        called = calls_in(delta)
        row.calls += [(index, *part) for part in called]
        if called:
            row.output = row.content = True
        if not said and not called and text_in(choice.get("text")):
            said = [("content", choice["text"])]
        for kind, text in said:
            row.output = True
            row.content = row.content or kind != "reasoning"
            row.text += text
        ids = choice.get("token_ids")
        if ids is None:
            ids = delta.get("token_ids")
        if isinstance(ids, list):
            row.ids = (row.ids or 0) + len(ids)
        reason = finish_in(choice)
        if reason:
            row.finish = row.finish or reason
            row.finished.append(index)
        if isinstance(choice.get("error"), dict | str) and choice["error"]:
            row.error = server_error(choice["error"], choice)
        row.usage = usage_in(choice.get("usage")) or usage_in(delta.get("usage")) or row.usage
    row.error = error_in(value, known) or row.error
    if row.error is None and row.finish in ("error", "abort"):
        row.error = ("server", f"the server ended the answer with finish_reason {row.finish!r}", None)
    row.ignored = not known and row.error is None


def tgi_row(value: Any, row: Row) -> None:
    """An event of TGI's /generate_stream."""
    if not isinstance(value, dict):
        row.ignored = True
        return
    if value.get("error"):
        row.error = server_error(value["error"], value)
        return
    token, details = value.get("token"), value.get("details")
    row.ignored = not isinstance(token, dict) and not isinstance(details, dict)
    if isinstance(token, dict):
        row.output = row.content = True
        row.text = "" if token.get("special") else text_in(token.get("text"))
        row.ids = 1
        row.choices = [0]
    if isinstance(details, dict):
        row.choices = [0]
        row.finish = text_in(details.get("finish_reason")) or None
        if count_in(details, "generated_tokens") is not None:
            row.usage = (count_in(details, "input_length"), count_in(details, "generated_tokens"), None)
    elif isinstance(value.get("generated_text"), str):
        row.finish = "stop"
    if row.finish is not None:
        row.finished = [0]


def responses_row(name: str, value: Any, row: Row) -> None:
    """An event of the Responses API."""
    if not isinstance(value, dict):
        row.ignored = True
        return
    kind = text_in(value.get("type")) or name
    place = count_in(value, "output_index") or 0
    if kind.startswith("response.") and kind.endswith("delta"):
        said = text_in(value.get("delta"))
        row.choices = [0]
        row.output = said != ""
        row.content = row.output and "reasoning" not in kind
        if kind in ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta"):
            row.calls = [(0, place, "", said)] if said else []
        else:
            row.text = said
    elif kind == "response.output_item.added":
        item = value.get("item")
        if isinstance(item, dict) and text_in(item.get("type")).endswith("call"):
            row.calls = [(0, place, part, more) for _, part, more in calls_in({"function_call": item})]
            row.output = row.content = bool(row.calls)
            row.choices = [0] if row.calls else []
    elif isinstance(value.get("response"), dict):
        response = value["response"]
        row.id = text_in(response.get("id")) or None
        row.usage = usage_in(response.get("usage"))
        status = text_in(response.get("status"))
        if response.get("error"):
            row.error = server_error(response["error"], {})
        elif status in ("failed", "cancelled"):
            row.error = ("server", f"the server ended the answer with status {status!r}", None)
        elif status in ("completed", "incomplete"):
            reason = text_in((response.get("incomplete_details") or {}).get("reason"))
            called = any(text_in(item.get("type")).endswith("call") for item in response.get("output") or [])
            row.finish = "length" if reason == "max_output_tokens" else reason or ("tool_calls" if called else "stop")
            row.done, row.choices, row.finished = True, [0], [0]
    elif kind == "error" or value.get("error"):
        row.error = server_error(value.get("error") or value, value)
    else:
        row.ignored = not kind.startswith("response.")


def ollama_row(value: Any, row: Row) -> None:
    """A line of Ollama's own API, of /api/chat or /api/generate."""
    if not isinstance(value, dict):
        row.ignored = True
        return
    if value.get("error"):
        row.error = server_error(value["error"], value)
        return
    message = value.get("message")
    row.ignored = not isinstance(message, dict) and "response" not in value and "done" not in value
    row.choices = [0]
    said = (
        message if isinstance(message, dict) else {"content": value.get("response"), "thinking": value.get("thinking")}
    )
    for kind, text in speech_in({**said, "reasoning": said.get("thinking", said.get("reasoning"))}):
        row.output = True
        row.content = row.content or kind != "reasoning"
        row.text += text
    row.calls = [(0, *part) for part in calls_in(said)]
    if row.calls:
        row.output = row.content = True
    if value.get("done") is True:
        row.done, row.finish, row.finished = True, text_in(value.get("done_reason")) or "stop", [0]
        counts = count_in(value, "prompt_eval_count"), count_in(value, "eval_count")
        row.usage = None if counts == (None, None) else (*counts, None)


def row_of(endpoint: str, name: str, data: bytes, read: int) -> Row:
    row = Row(read)
    stripped = data.strip()
    if name == "error":
        value: Any = None
        try:
            value = json.loads(stripped.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            value = stripped.decode("utf-8", "replace")
        if isinstance(value, dict):
            row.error = error_in(value, False) or server_error(value, value)
        else:
            row.error = server_error(value, {})
    elif stripped == b"[DONE]" and not endpoint.startswith("ollama"):
        row.done = True
    elif not stripped and endpoint != "generate_stream":
        row.ignored = True
    else:
        try:
            value = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            row.malformed = True
        else:
            if endpoint == "responses":
                responses_row(name, value, row)
            elif endpoint.startswith("ollama"):
                ollama_row(value, row)
            else:
                (tgi_row if endpoint == "generate_stream" else openai_row)(value, row)
    return row
