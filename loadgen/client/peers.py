"""Several servers as one target: requests go to them in turn, and what was found out of each is put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import httpx

from ..records import Record, RequestSpec
from .preflight import Prepared
from .sender import Sender


class InTurn:
    """A `Sender` made of one for each server, by its URL: request `number` goes to server `number % servers`, whichever
    process sends it. Its record names that server though no connection came about."""

    def __init__(self, senders: Mapping[str, Sender]) -> None:
        self._senders = [(httpx.URL(url).netloc.decode(), sender) for url, sender in senders.items()]

    async def send(self, spec: RequestSpec, scheduled_ns: int) -> Record:
        host, sender = self._senders[spec.number % len(self._senders)]
        record = await sender.send(spec, scheduled_ns)
        return record if record.peer is not None else replace(record, peer=host)

    def cut(self, outcome: Literal["cut", "cancelled"]) -> None:
        for _, sender in self._senders:
            sender.cut(outcome)


def in_turn(senders: Mapping[str, Sender]) -> Sender:
    """To these URLs in turn; where there is only one, its own."""
    return InTurn(senders) if len(senders) > 1 else next(iter(senders.values()))


def together(found: Sequence[Prepared], notes: Sequence[str] = ()) -> Prepared:
    """What the preflights of all servers came to, as that of one: the first, with what all of them take and the
    shortest context; how the others differ is said. `notes` are further lines for the screen. Pure."""
    first = found[0]
    if len(found) == 1:
        return replace(first, notes=(*first.notes, *notes))
    contexts = [one.facts.context_length for one in found if one.facts.context_length is not None]
    told = [f"requests go to {len(found)} servers in turn", *first.notes, *notes]
    warnings = list(first.facts.warnings)
    for other in found[1:]:
        where = other.target.host if other.target.host != first.target.host else other.target.display()
        warnings += [f"{where}: {difference}" for difference in _differences(first, other)]
        warnings += [f"{where}: {warning}" for warning in other.facts.warnings if warning not in warnings]
    facts = replace(
        first.facts,
        context_length=min(contexts, default=None),
        forced_length=_all([one.facts.forced_length for one in found]),
        usage=_all([one.facts.usage for one in found]),
        continuous_usage=_all([one.facts.continuous_usage for one in found]),
        warnings=tuple(warnings),
    )
    options = replace(
        first.options,
        usage=all(one.options.usage for one in found),
        continuous_usage=all(one.options.continuous_usage for one in found),
        force_length=all(one.options.force_length for one in found),
    )
    return replace(
        first,
        facts=facts,
        options=options,
        records=tuple(record for one in found for record in one.records),
        notes=tuple(told),
        others=tuple(one.target for one in found[1:]),
    )


def _differences(first: Prepared, other: Prepared) -> list[str]:
    """In what a server is not as the first one is, a phrase each."""
    a, b = first.facts, other.facts
    kinds = [" ".join(part for part in (one.kind, one.version) if part) or "of an unknown kind" for one in (a, b)]
    found = []
    if kinds[0] != kinds[1]:
        found.append(f"is {kinds[1]}, the first server is {kinds[0]}")
    if a.context_length != b.context_length:
        lengths = [f"{one.context_length:,} tokens" if one.context_length else "unknown" for one in (a, b)]
        found.append(f"its context is {lengths[1]}, the first server's {lengths[0]}")
    if a.observed_output_tokens != b.observed_output_tokens or a.forced_length != b.forced_length:
        found.append("it obeys the length asked for in another way than the first server")
    mine, theirs = first.calibration, other.calibration
    if mine and theirs and abs(theirs.tokens_per_word / mine.tokens_per_word - 1) > 0.02:
        found.append(
            f"a word costs {theirs.tokens_per_word:.2f} tokens there and {mine.tokens_per_word:.2f} at the first"
            " server: is it the same model?"
        )
    return found


def _all(answers: Sequence[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True
