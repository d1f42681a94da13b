"""How much the tests that draw at random draw: LOADGEN_THOROUGH=5 (`make test-long`) is five times as much as usual,
and other examples each time: the usual ones are always the same.

Where it is more than 1, tests of what stands in many variants go through all of them.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")
THOROUGH = int(os.environ.get("LOADGEN_THOROUGH", "1"))


def variants(*every: T, usual: int = 1) -> list[T]:
    """The first few of what stands in many variants, each of which takes seconds; all, where tests are thorough."""
    return list(every if THOROUGH > 1 else every[:usual])


def examples(usual: int) -> int:
    """Of how many random examples a property is tried."""
    return usual * THOROUGH
