"""The server's own tokenizer, where it offers one over HTTP:

    vLLM       POST /tokenize {"model", "messages" or "prompt"}   → {"count", "tokens"}, with the chat template
    SGLang     POST /tokenize {"model", "prompt"}                 → {"count", "tokens"}
    llama.cpp  POST /tokenize {"content"}                         → {"tokens"}
    TGI        POST /tokenize {"inputs"}                          → [{"id", …}]

What it counts is not believed to be what a request's prompt counts: who uses it compares the two.
"""

from __future__ import annotations

from typing import Any

import anyio
import httpx
import orjson

from .target import Target

KINDS = ("vllm", "sglang", "llama.cpp", "tgi")
TIMEOUT_S = 5.0
MAX_BODY_BYTES = 8 << 20


class TokenizeApi:
    """Asks one server. Any answer that does not come, or is of another shape, is None."""

    def __init__(self, client: httpx.AsyncClient, target: Target, kind: str, model: str) -> None:
        self._client, self._url = client, target.at_root("/tokenize")
        self._kind, self._model, self._chat = kind, model, target.endpoint == "chat"

    @property
    def whole(self) -> bool:
        """Does it count what the server puts around a prompt's text, too?"""
        return self._kind == "vllm" or not self._chat

    async def count(self, text: str) -> int | None:
        """The tokens of a prompt of this text."""
        value = await self._post(self._body(text))
        if isinstance(value, dict) and isinstance(value.get("count"), int):
            return int(value["count"])
        tokens = _tokens(value)
        return None if tokens is None else len(tokens)

    async def ids(self, text: str) -> list[int] | None:
        """The token ids of a text alone."""
        tokens = _tokens(await self._post(self._plain(text, special=False)))
        ids = [one.get("id") if isinstance(one, dict) else one for one in tokens or ()]
        return [one for one in ids if isinstance(one, int)] or None

    def _body(self, text: str) -> dict[str, Any]:
        if self._kind == "vllm" and self._chat:
            messages = [{"role": "user", "content": text}]
            return {"model": self._model, "messages": messages, "add_generation_prompt": True}
        return self._plain(text, special=True)

    def _plain(self, text: str, *, special: bool) -> dict[str, Any]:
        if self._kind == "llama.cpp":
            return {"content": text, "add_special": special}
        if self._kind == "tgi":
            return {"inputs": text}
        return {"model": self._model, "prompt": text, "add_special_tokens": special}

    async def _post(self, body: dict[str, Any]) -> Any:
        data = bytearray()
        try:
            with anyio.fail_after(TIMEOUT_S):
                request = {"content": orjson.dumps(body), "headers": {"content-type": "application/json"}}
                async with self._client.stream("POST", self._url, **request) as response:  # type: ignore[arg-type]
                    if response.status_code != 200 or "json" not in response.headers.get("content-type", ""):
                        return None
                    async for chunk in response.aiter_bytes():
                        data += chunk
                        if len(data) > MAX_BODY_BYTES:
                            return None
            return orjson.loads(data)
        except (TimeoutError, httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError, ValueError):
            return None


def _tokens(value: Any) -> list[Any] | None:
    if isinstance(value, dict):
        value = value.get("tokens")
    return value if isinstance(value, list) else None
