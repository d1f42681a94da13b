"""For the programs that tests start: they find no trio, as where only loadgen is installed. It is here for virtual time
within tests; httpcore imports it wherever it finds it, which takes a program longer than most of its other imports."""

from __future__ import annotations

import sys

sys.modules["trio"] = None  # type: ignore[assignment]
