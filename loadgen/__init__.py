"""loadgen: an asynchronous load-generation client for LLM inference endpoints.

    import loadgen

    result = await loadgen.sweep("http://localhost:8000", slo=["ttft_p95=500ms"])
    print(result)
    table = loadgen.load(result.folder).pandas()

`run` and `sweep` measure, `load` reads any log; the command line does the same with the same words. What fails raises a
`LoadgenError`. Each name is imported when it is first used.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# httpx's own command brings rich, pygments and httpcore along, a third of what a worker takes to start. httpx does
# without it where it cannot be imported.
sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]

if TYPE_CHECKING:
    from .api import Requests, Result, load, run, sweep
    from .errors import LoadgenError, LogError, TargetError, UsageError

__all__ = [
    "LoadgenError",
    "LogError",
    "Requests",
    "Result",
    "TargetError",
    "UsageError",
    "__version__",
    "load",
    "run",
    "sweep",
]

_ERRORS = ("LoadgenError", "LogError", "TargetError", "UsageError")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'loadgen' has no attribute {name!r}")
    found = getattr(import_module(".errors" if name in _ERRORS else ".api", __name__), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
