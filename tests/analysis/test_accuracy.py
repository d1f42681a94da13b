"""The stated error against a truth that is known, and what is called the client's limit."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.analysis import metrics, summarise
from loadgen.analysis.accuracy import client_limit, error_bounds, exact_share, receive_base_ms
from loadgen.log.columns import columns
from loadgen.records import Connect, Events, InputTokens, OutputTokens, Record
from loadgen.results import ClientHealth, Lag, Observation, Slo
from loadgen.search.verdict import judge
from tests.thorough import examples

BASE_US = 20
FINE = ClientHealth(
    "kernel",
    10.0,
    cpu_share=0.2,
    wait_share=0.01,
    reads=1000,
    stamped=1000,
    read_lag_us=Lag(1000, 20, 80, 300),
    loop_lag_us=Lag(200, 60, 200, 900),
    refill_lag_us=Lag(200, 300, 800, 2000),
)
USER = replace(FINE, stamps="user", stamped=0, read_lag_us=None)


def answered(
    name: str,
    sent_us: int,
    stamps_us: list[int],
    *,
    tokens: list[int] | None = None,
    bounded: list[tuple[int, int]] | None = None,
    sent_bound_us: int | None = None,
    scheduled_us: int | None = None,
    connect: Connect | None = None,
    token_log: bool = True,
) -> Record:
    """A measured ok request with these stamps, in µs."""
    counts = tokens or [1] * len(stamps_us)
    gaps = [b - a for a, b in zip([sent_us, *stamps_us], stamps_us, strict=False)]
    return Record(
        id=name,
        step=1,
        concurrency=8,
        phase="measured",
        worker=0,
        scheduled_ns=(sent_us if scheduled_us is None else scheduled_us) * 1000,
        sent_ns=sent_us * 1000,
        connect=connect,
        first_byte_ns=stamps_us[0] * 1000,
        first_token_ns=stamps_us[0] * 1000,
        first_content_ns=stamps_us[0] * 1000,
        last_token_ns=stamps_us[-1] * 1000,
        done_ns=stamps_us[-1] * 1000,
        input_tokens=InputTokens(),
        output_tokens=OutputTokens(count=sum(counts), source="usage"),
        first_event_tokens=counts[0],
        events=Events(gaps, list(counts), bounded or []) if token_log else None,
        outcome="ok",
        flags=("bounded",) if bounded else (),
        sent_bound_us=sent_bound_us,
    )


@st.composite
def truth_and_measured(draw: st.DrawFn) -> tuple[list[Record], list[Record]]:
    """The same requests as they were, and as a client within its bounds may have stamped them."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    worst = draw(st.booleans())  # every error at one of its ends
    true, seen = [], []
    for i in range(draw(st.integers(1, 40))):
        sent = rng.randrange(10_000_000)
        at, stamps = sent + 100, []
        for _ in range(rng.randint(1, 12)):
            at += rng.choice([0, 15, 300, 20_000, rng.randrange(200_000)])
            stamps.append(at)
        tokens = [rng.choice([1, 1, 2, 5]) for _ in stamps]
        bounded, late = [], []
        for place in range(len(stamps)):
            bound = rng.choice([0, 0, 0, 40, 5_000, 90_000])
            if bound:
                bounded.append((place, bound))
            most = BASE_US + bound
            late.append(rng.choice([0, most]) if worst else rng.randint(0, most))
        early_most = rng.choice([None, None, 21, 700, 30_000])
        early = min(rng.choice([0, early_most or BASE_US]) if worst else rng.randint(0, early_most or BASE_US), 100)
        measured, before = [], sent - early
        for stamp, delay in zip(stamps, late, strict=True):
            before = max(before, stamp + delay)  # reads are in order, so a late one holds up those after it
            measured.append(before)
        # …in which case the later ones are as late as that, which their own bounds have to cover.
        cover = dict(bounded)
        for place, (stamp, got) in enumerate(zip(stamps, measured, strict=True)):
            if got - stamp > BASE_US + cover.get(place, 0):
                cover[place] = got - stamp - BASE_US
        true.append(answered(str(i), sent, stamps, tokens=tokens))
        seen.append(
            answered(
                str(i), sent - early, measured, tokens=tokens, bounded=sorted(cover.items()), sent_bound_us=early_most
            )
        )
    return true, seen


