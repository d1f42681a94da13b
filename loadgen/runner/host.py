"""This machine: what it is, and whether its limits allow the load."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from .. import __version__
from ..errors import UsageError

# What the process itself needs beside one descriptor a connection: log files, event loop, terminal, resolver.
SPARE_DESCRIPTORS = 64
MOST_CONNECTIONS = 28_000  # to one address: the ephemeral ports of a Linux machine
PACKAGES = ("httpx", "httpcore", "h11", "anyio", "numpy", "orjson", "scipy")


def raise_descriptor_limit(connections: int) -> int:
    """Raise the soft limit of open files to what `connections` need, up to the hard limit; returns the limit in force.

    Raises UsageError when the hard limit is too low: a step that silently ran with fewer would be a lie.
    """
    need = connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < need:
        wanted = need if hard == resource.RLIM_INFINITY else min(need, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft != resource.RLIM_INFINITY and soft < need:
        raise UsageError(
            f"{connections} connections need {need} open files, but this process may have {soft} at most",
            f"raise the limit (ulimit -n {need}; past the hard limit, as root), "
            f"or ask for at most {max(1, soft - SPARE_DESCRIPTORS)} in flight",
        )
    return -1 if soft == resource.RLIM_INFINITY else soft


def most_connections() -> int:
    """Raise the soft limit of open files as far as it goes; returns how many connections that leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_CONNECTIONS + SPARE_DESCRIPTORS
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return (most if soft == resource.RLIM_INFINITY else min(soft, most)) - SPARE_DESCRIPTORS


def release_memory() -> None:
    """Give back to the system what was freed: glibc keeps it where a small piece above it is still in use."""
    import ctypes  # slow to import, and not needed before the first step has ended

    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


@cache
def _version(package: str) -> str | None:
    """Of an installed package: its metadata is read as a whole for it, and does not change while this process runs."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """The machine and the versions that made the figures; nothing that names a person."""
    try:
        usable = len(os.sched_getaffinity(0))
    except AttributeError:
        usable = os.cpu_count() or 1
    return {
        "loadgen": __version__,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "packages": {name: _version(name) for name in PACKAGES},
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_usable": usable,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }
