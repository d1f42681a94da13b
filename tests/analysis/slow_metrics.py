"""The metric definitions once more, in plain Python over records, one request at a time: what the arrays are held
against. Shares no code with the package but the record types."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from loadgen.records import Connect, Events, InputTokens, Outcome, OutputTokens, Phase, Record


def record(
    name: str,
    sent: int,
    first: int | None,
    last: int | None,
    *,
    n: int | None = None,
    events: Sequence[tuple[int, int | None]] | None = None,
    phase: Phase = "measured",
    outcome: Outcome = "ok",
    done: int | None = None,
    scheduled: int | None = None,
    step: int = 1,
    concurrency: int = 1,
    first_tokens: int | None = None,
    prompt: int | None = None,
) -> Record:
    """A request from stamps in ms; `events` as (stamp in ms, tokens)."""

    def ns(ms: int | None) -> int | None:
        return None if ms is None else ms * 1_000_000

    stamps = [sent, *(at for at, _ in events or ())]
    return Record(
        id=name,
        step=step,
        concurrency=concurrency,
        phase=phase,
        worker=0,
        scheduled_ns=(sent if scheduled is None else scheduled) * 1_000_000,
        sent_ns=ns(sent),
        connect=Connect(),
        first_byte_ns=ns(first),
        first_token_ns=ns(first),
        first_content_ns=ns(first),
        last_token_ns=ns(last),
        done_ns=(done if done is not None else last if last is not None else sent) * 1_000_000,
        input_tokens=InputTokens(server=prompt),
        output_tokens=OutputTokens(count=n, source=None if n is None else "usage"),
        first_event_tokens=first_tokens,
        events=None
        if events is None
        else Events([(b - a) * 1000 for a, b in pairwise(stamps)], [tokens for _, tokens in events]),
        outcome=outcome,
    )


def span(start: int | None, end: int | None) -> float | None:
    return None if start is None or end is None else (end - start) / 1e6


def request_metric(name: str, r: Record) -> float | None:
    streamed = "not_streamed" not in r.flags
    if name == "ttft":
        return span(r.sent_ns, r.first_token_ns) if streamed else None
    if name == "ttfc":
        return span(r.sent_ns, r.first_content_ns) if streamed else None
    if name == "ttft_scheduled":
        return span(r.scheduled_ns, r.first_token_ns) if streamed else None
    if name == "e2e":
        return span(r.sent_ns, r.last_token_ns)
    if name == "e2e_scheduled":
        return span(r.scheduled_ns, r.last_token_ns)
    if name == "dispatch_lag":
        return span(r.scheduled_ns, r.sent_ns)
    assert name == "tpot"
    decode = span(r.first_token_ns, r.last_token_ns)
    if decode is None or r.output_tokens.count is None or not streamed:
        return None
    later = r.output_tokens.count - (1 if r.first_event_tokens is None else r.first_event_tokens)
    return decode / later if later >= 1 else None


def stamps(r: Record) -> list[int]:
    at = r.scheduled_ns if r.sent_ns is None else r.sent_ns
    found = []
    for gap in r.events.gap_us if r.events else []:
        at += gap * 1000
        found.append(at)
    return found


def tokens_by_event(r: Record) -> list[tuple[float, bool]]:
    """(tokens, placed by estimate) of each event."""
    told = r.events.tokens if r.events else []
    if not told:
        return []
    found: list[tuple[float, bool]] = [(t or 0, t is None) for t in told]
    unknown = [i for i in range(1, len(told)) if told[i] is None]
    total = r.output_tokens.count
    if told[0] is None:
        assumed = 1 if r.first_event_tokens is None else r.first_event_tokens
        if not unknown and total is not None:
            assumed = max(total - sum(t for t, _ in found), 0)
        found[0] = (assumed, r.first_event_tokens is None or assumed != r.first_event_tokens)
    if unknown:
        rest = None if total is None else max(total - sum(t for t, _ in found), 0)
        for i in unknown:
            found[i] = (1.0 if rest is None else rest / len(unknown), True)
    return found


def itl_of(r: Record) -> tuple[list[float], int]:
    """(the distinct token gaps, one a later event; how many samples they stand for)."""
    at, tokens = stamps(r), tokens_by_event(r)
    values, samples = [], 0.0
    for i in range(1, len(at)):
        share, guessed = tokens[i]
        share = max(share, 1.0) if guessed else share
        samples += share
        if share > 0:
            values.append((at[i] - at[i - 1]) / 1e6 / share)
    return values, round(samples)


def tokens_between(r: Record, start: int, end: int) -> tuple[float, float]:
    """(tokens that arrived in [start, end], of them by estimate)."""
    if "not_streamed" in r.flags and not (r.events and r.events.gap_us):
        here = r.last_token_ns is not None and start <= r.last_token_ns <= end
        return float(r.output_tokens.count or 0) if here else 0.0, 0.0
    if r.events is not None:
        hits = [t for at, t in zip(stamps(r), tokens_by_event(r), strict=True) if start <= at <= end]
        return sum(t for t, _ in hits), sum(t for t, guessed in hits if guessed)
    last, n = r.last_token_ns, r.output_tokens.count
    if last is None or n is None:
        return 0.0, 0.0
    first = last if r.first_token_ns is None else r.first_token_ns
    if first == last:
        return (n, n) if start <= last <= end else (0.0, 0.0)
    head = min(1 if r.first_event_tokens is None else r.first_event_tokens, n)
    overlap = max(0, min(end, last) - max(start, first)) / (last - first) if last > first else 0.0
    placed = (head if start <= first <= end else 0) + (n - head) * overlap
    return placed, placed


def peak(records: Sequence[Record]) -> int:
    sent = [r for r in records if r.sent_ns is not None]
    return max((sum(r.sent_ns <= at.sent_ns < r.done_ns for r in sent) for at in sent), default=0)  # type: ignore[operator]
