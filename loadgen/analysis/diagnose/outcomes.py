"""Requests that fail, are refused, or bring less than was asked; and a client that was the limit. Pure."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ...log.columns import NULL, Columns, Int64
from ...records import FAILED_OUTCOMES, OUTCOMES
from .. import metrics
from ..admission import by_number, by_time, refusals
from ..redone import without_redone
from ..window import has_outcome, is_phase
from .finding import Fact, Finding
from .levels import Levels, median

MOST_FAILED = 0.01  # of the requests of a run, where its manifest says nothing else
LEAST_FAILED = 2  # fewer are told by the report; they have no common cause
TIGHT = 0.1  # the middle 80 % of the times of failures lie so close together, as a share: someone's clock ended them
LEAST_ENDED, LEAST_TIME_S = 3, 0.5
TIMED_OUT, TOO_LARGE = {408, 502, 504, 524}, {413, 414, 431}
SHORT_SHARE = 0.05  # of the answers
ROWS = 3  # ids that stand for the rest
EVEN = 0.5  # the times between requests that are let in: their middle 60 % within this share of the median
LEAST_LET_IN = 6
FLAT = 0.15  # of the number in flight, where a limit keeps it there


def outcome_findings(run: Levels) -> list[Finding]:
    return [*client(run), *failures(run), *short_outputs(run)]


def client(run: Levels) -> list[Finding]:
    """`client_bound`: an error where it is so at the lowest load or at most of them, as then no figure is the
    server's."""
    steps = without_redone(run.all)
    limited = [s for s in steps if s.client_limit is not None]
    if not limited:
        return []
    first = limited[0]
    assert first.client_limit is not None
    answered = [s for s in steps if s.requests.get("ok")]
    many = 2 * len(limited) > len(answered) or (answered[:1] and answered[0].client_limit is not None)
    facts = [Fact("steps that the client shaped", len(limited)), Fact("steps with an answer", len(answered))]
    if first.health is not None and first.health.cpu_share is not None:
        facts.append(Fact("share of a CPU that the reading thread used", first.health.cpu_share, "share"))
    return [
        Finding(
            "client_bound",
            "error" if many else "warning",
            "high",
            f"{first.client_limit.what}: what was measured is this machine",
            tuple(facts),
            first.client_limit.remedy,
            tuple(s.step for s in limited),
        )
    ]


def failures(run: Levels) -> list[Finding]:
    c = run.columns.where(~is_phase(run.columns, "preflight"))
    failed = np.flatnonzero(has_outcome(c, *FAILED_OUTCOMES))
    judged = int((~has_outcome(c, "cut", "cancelled")).sum())
    if not judged or len(failed) < min(LEAST_FAILED, judged):
        return []
    kinds: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i in failed:
        error = c.errors[i]
        outcome = OUTCOMES[c.outcome[i]]
        kinds[(outcome if error is None else error.kind, "" if error is None else str(error.code or ""))].append(int(i))
    kind, rows = max(kinds.items(), key=lambda pair: len(pair[1]))
    share = len(failed) / judged
    beyond = share > _allowed(run)
    common = (
        Fact("share of the requests that failed", share, "share", tuple(c.ids[i] for i in rows[:ROWS] if c.ids)),
        Fact(
            f"share of the failures that are {' '.join(part for part in kind if part)}",
            len(rows) / len(failed),
            "share",
        ),
    )
    steps = tuple(int(step) for step in np.unique(c.step[np.array(rows)]))
    found = _timeouts(run, c, np.array(rows), common, steps)
    found = (
        found
        or _refusals(run, c, np.array(rows), common, steps, beyond=beyond)
        or _ended_by_clock(c, np.array(rows), common, steps)
    )
    if found is not None:
        return [found]
    if not beyond:
        return []
    long = _too_long(c, np.array(rows))
    message = next((e.message for i in rows if (e := c.errors[i]) is not None and e.message), "")
    words = f": {' '.join(message.split())[:120]}" if message else ""
    if long is not None:
        return [
            Finding(
                "gateway_limit" if _code(c, rows[0]) in TOO_LARGE else "requests_failing",
                "error",
                "high",
                f"requests with long prompts fail{words}",
                (*common, Fact("shortest prompt that failed", long, "tokens")),
                "keep prompts below that length",
                steps,
            )
        ]
    return [
        Finding(
            "requests_failing",
            "error",
            "high",
            f"{len(failed):,} of {judged:,} requests fail, most of them by {' '.join(p for p in kind if p)}{words}",
            common,
            "look into the server's log for that message, and measure again once it is gone",
            steps,
        )
    ]


