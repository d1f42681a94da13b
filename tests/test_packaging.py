"""What is shipped: the lock in step with pyproject.toml, and the container's files.

Building and installing for real: `python -m benchmarks.packages`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, tuple[str, int]]:
    """Package → version and number of hashes, as locked."""
    text = (ROOT / "requirements.lock").read_text()
    found = {}
    for block in re.split(r"\n(?=\S)", text):
        pin = re.match(r"([A-Za-z0-9._-]+)==(\S+)", block)
        if pin:
            found[re.sub(r"[-_.]+", "-", pin[1]).lower()] = (pin[2], block.count("--hash=sha256:"))
    return found


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def test_the_lock_holds_every_core_dependency_in_its_range_with_hashes() -> None:
    locked = pins()
    assert len(locked) >= len(PROJECT["dependencies"]) and all(hashes for _, hashes in locked.values())
    for needed in PROJECT["dependencies"]:
        name, bounds = re.fullmatch(r"([A-Za-z0-9_-]+)(?:\[\w+\])?(.*)", needed).groups()  # type: ignore[union-attr]
        version = numbers(locked[name.lower()][0])
        for sign, bound in re.findall(r"(>=|<)([\d.]+)", bounds):
            least = numbers(bound)
            holds = version[: len(least)] >= least if sign == ">=" else version[: len(least)] < least
            assert holds, f"{needed}, locked at {version}: run `make lock`"


def test_no_locked_package_is_taken_from_anywhere_else() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"^(--(extra-)?index-url|--find-links|-e )|@ (git|http|file)", text, re.MULTILINE)


def test_the_container_copies_what_the_build_needs() -> None:
    copied = re.findall(r"^COPY (?!--)(.*) \S+$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    names = {name for line in copied for name in line.split()}
    assert {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "loadgen", "workloads"} <= names
    assert all((ROOT / name).exists() for name in names)
