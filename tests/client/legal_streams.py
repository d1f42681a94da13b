"""Random legal streams: what the formats allow and servers send, in every spelling. Seeded, and cheap enough for tens
of thousands.

A stream has a server's habits (one order of keys, one line ending, …), so that its deltas repeat one form and the fast
paths are met, and now and then an event breaks them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from random import Random
from typing import Any

from tests.client.spelling import Habits

ENDPOINTS = ("chat", "chat", "chat", "completions", "generate_stream", "responses", "ollama_chat", "ollama_generate")
WORDS = [
    *(
        "a",
        " ",
        " b",
        "\n",
        "\t",
        "0",
        'say "hi"',
        "\\",
        "/",
        "</s>",
        "data: x",
        "[DONE]",
        "error",
        "null",
        "{}",
        "\x7f",
    ),
    *(
        "é",
        "汉字",
        "\u2028",
        "\u2029",
        "\u0085",
        "\ufeff",
        "\x0b\x0c",
        "\x00",
        "🙂",
        "👩‍👩‍👧",
        "e\u0301",
        "\u202e",
        "\uffff",
    ),
    *("\ud83d", "x\udc00y", "\\ud83d", "data: [DONE]\n\n", '"}}]}', "\r\n\r\n", "�"),
]
FINISHES = ["stop", "stop", "length", "tool_calls", "content_filter", "eos_token", "stop_sequence", "function_call"]


@dataclass
class Stream:
    """A body with what was meant by it: the text of its output events in order, and where each block (an event, or
    lines that are none) ends."""

    endpoint: str
    body: bytes
    ends: list[int]
    texts: list[str] = field(default_factory=list)  # one for each output event
    tail: str = "done"  # how it ends

    @classmethod
    def of(cls, endpoint: str, blocks: list[bytes], texts: list[str] | None = None, tail: str = "") -> Stream:
        return cls(endpoint, b"".join(blocks), list(accumulate(map(len, blocks))), texts or [], tail)


def random_text(r: Random) -> str:
    size = r.random()
    if size < 0.01:
        return r.choice(["x", "汉", "🙂", "\\"]) * r.choice([700, 2100, 70_000 if size < 0.002 else 900])
    if size < 0.75:
        return r.choice(WORDS)
    return "".join(r.choice(WORDS) for _ in range(r.randrange(2, 5)))


def legal_stream(r: Random, endpoint: str | None = None) -> Stream:
    endpoint = endpoint or r.choice(ENDPOINTS)
    own = {"generate_stream": _tgi, "responses": _responses, "ollama_chat": _ollama, "ollama_generate": _ollama}
    make = own.get(endpoint, _openai)
    return make(r, endpoint)


# --- chat and text completions ----------------------------------------------------------------------------------------


class _Usage:
    """The counts so far, and how the server reports them."""

    def __init__(self, r: Random) -> None:
        self.r = r
        self.prompt, self.completion = r.choice([0, 7, 7, 1000]), 0
        self.pair = r.choice([("prompt_tokens", "completion_tokens")] * 3 + [("input_tokens", "output_tokens")])
        self.more = r.choice(
            [
                {},
                {"prompt_tokens_details": None, "completion_tokens_details": None},
                {"prompt_tokens_details": {"cached_tokens": r.choice([0, 5, None])}},
                {"input_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2}},
                {"prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 3},
            ]
        )

    def told(self, lacks: bool = False) -> dict[str, Any]:
        prompt, completion = self.pair
        told: dict[str, Any] = {prompt: self.prompt, "total_tokens": self.prompt + self.completion}
        told[completion] = self.completion
        if lacks:
            told.pop(self.r.choice([prompt, completion, "total_tokens"]))
        return {**told, **self.more}


def _openai(r: Random, endpoint: str) -> Stream:
    habits, usage = Habits(r), _Usage(r)
    blocks: list[bytes] = [b"\xef\xbb\xbf"] if r.random() < 0.1 else []
    texts: list[str] = []
    more = {key: r.choice([value, None]) for key, value in EXTRAS.items() if r.random() < 0.3}
    usage_key = r.choice(["usage", "usage", "usage", "x_groq", "choice", "delta"]) if r.random() < 0.5 else "usage"
    continuous = r.random() < 0.35
    null_usage = r.random() < 0.3
    null_finish = r.random() < 0.6
    choices = r.choice([1, 1, 1, 1, 2, 3])
    with_index = choices > 1 or r.random() < 0.8
    with_ids = r.random() < 0.15
    nulls = {key: None for key in ("role", "content", "reasoning_content", "tool_calls", "refusal") if r.random() < 0.2}
    choice_more = {key: r.choice([value, None]) for key, value in CHOICE_EXTRAS.items() if r.random() < 0.3}
    with_error_null = r.random() < 0.1
    speak = _speech(r, endpoint)

    def envelope(listed: list[dict[str, Any]], told: dict[str, Any] | None = None) -> dict[str, Any]:
        value: dict[str, Any] = {**more, "choices": listed}
        if told is not None and usage_key == "x_groq":
            value["x_groq"] = {"id": "q", "usage": told}
        elif told is not None and usage_key in ("choice", "delta") and listed:
            where = listed[-1] if usage_key == "choice" else listed[-1].get("delta", listed[-1])
            where["usage"] = told
        elif told is not None:
            value["usage"] = told
        elif null_usage:
            value["usage"] = None
        if with_error_null:
            value["error"] = None
        return value

    def choice(index: int, said: dict[str, Any], finish: str | None = None, ids: int | None = None) -> dict[str, Any]:
        value: dict[str, Any] = {"index": index} if with_index else {}
        if endpoint == "completions":
            value |= {"text": said.get("content") or ""}
        else:
            value["delta"] = {**nulls, **said}
        if finish is not None or null_finish:
            value["finish_reason"] = finish
        if ids is not None:
            value["token_ids"] = list(range(ids))
        return {**value, **choice_more}

    def usage_alone() -> bytes:
        value = envelope([], usage.told(r.random() < 0.1))
        shape = r.random()
        if shape < 0.25:
            value["choices"] = None
        elif shape < 0.5 and (usage_key == "x_groq" or "usage" in value):
            del value["choices"]
        return habits.event(habits.json(value))

    if r.random() < 0.1:
        blocks.append(usage_alone())
    if endpoint == "chat" and r.random() < 0.7:
        for index in range(choices):
            role = {"role": "assistant", "content": r.choice(["", None])}
            blocks.append(
                habits.event(habits.json(envelope([choice(index, role)], usage.told() if continuous else None)))
            )
    length = r.choice([0, 1, 2, 5, 12, 25])
    joined = False  # did a choice's last delta say that it ended?
    for n in range(length):
        if r.random() < habits.noise:
            blocks.append(habits.between())
        if r.random() < 0.03:
            blocks.append(usage_alone())
        if r.random() < 0.05:
            blocks.append(habits.event(habits.json(envelope([choice(0, r.choice([{}, {"content": ""}]))]))))
        together = choices > 1 and r.random() < 0.2
        listed = []
        text = ""
        for index in range(choices) if together else [n % choices]:
            said, words = speak(n)
            step = r.choice([1, 1, 1, 1, 0, 2, 5])
            usage.completion += step
            text += words
            last = n == length - 1 and choices == 1 and r.random() < 0.3
            joined = joined or last
            listed.append(choice(index, said, r.choice(FINISHES) if last else None, step if with_ids else None))
        if text:
            texts.append(text)
        blocks.append(habits.event(habits.json(envelope(listed, usage.told() if continuous else None))))
    ended = r.choice(["done", "done", "done", "done", "no blank", "no line", "finish", "finish", "cut", "error"])
    if ended == "error":
        blocks.append(_error(r, habits))
        if r.random() < 0.5:
            blocks.append(habits.event("[DONE]"))
        return Stream.of(endpoint, blocks, texts, ended)
    if not joined and (ended == "finish" or r.random() < 0.8):
        if choices > 1 and r.random() < 0.3:
            blocks.append(habits.event(habits.json(envelope([choice(k, {}, "stop") for k in range(choices)]))))
        else:
            for index in range(choices):
                if ended == "cut" and index == choices - 1:
                    break
                told = usage.told() if continuous or r.random() < 0.1 else None
                blocks.append(habits.event(habits.json(envelope([choice(index, {}, r.choice(FINISHES))], told))))
    if r.random() < 0.6:
        blocks += [usage_alone() for _ in range(r.choice([1, 1, 1, 2]))]
    if ended in ("done", "no blank", "no line"):
        done = r.choice(["[DONE]", "[DONE]", " [DONE]", "[DONE] ", "  [DONE]\t"])
        last_block = habits.event(done, blank=ended == "done")
        blocks.append(last_block.rstrip(b"\r\n") if ended == "no line" else last_block)
        if ended == "done" and r.random() < 0.1:
            blocks.append(habits.event(habits.json(envelope([choice(0, {"content": "late"})]))))
    return Stream.of(endpoint, blocks, texts, ended)


def _speech(r: Random, endpoint: str) -> Callable[[int], tuple[dict[str, Any], str]]:
    """What one delta says, and the words in it."""
    kinds = ["content"] if endpoint == "completions" else r.choice(
        [["content"], ["content"], ["reasoning_content", "content"], ["reasoning", "content"], ["both", "content"],
         ["tool"], ["content", "tool"], ["refusal"], ["function_call"], ["parts"]]
    )  # fmt: skip
    turn = r.choice([3, 6, 100])
    mixed = endpoint == "chat" and r.random() < 0.05
    lag = r.choice([0.0, 0.0, 0.1, 0.6])  # tokens whose text comes later

    def speak(n: int) -> tuple[dict[str, Any], str]:
        kind = kinds[min(n // turn, len(kinds) - 1)]
        text = "" if r.random() < lag else random_text(r)
        if kind == "both":
            return {"reasoning_content": text, "reasoning": text}, text
        if kind == "tool":
            which = r.choice([0, 0, 1])
            if r.random() < 0.3:
                function, words = {"name": "f", "arguments": ""}, "f"
            else:
                function, words = {"arguments": text}, text
            return {
                "tool_calls": [{"index": which, "id": r.choice(["c", None]), "type": "function", "function": function}]
            }, words
        if kind == "function_call":
            return {"function_call": {"arguments": text}}, text
        if kind == "parts":
            return {"content": [{"type": "text", "text": text}]}, text
        if mixed and kind == "content":
            return {"reasoning": "t", "content": text}, "t" + text
        return {kind: text}, text

    return speak


EXTRAS: dict[str, Any] = {
    "id": "r-1",
    "object": "chat.completion.chunk",
    "created": 1_700_000_000,
    "model": "m",
    "system_fingerprint": "fp",
    "service_tier": "default",
    "prompt_filter_results": [],
    "timings": {"predicted_per_second": 51.25, "predicted_n": 3},
    "obfuscation": "xyz",
    "provider": {"name": "p", "choices": [{"delta": {"content": "not this"}}], "usage": {"completion_tokens": 999}},
}
CHOICE_EXTRAS: dict[str, Any] = {
    "logprobs": {"content": [{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}], "text": ["no"]},
    "stop_reason": 128009,
    "content_filter_results": {"hate": {"filtered": False, "severity": "safe"}},
    "matched_stop": None,
    "native_finish_reason": "STOP",
    "prompt_token_ids": [1, 2, 3],
}


def _error(r: Random, habits: Habits) -> bytes:
    """An error in the middle of a stream, as servers write it."""
    words = r.choice(["out of memory", "EngineCore encountered an issue.", 'a "quoted" 汉'])
    value: Any = r.choice(
        [
            {"error": {"message": words, "type": "InternalServerError", "param": None, "code": 500}},
            {"error": {"message": words, "type": "server_error", "code": None}, "choices": []},
            {"error": words},
            {"error": words, "error_type": "overloaded"},
            {"object": "error", "message": words, "type": "BadRequestError", "param": None, "code": 400},
            {"detail": words},
        ]
    )
    how = r.random()
    if how < 0.2:  # llama.cpp's own field
        line = "error: " + json.dumps({"code": 400, "message": words, "type": "invalid_request_error"})
        return "".join(map(habits.line, [line, ""])).encode()
    return habits.event(habits.json(value), "error" if how < 0.4 else None)


# --- TGI --------------------------------------------------------------------------------------------------------------


def _tgi(r: Random, endpoint: str) -> Stream:
    habits = Habits(r)
    habits.prefix = r.choice(["data:", "data:", "data: "])
    blocks: list[bytes] = []
    texts: list[str] = []
    length = r.choice([0, 1, 2, 5, 12, 25])
    with_index = r.random() < 0.7
    ended = r.choice(["finish", "finish", "finish", "cut", "error"])
    whole = ""
    for n in range(length):
        special = r.random() < 0.05
        text = random_text(r)
        whole += "" if special else text
        token = {"id": n, "text": text, "logprob": -0.25, "special": special}
        value: dict[str, Any] = {"index": n + 1} if with_index else {}
        value |= {"token": token, "generated_text": None, "details": None}
        if n == length - 1 and ended == "finish":
            details: dict[str, Any] = {"finish_reason": r.choice(["length", "eos_token", "stop_sequence"])}
            details |= {"generated_tokens": length, "seed": None, "input_length": r.choice([7, None])}
            value |= {"generated_text": whole, "details": r.choice([details, details, None])}
        if r.random() < habits.noise:
            blocks.append(habits.between())
        blocks.append(habits.event(habits.json(value)))
        texts.append("" if special else text)
    if ended == "error":
        error = r.choice(
            [
                {"error": "overloaded", "error_type": "overloaded"},
                {"error": "Request failed", "error_type": "generation"},
            ]
        )
        blocks.append(habits.event(habits.json(error), r.choice([None, "error"])))
    return Stream.of(endpoint, blocks, texts, ended)


# --- Responses API ----------------------------------------------------------------------------------------------------


def _responses(r: Random, endpoint: str) -> Stream:
    """Items of each kind, each opened, said in deltas and closed, between the response's own events."""
    habits = Habits(r)
    blocks: list[bytes] = []
    texts: list[str] = []
    named, usage = r.random() < 0.8, _Usage(r)
    usage.pair = ("input_tokens", "output_tokens")
    whole: dict[str, Any] = {
        "id": "resp_1",
        "object": "response",
        "model": "m",
        "output": [],
        "usage": None,
        "error": None,
    }

    def say(kind: str, **fields: Any) -> None:
        value = {"type": kind, "sequence_number": len(blocks), **fields}
        if r.random() < habits.noise:
            blocks.append(habits.between())
        blocks.append(habits.event(habits.json(value), kind if named else None))

    for kind in ["created", "in_progress"][: r.choice([0, 1, 2, 2])]:
        say(f"response.{kind}", response={**whole, "status": "in_progress"})
    for place in range(r.choice([0, 1, 1, 2, 3])):
        kind = r.choice(["output_text", "output_text", "reasoning_text", "reasoning_summary_text", "refusal", "call"])
        ids: dict[str, Any] = {"item_id": f"i{place}", "output_index": place}
        if kind == "call":
            item: dict[str, Any] = {"type": "function_call", "name": "f", "arguments": "", "call_id": "c"}
            texts.append("f")
            kind = "function_call_arguments"
        else:
            item = {"type": "reasoning" if "reasoning" in kind else "message", "content": [], "role": "assistant"}
        say("response.output_item.added", output_index=place, item={**item, "status": "in_progress"})
        said = ""
        for _ in range(r.choice([1, 5, 20])):
            text = r.choice(["", random_text(r)]) if r.random() < 0.1 else random_text(r)
            texts += [text] if text else []
            said += text
            usage.completion += 1
            more = {"logprobs": [], "obfuscation": "q"} if kind == "output_text" and r.random() < 0.5 else {}
            say(f"response.{kind}.delta", **ids, content_index=0, delta=text, **more)
        key = "arguments" if "call" in kind else "text"
        say(f"response.{kind}.done", **ids, **{key: said})
        done = {**item, "arguments": said} if "call" in kind else {**item, "content": [{"type": kind, "text": said}]}
        say("response.output_item.done", output_index=place, item={**done, "status": "completed"})
        whole["output"] = [*whole["output"], done]
    tail = r.choice(["done", "done", "done", "length", "failed", "error", "cut"])
    whole["usage"] = usage.told() if r.random() < 0.9 else None
    if tail == "done":
        say("response.completed", response={**whole, "status": "completed"})
    elif tail == "length":
        why = {"reason": "max_output_tokens"}
        say("response.incomplete", response={**whole, "status": "incomplete", "incomplete_details": why})
    elif tail == "failed":
        error = {"code": "server_error", "message": "no"}
        say("response.failed", response={**whole, "status": "failed", "error": r.choice([error, error, None])})
    elif tail == "error":
        say("error", code="server_error", message="no", param=None)
    if tail in ("done", "length") and r.random() < 0.2:
        blocks.append(habits.event("[DONE]"))
    tail = {"length": "done", "failed": "error"}.get(tail, tail)
    return Stream.of(endpoint, blocks, texts, tail)


