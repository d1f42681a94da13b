"""For every test: Hypothesis settings that do not depend on how busy the machine is; and what keeps the tests short."""

from __future__ import annotations

import gc
import os
import tempfile
from itertools import count
from pathlib import Path

# Imported by Hypothesis in the middle of a test otherwise, where CPython 3.11 can fail to compile it when the garbage
# collector runs a finalizer meanwhile ("AST constructor recursion depth mismatch").
import hypothesis.internal.conjecture.optimiser  # noqa: F401
from hypothesis import HealthCheck, settings

from tests.thorough import examples

settings.register_profile(
    "loadgen", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(30)
)
settings.load_profile("loadgen")

# Where bytecode may not be kept beside the sources, as in many containers, each program that a test starts would
# compile all of them: it is kept elsewhere.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir()) / f"loadgen-tests-bytecode-{os.getuid()}")

numbers = count()


def pytest_runtest_setup() -> None:
    """Garbage is collected before each step of a run, which here would look through the objects of all tests as well,
    for longer than most steps last. They are set aside, and looked at once in a while."""
    if next(numbers) % 300 == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()