def _timeouts(run: Levels, c: Columns, rows: Int64, common: tuple[Fact, ...], steps: tuple[int, ...]) -> Finding | None:
    """Our own timeouts, at higher loads only: the server has more to do than it can."""
    late = sum(OUTCOMES[c.outcome[i]] == "timeout" for i in rows)
    calm = sorted(s.load for s in run.all if s.requests.get("ok") and not s.failed)
    hit = [s.load for s in run.all if s.step in steps]
    if late < max(LEAST_ENDED, 0.8 * len(rows)) or not calm or not hit or calm[0] >= min(hit):
        return None
    most = max(load for load in calm if load < min(hit))
    return Finding(
        "overload",
        "error",
        "high" if len(calm) > 1 or late > 20 else "medium",
        "requests time out at the higher loads and none at the lowest: the server has more to do than it can",
        (*common, Fact("highest load without a timeout below those with one", most)),
        f"hold the load at {most:,g}, where none times out",
        steps,
    )


def _refusals(
    run: Levels,
    c: Columns,
    rows: Int64,
    common: tuple[Fact, ...],
    steps: tuple[int, ...],
    *,
    beyond: bool,
) -> Finding | None:
    """429 and 503: above a number in flight (an admission limit), at a rate or for a time (a gateway's), or neither. A
    request tried several times hides when it was refused."""
    refused = [i for i in rows if (e := c.errors[i]) is not None and e.overload]
    if len(refused) < max(LEAST_ENDED, len(rows) // 2) or (c.retries > 0).any():
        return None
    timed = _timed(run, c)
    even = timed and _evenly(run, c)
    admitted = [] if even else [s.admitted for s in run.all if s.admitted is not None] or _in_flight(run)
    if admitted:
        number = round(float(np.median(admitted)))
        return Finding(
            "admission_limit",
            "error",
            "high" if len(admitted) > 1 or len(refused) > 20 else "medium",
            f"the server answers {number:,} requests at once, and refuses what is above",
            (*common, Fact("requests in flight when more are refused", float(number))),
            "raise the server's limit of concurrent requests",
            steps,
        )
    if not timed:
        return _by_chance(run, common, steps, beyond=beyond)
    rates = _accepted(run)
    facts = [*common]
    if rates:
        facts.append(Fact("rate at which requests were answered where some were refused", rates[-1], "requests/s"))
    return Finding(
        "gateway_limit",
        "error",
        "high" if even else "medium",
        "requests are refused (429 or 503) however many are in flight: a limit on how often one may ask",
        tuple(facts),
        "send at a rate below it (--rate)",
        steps,
    )


def _by_chance(run: Levels, common: tuple[Fact, ...], steps: tuple[int, ...], *, beyond: bool) -> Finding | None:
    """Refusals that depend neither on the number in flight nor on the time since others were let in."""
    told = [(level, refusals(level.rows)) for level in run.by_load]
    standings = [by_number(level.rows, refused) for level, refused in told]
    if any(standing is not None and standing.above for standing in standings) or not any(standings):
        return None
    shares = [Fact(f"share of the requests refused at {level.named}", float(r.mean()), "share") for level, r in told]
    return Finding(
        "requests_failing",
        "error" if beyond else "warning",
        "high" if len(told) > 1 else "medium",
        "requests are refused (429 or 503) however many are in flight and whenever they are sent: no limit shows,"
        " on their number or on their rate",
        (*common, *shares),
        "look into the server's log for that message, and measure again once it is gone",
        steps,
    )


def _timed(run: Levels, c: Columns) -> bool:
    """Does it depend on the time since the last request let in whether one is refused, at half of the loads at least?
    Of a few refusals at one of many, that may be chance."""
    found = []
    for s in run.all:
        mine = c.where(c.step == s.step)
        refused = refusals(mine)
        if refused.sum() >= LEAST_ENDED:
            standing = by_time(mine, refused)
            found.append(standing is not None and (standing.above or standing.below))
    return any(found) and 2 * sum(found) >= len(found)


def _evenly(run: Levels, c: Columns) -> bool:
    """Were requests let in at even times where others were refused, as a limit on a rate does it? One on a number lets
    one in whenever one has ended."""
    spreads = []
    overload = refusals(c)
    for s in run.all:
        mine = c.step == s.step
        refused = overload & mine
        if refused.sum() < LEAST_ENDED:
            continue
        known = mine & ~refused & (c.sent_ns != NULL)
        sent = np.sort(
            c.sent_ns[known & (c.sent_ns >= c.sent_ns[refused].min()) & (c.sent_ns <= c.sent_ns[refused].max())]
        )
        if len(sent) >= LEAST_LET_IN:
            low, middle, high = np.quantile(np.diff(sent), (0.2, 0.5, 0.8))
            spreads.append((high - low) / middle if middle > 0 else np.inf)
    return bool(spreads) and float(np.median(spreads)) <= EVEN


def _in_flight(run: Levels) -> list[int]:
    """How many were in flight, of those answered, where others were refused, if that was nearly always the same, and
    fewer when others were let in, at half of the loads at least: the first alone is so in any closed loop."""
    asked, found = 0, []
    for level in run.by_load:
        refused = refusals(level.rows)
        if refused.sum() < LEAST_ENDED or level.instants is None:
            continue
        asked += 1
        low, middle, high = np.quantile(level.instants.in_flight, (0.1, 0.5, 0.9))
        standing = by_number(level.rows, refused)
        if middle >= 2 and high - low <= max(1.0, FLAT * middle) and standing is not None and standing.above:
            found.append(round(float(middle)))
    return found if 2 * len(found) >= asked else []


def _accepted(run: Levels) -> list[float]:
    """Requests/s that were answered in the steps that saw refusals."""
    told = [s for s in run.all if s.failed and s.window is not None]
    return [s.completion_rate.value for s in told if s.completion_rate is not None]


def _ended_by_clock(c: Columns, rows: Int64, common: tuple[Fact, ...], steps: tuple[int, ...]) -> Finding | None:
    """Requests that ended after one and the same time, none of the answered ones later: someone's timeout."""
    own = np.array([OUTCOMES[c.outcome[i]] in ("timeout", "client_error") for i in rows])
    rows = rows[~own]
    if len(rows) < LEAST_ENDED:
        return None
    took = (c.done_ns[rows] - np.where(c.sent_ns[rows] == NULL, c.scheduled_ns[rows], c.sent_ns[rows])) / 1e9
    low, middle, high = np.quantile(took, (0.1, 0.5, 0.9))
    answered = metrics.e2e(c.where(has_outcome(c, "ok")))
    longest = float(np.nanmax(answered)) / 1e3 if np.isfinite(answered).any() else 0.0
    timed = sum(_code(c, int(i)) in TIMED_OUT for i in rows) > len(rows) / 2
    tight = high - low <= TIGHT * middle and middle >= LEAST_TIME_S
    if not tight or not (timed or longest <= 1.05 * middle) or not (timed or longest >= 0.5 * middle):
        return None
    return Finding(
        "gateway_limit",
        "error",
        "high" if timed else "medium",
        f"requests are ended after {middle:,.1f} s, whatever they are: a timeout on the way",
        (*common, Fact("median time after which they ended", float(middle), "s"), Fact("longest answer", longest, "s")),
        "raise the timeout of the gateway or proxy (nginx: proxy_read_timeout)",
        steps,
    )


def _too_long(c: Columns, rows: Int64) -> float | None:
    """Did all of these have longer prompts than nearly all that were answered? Then the shortest of them."""
    tokens = metrics.input_tokens(c)
    ok = tokens[has_outcome(c, "ok") & (tokens != NULL)]
    bad = tokens[rows]
    if len(ok) < LEAST_ENDED or len(bad) < LEAST_ENDED or (bad == NULL).any():
        return None
    least = int(np.quantile(bad, 0.05))
    return float(least) if least > np.quantile(ok, 0.98) else None


def _code(c: Columns, i: int) -> int:
    error = c.errors[i]
    code = error.code if error is not None else None
    return code if isinstance(code, int) else int(c.status[i]) if c.status[i] != NULL else 0


def _allowed(run: Levels) -> float:
    plan = run.manifest.get("plan")
    rate = plan.get("max_error_rate") if isinstance(plan, dict) else None
    return float(rate) if isinstance(rate, int | float) else MOST_FAILED


def short_outputs(run: Levels) -> list[Finding]:
    c = run.columns.where(is_phase(run.columns, "measured") & has_outcome(run.columns, "ok"))
    short = c.flag("short_output") | (
        (c.output_count != NULL) & (c.output_asked != NULL) & (c.output_count < c.output_asked)
    )
    if not len(c) or short.mean() <= SHORT_SHARE:
        return []
    both = (c.output_count != NULL) & (c.output_asked != NULL) & (c.output_asked > 0)
    got = float(c.output_count[both].mean() / c.output_asked[both].mean()) if both.any() else float("nan")
    if got > 1 - SHORT_SHARE / 2:  # a token here and there
        return []
    ends = c.output_count[short & both]
    same = len(ends) >= LEAST_ENDED and np.mean(ends == np.median(ends)) > 0.8
    rows = tuple(c.ids[i] for i in np.flatnonzero(short)[:ROWS] if c.ids)
    facts = [
        Fact("share of the answers that are shorter than asked", float(short.mean()), "share", rows),
        Fact("share of the output tokens asked for that came", got, "share"),
        Fact("median of the short ones", median(ends.astype(np.float64)), "tokens"),
    ]
    what = (
        f"answers end at {np.median(ends):,.0f} tokens: a limit on output" if same else "the model ends before its time"
    )
    return [
        Finding(
            "short_outputs",
            "warning",
            "high",
            f"{what}; throughput and E2E are those of shorter answers than were asked for",
            tuple(facts),
            "raise the server's limit of output tokens"
            if same
            else "make it generate what is asked (ignore_eos, min_tokens)",
            tuple(s.step for s in run.all if s.flags.get("short_output")),
        )
    ]