# --- Ollama ---------------------------------------------------------------------------------------------------------


def _ollama(r: Random, endpoint: str) -> Stream:
    """One JSON value a line; the last one says `done`, and has the counts."""
    habits = Habits(r)
    habits.gap, habits.colon = r.choice([("", ""), (" ", " "), ("\t", " ")])
    ends = r.choice([["\n"], ["\n"], ["\r\n"], ["\n", "\r\n", " \n"]])
    blocks: list[bytes] = [b"\xef\xbb\xbf"] if r.random() < 0.1 else []
    texts: list[str] = []
    more = {"model": "m", "created_at": "2024-01-01T00:00:00.5Z", "remote_host": None}
    more = {key: value for key, value in more.items() if r.random() < 0.7}
    thinks = r.choice([0, 0, 3])
    calls = endpoint == "ollama_chat" and r.random() < 0.2
    nulls = {key: None for key in ("thinking", "images", "tool_calls", "tool_name") if r.random() < 0.1}

    def say(**fields: Any) -> None:
        if r.random() < habits.noise:
            blocks.append(r.choice(ends).encode())
        blocks.append((habits.json({**more, **fields}) + r.choice(ends)).encode())

    def said(text: str, thinking: bool) -> dict[str, Any]:
        if endpoint == "ollama_generate":
            return {"response": "", "thinking": text} if thinking else {"response": text}
        words = {"content": "", "thinking": text} if thinking else {**nulls, "content": text}
        return {"message": {"role": "assistant", **words}}

    length = r.choice([0, 1, 2, 5, 12, 25])
    for n in range(length):
        text = "" if r.random() < 0.1 else random_text(r)
        texts += [text] if text else []
        say(**said(text, n < thinks), done=False)
    if calls:
        function = {"name": "f", "arguments": r.choice([{}, {"city": "Paris"}])}
        say(message={"role": "assistant", "content": "", "tool_calls": [{"function": function}]}, done=False)
        texts.append("f" + (json.dumps(function["arguments"], separators=(",", ":")) if function["arguments"] else ""))
    tail = r.choice(["done", "done", "done", "no line", "cut", "error"])
    if tail == "error":
        say(error=r.choice(["an error was encountered while running the model", 'a "quoted" 汉']))
    elif tail != "cut":
        counts = {"prompt_eval_count": r.choice([7, 1000]), "eval_count": max(1, len(texts))}
        counts = {key: value for key, value in counts.items() if r.random() < 0.9}
        last = said("", False) if r.random() < 0.8 else {}
        reason = r.choice([{"done_reason": "stop"}, {"done_reason": "length"}, {}])
        say(**last, done=True, **reason, **counts, total_duration=4883583458, eval_duration=None)
        if tail == "no line":
            blocks[-1] = blocks[-1].rstrip(b" \r\n")
    return Stream.of(endpoint, blocks, texts, tail)


# --- delivery ---------------------------------------------------------------------------------------------------------


def cuts_of(r: Random, stream: Stream) -> list[int]:
    """Where the body is cut: at its events, anywhere, everywhere, nowhere."""
    size = len(stream.body)
    how = r.random()
    if how < 0.4:
        return stream.ends
    if how < 0.5:
        return list(range(1, min(size, 2000)))
    if how < 0.55:
        return []
    anywhere = [r.randrange(1, size) for _ in range(r.choice([1, 3, 10, 40]))] if size > 1 else []
    if how < 0.7:
        return sorted({*anywhere, *(end for end in stream.ends if r.random() < 0.7)})
    return sorted(anywhere)
