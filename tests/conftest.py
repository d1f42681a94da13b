"""For every test: Hypothesis settings that do not depend on how busy the machine is; and what keeps the tests short."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

# Before NumPy is imported here and in every program that a test starts: without, each has a thread a CPU for algebra.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Imported by Hypothesis in the middle of a test otherwise, where CPython 3.11 can fail to compile it when the garbage
# collector runs a finalizer meanwhile ("AST constructor recursion depth mismatch").
import hypothesis.internal.conjecture.optimiser  # noqa: F401
import pytest
import trustme
from hypothesis import HealthCheck, settings

from tests.thorough import THOROUGH, examples

settings.register_profile(
    "loadgen",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    max_examples=examples(30),
    derandomize=THOROUGH == 1,  # what fails was broken by the change at hand; `make test-long` finds what was before
)
settings.load_profile("loadgen")

# Where no bytecode is kept, as in many containers, each program that a test starts would compile all of loadgen, and
# each process of the tests all tests. Kept elsewhere, it would be that of the libraries as well, which is there.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

HERE = Path(__file__).parent
numbers = count()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Each of several processes imports other tests first, and finds the rest compiled by the others: compiling takes
    longer than all else before the first test, and all would do it for the same ones at the same time."""
    worker: dict[str, Any] = getattr(session.config, "workerinput", {})
    if worker and [session.config.rootpath / argument for argument in session.config.args] == [HERE]:
        tests = sorted(HERE.rglob("test_*.py"))
        for path in tests[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
            with contextlib.suppress(Exception, pytest.skip.Exception):  # which is told when it is collected
                importlib.import_module(".".join(path.relative_to(HERE.parent).with_suffix("").parts))


@pytest.fixture(scope="session", autouse=True)
def as_installed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE / "as_installed"), prepend=os.pathsep)
        yield


def pytest_runtest_setup() -> None:
    """Garbage is collected before each step of a run, which here would look through the objects of all tests as well,
    for longer than most steps last. They are set aside, and looked at once in a while."""
    if next(numbers) % 300 == 0:
        gc.unfreeze()
        gc.collect()
    gc.freeze()


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """The command line."""
    from tests.cli.command import caller  # here, as bytecode is to be kept before any of loadgen is imported

    return caller(capfd)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to be in in which nothing is, without a key in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("LOADGEN_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(params=[False, True], ids=["loop", "thread"])
def threaded(request: pytest.FixtureRequest) -> bool:
    """Are sockets read in a thread of their own?"""
    return bool(request.param)


@pytest.fixture(scope="session")
def authority() -> trustme.CA:
    """Who vouches for the servers of the tests."""
    return trustme.CA()
