"""What a whole run may still spend: a promise, whatever the server does. Pure but for the deadline's clock.

1. A request is paid for before it is sent, with the most that it can use: its output at the longest, its input as
   asked for with a margin, or, where nobody counted it, one token for each byte of it.
2. When it has ended ok, what the server says it used takes the place of that. Of any other request nobody knows how
   much the server did: it stays paid for in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import anyio
import orjson

from ..records import Prompt, Record

INPUT_MARGIN = 0.02  # made text meets the length asked for to about 1 %
TEMPLATE_TOKENS = 64  # around a text that nobody counted, until the server has told


@dataclass(slots=True)
class Budget:
    """None is no limit. `price` is per million input and output tokens; `output_limit` is the longest output of every
    request where the user's own fields name one, `choices` how many answers each request gets."""

    requests: int | None = None
    tokens: int | None = None
    deadline: float | None = None  # on anyio's clock
    cost: float | None = None
    price: tuple[float, float] = (0.0, 0.0)
    output_limit: int | None = None
    choices: int = 1
    spent: str | None = None  # the first limit met: time, requests, tokens or cost
    excess: int = 0  # input tokens, the most by which the server's count was above what was reserved
    _held: dict[str, tuple[int, int]] = field(default_factory=dict)

    def reserve(self, prompt: Prompt) -> tuple[int, int]:
        """The most input and output tokens that a request can use. An output whose length is left to the server counts
        as 0: nothing is known of it before it has ended."""
        if prompt.input_tokens is not None:
            inputs = int(prompt.input_tokens * (1 + INPUT_MARGIN))
        else:
            said = (*prompt.history, prompt.text)  # each turn with a template around it
            texts = sum(len(text.encode("utf-8", "replace")) + TEMPLATE_TOKENS for text in said)
            inputs = texts if prompt.body is None else TEMPLATE_TOKENS + len(orjson.dumps(prompt.body))
        outputs = prompt.output_tokens if self.output_limit is None else self.output_limit
        return inputs + self.excess, (outputs or 0) * max(self.choices, _choices(prompt.body or {}))

    def take(self, request_id: str, prompt: Prompt) -> bool:
        """Pay for one request, or say that it cannot be sent (and remember why)."""
        inputs, outputs = self.reserve(prompt)
        if self.spent is None:
            if self.deadline is not None and anyio.current_time() >= self.deadline:
                self.spent = "time"
            elif self.requests is not None and self.requests < 1:
                self.spent = "requests"
            elif self.tokens is not None and self.tokens < inputs + outputs:
                self.spent = "tokens"
            elif self.cost is not None and self.cost < self._cost(inputs, outputs):
                self.spent = "cost"
        if self.spent is not None:
            return False
        if self.requests is not None:
            self.requests -= 1
        self._held[request_id] = inputs, outputs
        self._pay(inputs, outputs)
        return True

    def settle(self, record: Record) -> None:
        """A request that was paid for has ended: put right what it used, as far as the server tells."""
        inputs, outputs = self._held.pop(record.id, (0, 0))
        if record.outcome != "ok":
            return
        server, counted = record.input_tokens.server, record.output_tokens
        if server is not None:
            self.excess += max(0, server - inputs)
            self._pay(server - inputs, 0)
        if counted.count is not None:
            count = counted.count
            if counted.source == "tokenizer" and record.finish_reason == "length" and outputs:
                count = outputs  # a text tokenised again often has more tokens than were generated
            elif counted.source not in ("usage", "token_ids"):
                count = max(count, outputs)
            self._pay(0, count - outputs)

    def tighten(self, requests: int | None, tokens: int | None, seconds: float) -> tuple[int | None, int | None, float]:
        """Lower what is left to a forecast's figures where it is higher or unlimited; returns what is left then. A time
        that the user gave stays: a forecast of time is the least certain. None, and infinite seconds, are unknown."""
        now = anyio.current_time()
        if requests is not None:
            self.requests = requests if self.requests is None else min(requests, self.requests)
        if tokens is not None:
            self.tokens = tokens if self.tokens is None else min(tokens, self.tokens)
        if self.deadline is None and seconds < math.inf:
            self.deadline = now + seconds
        return self.requests, self.tokens, math.inf if self.deadline is None else self.deadline - now

    def split(self, weights: Sequence[int]) -> list[Self]:
        """Hand out all that is left, in shares in proportion to the weights: what one of them spends, no other can.
        The deadline is everyone's. `rejoin` takes back what is left of a share."""
        total = max(1, sum(weights))
        requests = None if self.requests is None else apportion(self.requests, weights)
        tokens = None if self.tokens is None else apportion(max(0, self.tokens), weights)
        shares = [
            replace(
                self,
                requests=None if requests is None else requests[i],
                tokens=None if tokens is None else tokens[i],
                cost=None if self.cost is None else self.cost * weight / total,
                _held={},
            )
            for i, weight in enumerate(weights)
        ]
        self.requests = None if self.requests is None else self.requests - sum(requests or ())
        self.tokens = None if self.tokens is None else self.tokens - sum(tokens or ())
        self.cost = None if self.cost is None else max(0.0, self.cost - sum(share.cost or 0.0 for share in shares))
        return shares

    def rejoin(self, requests: int | None, tokens: int | None, cost: float | None, excess: int) -> None:
        """Take back what is left of a share, and what it has learnt."""
        self.requests = None if self.requests is None else self.requests + (requests or 0)
        self.tokens = None if self.tokens is None else self.tokens + (tokens or 0)
        self.cost = None if self.cost is None else self.cost + (cost or 0.0)
        self.excess = max(self.excess, excess)

    def _pay(self, inputs: int, outputs: int) -> None:
        if self.tokens is not None:
            self.tokens -= inputs + outputs
        if self.cost is not None:
            self.cost -= self._cost(inputs, outputs)

    def _cost(self, inputs: int, outputs: int) -> float:
        return (inputs * self.price[0] + outputs * self.price[1]) / 1e6


def apportion(whole: int, weights: Sequence[int]) -> list[int]:
    """Whole shares in proportion to the weights, each right to within one, that make up `whole`: what rounding down
    leaves over goes to the largest remainders, the first of equals. Without any weight nothing is handed out."""
    total = sum(weights)
    if not total:
        return [0] * len(weights)
    shares = [whole * weight // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: -(whole * weights[i] % total))
    for i in by_remainder[: whole - sum(shares)]:
        shares[i] += 1
    return shares


def _choices(body: Mapping[str, Any]) -> int:
    number = body.get("n")
    return number if isinstance(number, int) and number > 0 else 1
