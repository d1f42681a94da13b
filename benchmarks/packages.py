"""`python -m benchmarks.packages`: do wheel and sdist build reproducibly, install alone, and work?

Builds both twice in folders of their own with one SOURCE_DATE_EPOCH and compares them byte by byte; installs the wheel,
and then the sdist, into fresh virtual environments with the core dependencies only; and runs `--help`, a short sweep of
the embedded simulator, its report, and the Python API there. Needs PyPI for the dependencies. Minutes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EPOCH = "1767225600"  # 2026-01-01
SWEEP = (
    *("sweep", "--simulate", "--levels", "1,2", "--requests", "6", "--effort", "quick"),
    *("--input-len", "16", "--output-len", "4", "-o", "runs"),
)
API = """
import asyncio, loadgen
from pathlib import Path
(folder,) = Path("runs").iterdir()
table = loadgen.load(folder, everything=True)
assert len(table) > 10 and table["ttft_ms"].size == len(table)
"""


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def run(*words: object, cwd: Path, env: dict[str, str] | None = None, ok: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False
    )
    if done.returncode not in ok:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def sources(into: Path) -> None:
    """What a build reads: the tree without what is not kept."""
    skipped = shutil.ignore_patterns(".venv", "__pycache__", ".git", ".*_cache", ".hypothesis", "found", "dist", "site")
    shutil.copytree(ROOT, into, ignore=skipped)


def main() -> int:
    place = Path(tempfile.mkdtemp(prefix="loadgen-packages-"))
    try:
        run(sys.executable, "-m", "venv", place / "build", cwd=place)
        run(place / "build/bin/pip", "install", "-q", "hatchling>=1.26", cwd=place)
        hashes = []
        for number in (1, 2):
            tree, dist = place / f"tree{number}", place / f"dist{number}"
            sources(tree)
            os.utime(tree / "README.md", (number * 1e8, number * 1e8))
            build = (place / "build/bin/python", "-m", "hatchling", "build", "-d", dist)
            run(*build, cwd=tree, env={"SOURCE_DATE_EPOCH": EPOCH})
            hashes.append({f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(dist.iterdir())})
        if hashes[0] != hashes[1]:
            raise SystemExit(f"two builds differ: {hashes}")
        for name, digest in hashes[0].items():
            size = (place / "dist1" / name).stat().st_size / 1e3
            say(f"{name}: twice the same, {size:,.0f} kB, sha256 {digest[:12]}…")
        for package in sorted((place / "dist1").iterdir()):
            fresh = place / f"fresh-{package.suffix[1:]}"
            run(sys.executable, "-m", "venv", fresh, cwd=place)
            run(fresh / "bin/pip", "install", "-q", package, cwd=place)
            packages = run(fresh / "bin/pip", "list", "--format", "freeze", cwd=place).split()
            work = place / f"work-{package.suffix[1:]}"
            work.mkdir()
            program = fresh / "bin/loadgen"
            run(program, "--help", cwd=work)
            run(program, "workloads", "list", cwd=work)
            run(program, *SWEEP, cwd=work, ok=(0, 4))
            (folder,) = (work / "runs").iterdir()
            run(program, "report", folder, cwd=work)
            run(fresh / "bin/python", "-c", API, cwd=work)
            say(f"{package.name}: installs with {len(packages) - 2} packages, sweeps, reports, is imported")
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
