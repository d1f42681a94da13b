"""The self-made certificate, judged by OpenSSL: a strict handshake between two ends in memory."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from loadgen.simulator.certificate import self_signed


def shake_hands(folder: Path, host: str, address: tuple[int, int, int, int] = (127, 0, 0, 1)) -> str | None:
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    for path, text in zip((certificate, key), self_signed(address), strict=True):
        path.write_text(text)
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(certificate, key)
    client_context = ssl.create_default_context(cafile=str(certificate))
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(down, up, server_hostname=host)
    server = server_context.wrap_bio(up, down, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                pass
    assert not waiting
    return client.version()


@pytest.mark.parametrize("again", range(12))  # keys and signatures differ in their leading zeros each time
def test_openssl_takes_it_for_its_own_address(tmp_path: Path, again: int) -> None:
    assert shake_hands(tmp_path, "127.0.0.1") == "TLSv1.3"


def test_openssl_refuses_it_for_another_address(tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.2"):
        shake_hands(tmp_path, "127.0.0.2")
    assert shake_hands(tmp_path, "10.0.0.7", (10, 0, 0, 7)) == "TLSv1.3"


def test_no_two_are_the_same() -> None:
    assert len({part for _ in range(3) for part in self_signed()}) == 6
