"""By how much another machine's clock is ahead of ours, from round trips. Pure.

    ours     sent ─────────────────────────── received
                  ╲                        ╱
    theirs          ──────── stamped ─────

They stamped after we had sent and before we had their answer, however long each way took. So what their clock was ahead
by lies between `stamped − received` and `stamped − sent`: the middle of these is wrong by half the round trip at the
most, also where one way took all of it. Of many round trips the shortest says the most.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """`sent_ns` and `received_ns` are of our clock, `stamped_ns` is of theirs."""

    sent_ns: int
    stamped_ns: int
    received_ns: int

    @property
    def ns(self) -> int:
        return self.received_ns - self.sent_ns


@dataclass(frozen=True, slots=True)
class Offset:
    """Their clock minus ours, which the truth differs from by `uncertainty_ns` at the most; `longest_ns` is the longest
    round trip."""

    ns: int
    uncertainty_ns: int
    longest_ns: int

    def error_ns(self, later: Offset) -> int:
        """The most that this was wrong by until `later` was measured, by when the clocks may have drifted apart."""
        return max(self.uncertainty_ns, abs(later.ns - self.ns) + later.uncertainty_ns)


def offset_of(trips: Iterable[RoundTrip]) -> Offset:
    """ValueError without any round trip."""
    trips = list(trips)
    best = min(trips, key=lambda trip: trip.ns)
    return Offset(
        ns=best.stamped_ns - (best.sent_ns + best.received_ns) // 2,
        uncertainty_ns=-(-best.ns // 2),
        longest_ns=max(trip.ns for trip in trips),
    )
