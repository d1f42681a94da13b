"""What happens to output on its way: bursts, several tokens in an event, distance. Pure."""

from __future__ import annotations

import numpy as np

from ...log.columns import NULL
from .. import metrics
from .finding import Confidence, Fact, Finding
from .levels import Level, Levels, median

TOKENS_AN_EVENT = 1.25  # in the mean; what some answers do by chance (two tokens of one letter) stays below
LEAST_ANSWERS = 5
SHARE_OF_TTFT = 0.3  # that the way must take to be worth a word
LEAST_WAY_MS = 5.0
OFTEN = 0.5  # of the requests open a connection of their own
CONSTANT = 8.0  # a wait before each first token of so many TPOTs, at the lowest load, is not the model's
CONSTANT_SHARE = 0.6  # and it is that of the TTFT


def wire_findings(run: Levels) -> list[Finding]:
    return [*bursts(run), *several_tokens(run), *distance(run)]


def bursts(run: Levels) -> list[Finding]:
    found = [s for s in run.all if s.bursts is not None]
    if not found:
        return []
    worst = max(found, key=lambda s: s.bursts.every_ms if s.bursts else 0.0)
    assert worst.bursts is not None
    requests, judged = (sum(getattr(s.bursts, name) for s in found) for name in ("requests", "judged"))
    return [
        Finding(
            "buffering_proxy",
            "warning",
            "high",
            "output comes in bursts, many events at once and nothing between: something on the way collects it first,"
            " so that TTFT and ITL are not the model's",
            (
                Fact("share of the answers that came so", requests / judged, "share"),
                Fact("median number of events in a burst", worst.bursts.events),
                Fact("time from one burst to the next", worst.bursts.every_ms, "ms"),
            ),
            "switch off buffering before the server (nginx: proxy_buffering off), and compare",
            tuple(s.step for s in found),
        )
    ]


def several_tokens(run: Levels) -> list[Finding]:
    """Events with several tokens, as speculative decoding or a stream interval makes them."""
    found = [(level, ratio) for level in run.by_load if (ratio := _tokens_an_event(level)) is not None]
    several = [(level, ratio) for level, ratio in found if ratio >= TOKENS_AN_EVENT]
    accepted = [
        s.server.spec_accepted_share
        for s in run.all
        if s.server is not None and s.server.spec_accepted_share is not None
    ]
    if not accepted and 2 * len(several) <= len(found):
        return []
    if not several and not accepted:
        return []
    facts = [Fact("mean number of output tokens in an event", several[0][1])] if several else []
    if accepted:
        facts.append(Fact("share of the drafted tokens that were accepted, by the server", max(accepted), "share"))
    constant = _constant(several[0][0]) if several and not accepted else None
    if constant is not None:
        facts.append(Fact("tokens in nearly every event but an answer's last", constant))
    what = (
        "each event carries the same number of tokens: the server streams at an interval"
        if constant is not None
        else "events carry different numbers of tokens, as speculative decoding makes them"
    )
    return [
        Finding(
            "speculation",
            "info",
            "high" if accepted or several[0][1] > 1.5 else "medium",
            f"{what}; gaps between events are not those between tokens",
            tuple(facts),
            "compare with a run where it is off, and judge by TPOT, not by gaps between events",
            tuple(level.step for level, _ in several),
        )
    ]


def _tokens_an_event(level: Level) -> float | None:
    c = level.ok
    events = np.diff(c.event_offsets)
    known = c.has_events & (events > 1) & (c.output_count != NULL) & ~c.flag("not_streamed")
    if known.sum() < LEAST_ANSWERS:
        return None
    return float(
        c.output_count[known].sum() / np.maximum(c.choices[known], 1).sum() * known.sum() / events[known].sum()
    )


def _constant(level: Level) -> float | None:
    """The number of tokens that nearly every event has, but each answer's last; None where they differ, or do not
    tell."""
    c = level.sampled
    inner = np.ones(len(c.event_ns), dtype=np.bool_)
    inner[c.event_offsets[1:] - 1] = False
    tokens = c.event_tokens[inner]
    tokens = tokens[tokens > 0]
    if len(tokens) < LEAST_ANSWERS:
        return None
    usual = float(np.median(tokens))
    return usual if np.mean(tokens == usual) > 0.95 else None


