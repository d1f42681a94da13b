"""What stays the same from a run's first request to its last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from ..client.dialects.base import Dialect, RequestOptions
from ..client.exchange import HttpxSender
from ..client.target import Target
from ..client.transport import open_client
from ..records import Prompt
from ..workload.plain import PlainWorkload, plain_workload
from ..workload.prompts import Calibration
from .config import RunConfig


@dataclass(frozen=True, slots=True)
class Setting:
    """The server, the workload and the run's own numbers. `zero_ns` is the run's start on CLOCK_MONOTONIC."""

    config: RunConfig
    target: Target
    workload: PlainWorkload
    seed: int
    nonce: str
    zero_ns: int

    def client(self, connections: int) -> httpx.AsyncClient:
        access = self.config.access
        return open_client(
            access,
            connections,
            tls=self.target.url.startswith("https") or access.proxy is not None,
            connect_timeout_s=self.config.timeouts.connect,
            idle_timeout_s=self.config.timeouts.idle,
        )

    def sender(self, client: httpx.AsyncClient, dialect: Dialect, options: RequestOptions) -> HttpxSender:
        return HttpxSender(
            client,
            self.target.url,
            dialect,
            options,
            zero_ns=self.zero_ns,
            timeouts=self.config.timeouts,
            run=self.nonce,
        )

    def step_nonce(self, step: int) -> str:
        """Each step's stream replays the same lengths, so that levels are compared on equal work, with a text of its
        own, so that none finds the prefix cache warmed by another."""
        nonce = f"seed {self.seed}" if self.config.workload.same_text else self.nonce
        return f"{nonce}-{step}"

    def prompts(self, step: int, calibration: Calibration | None) -> Iterator[Prompt]:
        """A step's endless stream."""
        return self.workload.stream(self.seed, self.step_nonce(step), calibration)


def workload_of(config: RunConfig) -> PlainWorkload:
    return plain_workload(config.workload.input_len, config.workload.output_len, config.workload.prompts)


def options_of(config: RunConfig, model: str) -> RequestOptions:
    return RequestOptions(
        model=model,
        force_length=config.force_length,
        temperature=config.sampling.get("temperature"),
        top_p=config.sampling.get("top_p"),
        extra_body=config.extra_body,
    )
