"""What is asked of the servers before any load."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import httpx

from ..client.budget import Budget
from ..client.dialects import find_dialect
from ..client.dialects.base import RequestOptions
from ..client.health import stamps_of
from ..client.peers import together
from ..client.preflight import Prepared, preflight
from ..client.target import Target
from .budgets import probes_of
from .journal import Journal, LoggedSender
from .serverview import Found, find_metrics
from .setting import Setting


@dataclass(frozen=True, slots=True)
class Ready:
    """Servers that answer: what they told, who stamps their bytes, and where their metrics are."""

    prepared: Prepared
    clock: Literal["kernel", "user"]
    metrics: Found


async def ask(
    setting: Setting,
    options: RequestOptions,
    client: httpx.AsyncClient,
    journal: Journal,
    budget: Budget,
    ids: Iterator[int],
) -> Ready:
    """The preflight of each server, paid for and logged; `ids` number its requests. Raises LoadgenError where a server
    cannot be measured."""
    config = setting.config

    async def probe(target: Target, wanted: RequestOptions) -> Prepared:
        return await preflight(
            target,
            find_dialect(setting.target.endpoint),
            wanted,
            setting.workload,
            client=client,
            make_sender=lambda chosen, dialect: LoggedSender(
                setting.sender_to(target, client, dialect, chosen),
                journal,
                budget,
                sized=setting.workload.sized,
            ),
            nonce=setting.nonce,
            ids=ids,
            proxy=config.access.proxy_for(target.url),
            unix_socket=config.access.unix_socket,
            tokenizer=setting.tokenizer,
            token_ids=config.token_ids,
            probes=probes_of(config.budgets),
        )

    found = [await probe(setting.target, options)]
    same = replace(options, model=found[0].options.model)
    found += [await probe(target, same) for target in setting.others]
    clock = stamps_of(client)
    metrics = await find_metrics(setting)
    return Ready(together(found, await setting.survey()), clock, metrics)
