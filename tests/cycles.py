"""What keeps itself: no garbage is collected while a step runs, so a cycle in each request is memory that grows."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter
from collections.abc import Iterator

NAMES = ("Probe", "Tally", "Live", "Answer", "Request", "Response")
ROOMS = ("loadgen.client.", "httpx", "httpcore")


@contextlib.contextmanager
def cycles() -> Iterator[Counter[str]]:
    """What of each request only the garbage collector would have freed, by its type; told at the end."""
    found: Counter[str] = Counter()
    gc.unfreeze()  # what earlier tests left, a run would bring to light
    gc.collect()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = (type(one) for one in gc.garbage)
        found.update(k.__name__ for k in kinds if k.__name__ in NAMES and k.__module__.startswith(ROOMS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