def distance(run: Levels) -> list[Finding]:
    """What of a TTFT at the lowest load is the way: by the time a connection takes, by an early first byte, by the
    server's own TTFT, or (as a guess) by a wait that depends on nothing."""
    base = run.base
    if base is None:
        return []
    ttft = median(base.ttft)
    if not ttft > 0:
        return []
    facts: list[Fact] = []
    way = 0.0
    parts = metrics.connect_ms(run.columns)
    opened = parts[:, 1]
    whole = np.nansum(parts, axis=1)[np.isfinite(parts).any(axis=1)]
    slow = float(np.median(whole)) if len(whole) else 0.0
    if slow >= max(LEAST_WAY_MS, ttft) and len(whole) > OFTEN * len(run.columns):
        facts.append(Fact("median time that most requests take to open a connection (name, TCP, TLS)", slow, "ms"))
        way = slow
    if np.isfinite(opened).any():
        rtt = float(np.nanmedian(opened))
        if rtt >= max(LEAST_WAY_MS, SHARE_OF_TTFT * ttft):
            facts.append(Fact("median time to open a TCP connection, once there and back", rtt, "ms"))
            way = max(way, rtt)
    early = base.ok.first_byte_ns, base.ok.first_token_ns, base.ok.sent_ns
    known = (early[0] != NULL) & (early[1] != NULL) & (early[2] != NULL)
    if known.any():
        byte_ms = (early[0] - early[2])[known] / 1e6
        token_ms = (early[1] - early[2])[known] / 1e6
        first, rest = float(np.median(byte_ms)), float(np.median(token_ms - byte_ms))
        apart = rest > 0.1 * ttft  # else the first byte comes with the first token, and says nothing of its own
        if apart and first >= max(LEAST_WAY_MS, SHARE_OF_TTFT * ttft):
            facts.append(Fact("median time to the first byte, which comes before any token", first, "ms"))
            way = max(way, first)
    server = base.summary.server
    mean = base.summary.latency["ttft"].mean if "ttft" in base.summary.latency else None
    # Of one load alone a queue before the server looks the same; and a first event is late that had to be filled.
    still = (run.several or base.users <= 2) and not several_tokens(run) and not bursts(run)
    if still and server is not None and server.ttft_ms is not None and mean is not None:
        outside = mean.value - server.ttft_ms
        if outside >= max(LEAST_WAY_MS, SHARE_OF_TTFT * mean.value):
            facts.append(Fact("mean TTFT beyond the server's own", outside, "ms"))
            way = max(way, outside)
    if facts:
        confidence: Confidence = "high" if len(facts) > 1 else "medium"
        share = f"{100 * min(way / ttft, 1):.0f} %"
        text = f"at the lowest load the way to the server and back takes as long as {share} of the TTFT"
        return [_far(run, base, text, facts, ttft, confidence)]
    fit, tpot = base.fit, median(base.tpot)
    told = server is not None and server.ttft_ms is not None
    if told or fit is None or not fit.sure or base.users > 2 or not tpot > 0:
        return []
    if fit.intercept > CONSTANT * tpot and fit.intercept > CONSTANT_SHARE * ttft:
        facts = [Fact("wait before every first token, whatever the prompt's length", fit.intercept, "ms")]
        text = "a wait whatever the prompt stands before every first token: the way, or the server's front end"
        return [_far(run, base, text, facts, ttft, "low")]
    return []


def _far(run: Levels, base: Level, text: str, facts: list[Fact], ttft: float, confidence: Confidence) -> Finding:
    return Finding(
        "network",
        "warning",
        confidence,
        text,
        (*facts, Fact("median TTFT at the lowest load", ttft, "ms")),
        "measure from a machine next to the server, and compare",
        (base.step,),
    )