@settings(max_examples=examples(60), deadline=None)
@given(truth_and_measured())
def test_no_percentile_is_further_from_the_truth_than_its_bound(pair: tuple[list[Record], list[Record]]) -> None:
    truth, seen = map(columns, pair)
    bounds = error_bounds(seen, FINE)
    assert {"ttft", "e2e"} <= set(bounds)
    for name, bound in bounds.items():
        true, measured = (
            (metrics.itl(c).values if name == "itl" else metrics.REQUEST_METRICS[name](c)) for c in (truth, seen)
        )
        for p, most in ((50, bound.p50), (99, bound.p99)):
            off = abs(np.percentile(measured[~np.isnan(measured)], p) - np.percentile(true[~np.isnan(true)], p))
            assert off <= most + 1e-6, (name, p)


def test_with_exact_stamps_only_the_base_is_left() -> None:
    table = columns(
        [answered(str(i), i * 1000, [i * 1000 + 50_000 + 10_000 * k for k in range(11)]) for i in range(50)]
    )
    bounds = error_bounds(table, FINE)
    assert bounds["ttft"].p50 == bounds["ttft"].p99 == pytest.approx(0.04)  # the first byte sent, the first token read
    assert bounds["e2e"].p99 == pytest.approx(0.04)
    assert bounds["itl"].p99 == pytest.approx(0.02)
    assert bounds["tpot"].p99 == pytest.approx(0.002)  # over ten tokens
    assert exact_share(table) == 1.0


def test_one_uncertain_event_moves_only_the_percentile_it_can_reach() -> None:
    slow = answered("slow", 0, [90_000, 100_000], bounded=[(0, 80_000)])
    table = columns([answered(str(i), 0, [50_000 + i, 60_000 + i]) for i in range(400)] + [slow])
    bounds = error_bounds(table, FINE)
    assert bounds["ttft"].p50 < 0.05 and bounds["ttft"].p99 < 0.05
    few = columns([answered(str(i), 0, [50_000 + i, 60_000 + i]) for i in range(4)] + [slow])
    assert error_bounds(few, FINE)["ttft"].p99 > 30
    assert exact_share(few) == pytest.approx(0.9)


def test_user_stamps_are_as_good_as_the_event_loop() -> None:
    table = columns([answered(str(i), 0, [50_000, 60_000]) for i in range(9)])
    bounds = error_bounds(table, USER)
    assert bounds["itl"].p50 == pytest.approx(0.06) and bounds["itl"].p99 == pytest.approx(0.2)
    assert error_bounds(table, replace(USER, loop_lag_us=None)) == {}
    assert receive_base_ms(replace(FINE, clock_steps=1), 99) == pytest.approx(1.02)


def test_what_is_not_known_is_not_stated() -> None:
    fine = answered("a", 0, [50_000, 60_000])
    assert error_bounds(columns([fine]), None) == {}
    assert error_bounds(columns([]), FINE) == {}
    bare = answered("b", 0, [50_000, 60_000], bounded=[(0, 9)], token_log=False)
    assert error_bounds(columns([fine, bare]), FINE) == {}, "some event was late, and it is not said which"
    exact = answered("c", 0, [50_000, 60_000], token_log=False)
    assert set(error_bounds(columns([exact]), FINE)) == {"ttft", "e2e", "tpot"}


# --- the client's limit ---------------------------------------------------------------------------------------------

PLAIN = [answered(str(i), 0, [50_000 + 10_000 * k for k in range(21)]) for i in range(100)]  # E2E 250 ms


def lag_ms(p99: float, half: float | None = None) -> Lag:
    return Lag(500, (p99 / 10 if half is None else half) * 1000, p99 * 1000, p99 * 2000)


