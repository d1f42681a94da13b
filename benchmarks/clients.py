"""Two reference clients as people write them: httpx (`aiter_lines` + orjson) and aiohttp (content lines).

    python benchmarks/clients.py httpx|aiohttp URL --streams 64 --requests 640 --tokens 64 --warmup 64

A closed loop; the stamp of an event is taken when its line reaches the task, as the field's tools take it. One JSON
object on stdout: mean, median and p99 in ms, and per request its id, TTFT and gaps.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import orjson

Send = Callable[[bytes], Awaitable["Answer"]]
HEADERS = {"content-type": "application/json"}


class Answer:
    """Stamps of one request on the monotonic clock, in ns."""

    __slots__ = ("id", "sent", "stamps")

    def __init__(self) -> None:
        self.id = ""
        self.sent = time.perf_counter_ns()
        self.stamps: list[int] = []

    def line(self, line: bytes | str) -> None:
        now = time.perf_counter_ns()
        data = line[5:].strip()
        if line[:5] not in (b"data:", "data:") or data in (b"[DONE]", "[DONE]"):
            return
        event = orjson.loads(data)
        choices = event["choices"]
        if choices and choices[0]["delta"].get("content"):
            self.stamps.append(now)
            self.id = event["id"]


async def with_httpx(url: str, streams: int, drive: Callable[[Send], Awaitable[None]]) -> None:
    import httpx

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=streams)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as client:

        async def send(body: bytes) -> Answer:
            answer = Answer()
            async with client.stream("POST", url, content=body, headers=HEADERS) as response:
                response.raise_for_status()
                async for line in response.aiter_lines():
                    answer.line(line)
            return answer

        await drive(send)


async def with_aiohttp(url: str, streams: int, drive: Callable[[Send], Awaitable[None]]) -> None:
    import aiohttp

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def send(body: bytes) -> Answer:
            answer = Answer()
            async with session.post(url, data=body, headers=HEADERS) as response:
                response.raise_for_status()
                async for line in response.content:
                    answer.line(line)
            return answer

        await drive(send)


CLIENTS = {"httpx": with_httpx, "aiohttp": with_aiohttp}


async def measure(name: str, url: str, streams: int, requests: int, tokens: int, warmup: int) -> list[Answer]:
    """The answers of the measured requests, after `warmup` others."""
    body = orjson.dumps(
        {
            "model": "mock-model",
            "messages": [{"role": "user", "content": "word " * 50}],
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    answers: list[Answer] = []

    async def drive(send: Send) -> None:
        for phase in (warmup, requests):
            tickets = iter(range(phase))
            kept: list[Answer] = []

            async def slot(tickets: Any = tickets, kept: list[Answer] = kept) -> None:
                for _ in tickets:  # one request after the other, so no comprehension over all
                    answer = await send(body)
                    kept.append(answer)

            await asyncio.gather(*(slot() for _ in range(min(streams, phase))))
            if phase == requests:
                answers[:] = kept

    await CLIENTS[name](f"{url}/v1/chat/completions", streams, drive)
    return answers


def told(answers: list[Answer]) -> dict[str, Any]:
    """What such a tool prints, and what it knows of each request."""
    ttft = np.array([(a.stamps[0] - a.sent) / 1e6 for a in answers])
    e2e = np.array([(a.stamps[-1] - a.sent) / 1e6 for a in answers])
    gaps = [np.diff(a.stamps) / 1e6 for a in answers]
    result: dict[str, Any] = {}
    tpot = np.array([gap.mean() for gap in gaps])
    for key, values in (("ttft", ttft), ("itl", np.concatenate(gaps)), ("tpot", tpot), ("e2e", e2e)):
        result[f"{key}_mean"] = float(values.mean())
        result[f"{key}_p50"], result[f"{key}_p99"] = map(float, np.percentile(values, [50, 99]))
    result["requests"] = [
        [a.id, float(t), [round(g, 6) for g in gap.tolist()]] for a, t, gap in zip(answers, ttft, gaps, strict=True)
    ]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("client", choices=sorted(CLIENTS))
    parser.add_argument("url")
    for name, value in (("streams", 64), ("requests", 640), ("tokens", 64), ("warmup", 64)):
        parser.add_argument(f"--{name}", type=int, default=value)
    a = parser.parse_args()
    answers = asyncio.run(measure(a.client, a.url, a.streams, a.requests, a.tokens, a.warmup))
    json.dump(told(answers), sys.stdout)


if __name__ == "__main__":
    main()
