"""For every test: Hypothesis settings that do not depend on how busy the machine is."""

from __future__ import annotations

# Imported by Hypothesis in the middle of a test otherwise, where CPython 3.11 can fail to compile it when the garbage
# collector runs a finalizer meanwhile ("AST constructor recursion depth mismatch").
import hypothesis.internal.conjecture.optimiser  # noqa: F401
from hypothesis import HealthCheck, settings

settings.register_profile("loadgen", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("loadgen")
