"""How much the tests that draw at random draw: LOADGEN_THOROUGH=5 (`make test-long`) is five times as much as usual.

It also runs the tests marked `long`, whose kind shorter ones cover.
"""

from __future__ import annotations

import os

import pytest

THOROUGH = int(os.environ.get("LOADGEN_THOROUGH", "1"))
long = pytest.mark.skipif(THOROUGH == 1, reason="long: `make test-long` runs it")


def examples(usual: int) -> int:
    """Of how many random examples a property is tried."""
    return usual * THOROUGH
