"""Is the prefix cache of a real server hit as often as the prompts say? A table, to be read by a person.

    python -m benchmarks.sharing http://127.0.0.1:8100 [CASE…]

Each case is one `loadgen run` against a vLLM that nobody else uses. `expected` is computed from what was sent, rounded
down to the server's block; `usage` is what the server's usage says of the same requests (vLLM tells it with
--enable-prompt-tokens-details alone), `metrics` the growth of its own hit counter over that of its queries, in the
steady window. Exits with 1 where either is further than 2 points from what is expected.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT = 0.02
LOAD = ["-c", "4", "--requests", "120", "--max-time", "120s", "--output-len", "4", "--scrape-interval", "250ms"]
TALK = ["-c", "4", "--requests", "120", "--max-time", "120s", "--input-len", "256", "--output-len", "64"]
CASES = {
    "nothing shared": [*LOAD, "--input-len", "1024"],
    "25 % shared": [*LOAD, "--input-len", "1024", "--shared-prefix-len", "256"],
    "50 % shared": [*LOAD, "--input-len", "1024", "--shared-prefix-len", "512"],
    "75 % shared": [*LOAD, "--input-len", "1024", "--shared-prefix-len", "768"],
    "300 of 1,000": [*LOAD, "--input-len", "1000", "--shared-prefix-len", "300"],
    "8 groups": [*LOAD, "--input-len", "1024", "--shared-prefix-len", "512", "--prefix-groups", "8"],
    "completions": [*LOAD, "--endpoint", "completions", "--input-len", "1024", "--shared-prefix-len", "640"],
    "2 workers": [*LOAD, "--workers", "2", "--input-len", "1024", "--shared-prefix-len", "512"],
    "turns": [*TALK, "--turns", "6", "--turn-input-len", "100"],
    "turns, made": [*TALK, "--turns", "6", "--turn-input-len", "100", "--history", "made"],
    "turns, 30": [*TALK, "--turns", "30", "--turn-input-len", "100", "--history", "made"],
}


def step_of(base: str, arguments: list[str]) -> dict[str, Any]:
    """The report of the one step of a run; without what the client says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "loadgen"]
        subprocess.run([*command, "run", base, *arguments, "-o", folder, "--quiet"], capture_output=True)
        [run] = Path(folder).iterdir()
        report = subprocess.run([*command, "report", str(run), "--json"], capture_output=True, check=False)
    step: dict[str, Any] = json.loads(report.stdout)["steps"][0]
    return step


def as_expected(expected: Sequence[float] | None, seen: Sequence[float | None]) -> bool:
    """Whether every share that was told is near the expected range; not, where nothing was expected or told."""
    told = [share for share in seen if share is not None]
    if not expected or not told:
        return False
    low, high = expected
    return all(low - LIMIT <= share <= high + LIMIT for share in told)


def _span(expected: Sequence[float] | None) -> str:
    if not expected:
        return "–"
    low, high = expected
    return f"{100 * low:.1f} %" if round(low, 3) == round(high, 3) else f"{100 * low:.1f}–{100 * high:.1f} %"


def main() -> int:
    base = sys.argv[1].rstrip("/")
    wrong = 0
    print("| case | ok | block | expected | usage | metrics | within 2 points |")
    print("| --- | --: | --: | --: | --: | --: | --- |")
    for name, arguments in CASES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        step = step_of(base, arguments)
        cache, server = step["cache"] or {}, step["server"] or {}
        expected = cache.get("expected_share")
        seen = [cache.get("server_share") if cache.get("source") == "usage" else None, server.get("prefix_hit_share")]
        fine = as_expected(expected, seen)
        wrong += not fine
        cells = ["–" if share is None else f"{100 * share:.1f} %" for share in seen]
        ok = step["outcomes"].get("ok", 0)
        print(
            f"| {name} | {ok} | {cache.get('block_tokens') or '–'} | {_span(expected)} | {' | '.join(cells)} | ", end=""
        )
        print(f"{'yes' if fine else 'NO'} |", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
