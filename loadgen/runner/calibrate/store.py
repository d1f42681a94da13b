"""Where the last calibration of this machine is kept, and whether it is this machine's."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import LogError
from ...log.whole import write_whole
from ..host import facts

SCHEMA_VERSION = 1


def default_path(environment: Mapping[str, str] = os.environ) -> Path:
    """`loadgen/calibration.json` in $XDG_CACHE_HOME, which is ~/.cache where it is not set to an absolute path."""
    cache = environment.get("XDG_CACHE_HOME", "")
    base = Path(cache) if cache.startswith("/") else Path(environment.get("HOME") or Path.home()) / ".cache"
    return base / "loadgen" / "calibration.json"


def host_facts() -> dict[str, Any]:
    """This machine and the versions that shape its speed, with their fingerprint; nothing that names a person."""
    known = facts()
    host = {
        "cpu": cpu_model(),
        **{key: known[key] for key in ("cpus", "cpus_usable", "system", "release", "machine", "python")},
        "packages": {name: known["packages"].get(name) for name in ("httpx", "anyio", "orjson")},
    }
    text = json.dumps({**host, "loadgen": __version__}, sort_keys=True)
    return {**host, "fingerprint": hashlib.sha256(text.encode()).hexdigest()[:16]}


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def save(calibration: Mapping[str, Any] | None, path: Path) -> None:
    """Replace the file at once, or write to the pipe or device that has this name; None only finds out whether that can
    be done. LogError where it cannot."""
    text = json.dumps(calibration, indent=1) + "\n"
    to = path.resolve() if path.is_file() else path  # a link stays a link
    beside = to.with_name(to.name + ".new")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            if calibration is not None:
                path.write_text(text)
            return
        to.parent.mkdir(parents=True, exist_ok=True)
        if calibration is not None:
            write_whole(to, text.encode())
            return
        try:
            beside.write_text(text)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        # What `mkdir` says where a file has the folder's name.
        why = f"{to.parent} is a file" if isinstance(error, FileExistsError) else error.strerror
        raise LogError(
            f"the calibration cannot be written to {path}: {why}", "give another place with -o FILE"
        ) from None


def load(path: Path | None = None) -> dict[str, Any] | None:
    """The calibration of this machine as it is now: None where there is none, or it is of another machine, other
    versions or another form. Never raises: a run does without."""
    try:
        value = json.loads((path or default_path()).read_text())
        ours = value["schema_version"] == SCHEMA_VERSION
        return value if ours and value["host"]["fingerprint"] == host_facts()["fingerprint"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
