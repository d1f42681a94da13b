"""The command line is a parameter of its tests; a module that needs a place or an environment has its own."""

from __future__ import annotations

import pytest

from tests.cli.command import Call, caller


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    return caller(capfd)
