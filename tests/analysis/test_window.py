from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import bdtr

from loadgen.analysis import metrics
from loadgen.analysis.lengths import DOUBT, _within
from loadgen.analysis.summary import distribution, latencies
from loadgen.analysis.window import idle_until, tokens_in
from loadgen.experiments.columns import columns_of
from loadgen.log.columns import Columns, columns
from loadgen.records import PHASES, Events
from loadgen.stats import percentile
from tests.log.record_strategies import RECORD
from tests.thorough import examples

US = 1000


@st.composite
def answers(draw: st.DrawFn) -> Columns:
    """Requests of which every event told its tokens, in any order in time; gaps may be negative."""
    several, found = draw(st.booleans()), []
    for i in range(draw(st.integers(1, 12))):
        gaps = draw(st.lists(st.integers(-3, 40), max_size=8))
        tokens = draw(st.lists(st.integers(0, 5), min_size=len(gaps), max_size=len(gaps)))
        events = Events(gaps, tokens if several else [1] * len(gaps), [])
        sent = draw(st.integers(0, 100)) * US
        found.append(
            replace(RECORD, id=f"{i}", sent_ns=sent, last_token_ns=sent + draw(st.integers(0, 9)), events=events)
        )
    return columns(found)


@settings(max_examples=examples(150), deadline=None)
@given(answers(), st.lists(st.integers(0, 200), min_size=2, max_size=6, unique=True).map(sorted))
def test_tokens_are_placed_one_by_one(c: Columns, at: list[int]) -> None:
    edges = np.array(at) * float(US)
    placed, guessed = tokens_in(c, edges)
    slow = np.zeros(len(at) - 1)
    for stamp, tokens in zip(c.event_ns, c.event_tokens, strict=True):
        for i in range(len(slow)):
            # What comes at an edge belongs to the time before, but for the first edge.
            if edges[i] < stamp <= edges[i + 1] or (i == 0 and stamp == edges[0]):
                slow[i] += tokens
    assert placed.tolist() == slow.tolist() and not guessed.any()


SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 8)), min_size=1, max_size=8)


@settings(max_examples=examples(100), deadline=None)
@given(SPANS)
def test_idle_time_is_that_of_every_nanosecond_without_a_request(spans: list[tuple[int, int]]) -> None:
    stamps = np.array([(start, start + length, start + length) for start, length in spans]) / 1e9
    n = len(spans)
    c = columns_of(stamps, np.ones((n, 2), np.int64), np.full(n, PHASES.index("measured"), np.int8), 1, 1)
    at = np.array(sorted({stamp for start, length in spans for stamp in (start, start + length)}))
    first = int(at.min())
    slow = [sum(not any(start <= ns < start + length for start, length in spans) for ns in range(first, t)) for t in at]
    assert idle_until(c, at).tolist() == slow


@settings(max_examples=examples(100), deadline=None)
@given(answers())
def test_all_gaps_are_those_of_each_request(c: Columns) -> None:
    """By the order in which requests ended, also where a step's gaps are cut at no request."""
    order = np.argsort(c.last_token_ns, kind="stable")
    gaps = [np.diff(c.event_ns[c.event_offsets[i] : c.event_offsets[i + 1]]) / 1e6 for i in order]
    found = latencies(c, 4)["inter_chunk"]
    whole = np.concatenate(gaps)
    assert found == distribution(whole, 0 if len(c) < 5 else 5)
    pooled = metrics.inter_chunk(c.at(order)).values
    assert pooled.tolist() == whole.tolist()


@settings(max_examples=examples(50), deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_a_distribution_is_of_the_values_as_they_came(values: list[float]) -> None:
    x = np.array(values)
    found = distribution(x, 0)
    assert (found.n, found.std, found.max) == (len(x), float(x.std()), float(x.max()))
    assert found.mean is not None and found.mean.value == float(x.mean())
    assert found.percentiles == tuple(percentile(x, q.p, 0) for q in found.percentiles)
    assert x.tolist() == values


@settings(max_examples=examples(50), deadline=None)
@given(st.integers(1, 4_000), st.sampled_from([0.5, 0.9, 0.99]))
def test_order_statistics_around_a_quantile_are_found_among_all(n: int, q: float) -> None:
    below = bdtr(np.arange(n + 1), n, q)
    low, high = int(np.searchsorted(below, DOUBT, side="right")), int(np.searchsorted(below, 1 - DOUBT)) + 1
    ranks = np.arange(1, n + 1)
    assert _within(ranks, q) == (low if low else -np.inf, high if high <= n else np.inf)
