"""The transport is a parameter of every case, and the environment of whoever runs the tests plays no part."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.cases.support import TRANSPORTS, MakeSender, open_sender


@pytest.fixture(params=TRANSPORTS)
def make_sender(request: pytest.FixtureRequest) -> MakeSender:
    """Opens a sender of one transport: `async with make_sender(url, …) as sender`."""
    return partial(open_sender, request.param)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name in ("LOADGEN_API_KEY", "OPENAI_API_KEY", "SSL_CERT_FILE"):
            monkeypatch.delenv(name)