@pytest.mark.parametrize(
    ("change", "word", "remedy"),
    [
        ({}, None, None),
        ({"wait_share": 0.3}, None, None),  # waited, but nothing came of it
        ({"wait_share": 0.98}, "without a CPU", "CPU of its own"),
        ({"cpu_share": 0.97}, "97 % of a CPU", "--workers"),
        ({"cpu_share": 0.97, "wait_share": 0.98}, "without a CPU", "CPU of its own"),
        ({"rejected": 2}, "contradicted the clock", "clock"),
        ({"rejected": 1}, None, None),
        ({"refill_lag_us": lag_ms(60, half=12)}, None, None),  # below 25 % of the E2E, half of them below 5 %
        ({"refill_lag_us": lag_ms(60, half=14)}, "14.0 ms late (median)", "held it up"),
        ({"refill_lag_us": lag_ms(70)}, "70.0 ms late (p99)", "held it up"),
        ({"refill_lag_us": lag_ms(70), "wait_share": 0.2}, "70.0 ms late", "CPU of its own"),
        ({"refill_lag_us": lag_ms(70), "cpu_share": 0.8}, "70.0 ms late", "--workers"),
        ({"clock_steps": 1}, "p50 ITL", None),  # 1 ms of 10 ms
        ({"cpu_share": None, "wait_share": None, "refill_lag_us": None, "loop_lag_us": None}, None, None),
    ],
)
def test_what_is_called_a_limit(change: dict[str, object], word: str | None, remedy: str | None) -> None:
    limit = client_limit(columns(PLAIN), replace(FINE, **change))  # type: ignore[arg-type]
    assert (limit is None) == (word is None), limit
    if limit is not None and word is not None:
        assert word in limit.what
        assert remedy is None or remedy in limit.remedy


def test_requests_sent_late_are_a_limit_where_connecting_was_not_the_reason() -> None:
    late = [replace(r, scheduled_ns=-30_000_000) for r in PLAIN]
    found = client_limit(columns(late), FINE)
    assert found is not None and "sent 30.0 ms late" in found.what
    connected = [replace(r, connect=Connect(1_000, 18_000, 10_500)) for r in late]
    assert client_limit(columns(connected), FINE) is None
    assert client_limit(columns(late), FINE, open_loop=True) is None, "an open loop's lag is judged with its schedule"
    few = [replace(r, scheduled_ns=-30_000_000 if i < 2 else 0) for i, r in enumerate(PLAIN[:20])]
    assert client_limit(columns(few), FINE) is None, "a hiccup is no habit"


@pytest.mark.parametrize(("away_ms", "is_limit"), [(0.3, False), (5.0, True)])
def test_events_that_came_together_are_the_clients_only_if_it_was_away(away_ms: float, is_limit: bool) -> None:
    """A server or a network that sends two events in one packet makes each bounded by a whole gap."""
    stamps = [[50_000 + 20_000 * (k // 2) for k in range(20)] for _ in range(100)]
    paired = [answered(str(i), 0, s, bounded=[(k, 19_000) for k in range(0, 20, 2)]) for i, s in enumerate(stamps)]
    health = replace(FINE, loop_lag_us=lag_ms(away_ms), read_lag_us=lag_ms(away_ms))
    table = columns(paired)
    assert error_bounds(table, health)["itl"].p99 > 15, "the bound itself is what is certain"
    assert (client_limit(table, health) is not None) == is_limit


def test_a_slow_loop_is_a_limit_with_user_stamps_alone() -> None:
    slow = {"loop_lag_us": lag_ms(8)}
    assert client_limit(columns(PLAIN), replace(FINE, **slow)) is None  # type: ignore[arg-type]
    found = client_limit(columns(PLAIN), replace(USER, **slow))  # type: ignore[arg-type]
    assert found is not None and "p99 TTFT by 8.0 ms" in found.what


def test_a_summary_carries_it_and_the_verdict_is_invalid() -> None:
    def summary(health: ClientHealth | None) -> object:
        return summarise(columns(PLAIN), 1, Slo(), Observation(1, 8, None, 0, 8, "complete", health=health))

    fine, starved, unknown = (summary(h) for h in (FINE, replace(FINE, wait_share=0.9), None))
    assert fine.client_limit is None and fine.error_ms["ttft"].p99 < 0.05 and fine.exact_share == 1.0  # type: ignore[attr-defined]
    assert judge(fine, Slo()).verdict == "measured"  # type: ignore[arg-type]
    level = judge(starved, Slo())  # type: ignore[arg-type]
    assert level.verdict == "invalid" and "without a CPU" in level.detail
    assert judge(starved, Slo(), baseline=True).verdict == "invalid"  # type: ignore[arg-type]
    assert unknown.health is None and unknown.error_ms == {} and judge(unknown, Slo()).verdict == "measured"  # type: ignore[attr-defined,arg-type]
