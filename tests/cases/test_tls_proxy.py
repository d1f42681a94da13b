"""Field cases X07 and X08: certificates and proxies, through whole commands."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from loadgen.simulator.scripted import Action, Request, ThreadedServer, error_reply
from tests.cases.support import BASIC, SECRET, Ran, answer, everything, loadgen, posts, subprocess_arguments, went_well

QUICK = ("-c", "2", "--requests", "6", "--output-len", "4", "--input-len", "40")


# --- X07: certificates ------------------------------------------------------------------------------------------------


@contextmanager
def tls_server(ca: trustme.CA, *names: str, **options: Any) -> Iterator[Any]:
    """A server with a certificate of this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*(names or ("127.0.0.1",)), **options).configure_cert(context)
    with ThreadedServer(posts(answer), ssl=context) as server:
        yield server


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


def works(ran: Ran) -> None:
    went_well(ran)
    assert {r.outcome for r in ran.records()} == {"ok"}
    first = next(r for r in ran.records() if r.connect is not None)
    assert first.connect is not None
    assert first.connect.tls_us is not None, "the handshake is timed apart"


def fails(ran: Ran, *words: str) -> None:
    assert ran.code == 3
    for word in ("TLS", "--ca-file", "--insecure", *words):
        assert word in ran.said


def test_x07_an_unknown_authority_and_both_ways_out(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    with tls_server(authority) as server:
        fails(loadgen("run", server.url, *QUICK, output=tmp_path / "a"))
        assert server.requests == []
        works(loadgen("run", server.url, *QUICK, "--ca-file", ca_file, output=tmp_path / "b"))
        works(loadgen("run", server.url, *QUICK, "--insecure", output=tmp_path / "c"))
        sweep = loadgen("sweep", server.url, "--levels", "1,2", "--requests", "4", "--insecure", output=tmp_path / "d")
        works(sweep)
        assert sweep.manifest["target"]["access"]["insecure"] is True


def test_x07_a_self_signed_certificate_is_trusted_when_given_itself(tmp_path: Path) -> None:
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "me")])
    here = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    start = datetime.now(UTC) - timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1, start, start + timedelta(days=9), [])
    certificate = builder.add_extension(here, critical=False).sign(key, hashes.SHA256())
    pem, private = tmp_path / "cert.pem", tmp_path / "key.pem"
    pem.write_bytes(certificate.public_bytes(Encoding.PEM))
    private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    with ThreadedServer(posts(answer), ssl=context) as server:
        fails(loadgen("run", server.url, *QUICK, output=tmp_path / "a"), "self")
        works(loadgen("run", server.url, *QUICK, "--insecure", output=tmp_path / "b"))
        works(loadgen("run", server.url, *QUICK, "--ca-file", str(pem), output=tmp_path / "c"))


def test_x07_a_certificate_for_another_name(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    with tls_server(authority, "elsewhere.example") as server:
        fails(loadgen("run", server.url, *QUICK, "--ca-file", ca_file, output=tmp_path / "a"), "127.0.0.1")
        works(loadgen("run", server.url, *QUICK, "--insecure", output=tmp_path / "b"))


def test_x07_a_certificate_out_of_date(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    with tls_server(authority, not_after=datetime(2024, 1, 1, tzinfo=UTC)) as server:
        fails(loadgen("run", server.url, *QUICK, "--ca-file", ca_file, output=tmp_path), "expired")


@pytest.mark.parametrize("flag", ["--ca-file", "--client-cert"])
@pytest.mark.parametrize("content", [None, "", "no certificate"], ids=["not there", "empty", "no PEM"])
def test_x07_a_file_that_cannot_be_used(flag: str, content: str | None, authority: trustme.CA, tmp_path: Path) -> None:
    file = tmp_path / "x.pem"
    if content is not None:
        file.write_text(content)
    with tls_server(authority) as server:
        ran = loadgen("run", server.url, *QUICK, flag, str(file), output=tmp_path / "runs")
        assert server.requests == []
    assert ran.code == 2
    assert str(file) in ran.err
    assert flag in ran.err


def test_x07_a_client_certificate(authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    mine = tmp_path / "mine.pem"
    authority.issue_cert("me.example").private_key_and_cert_chain_pem.write_to_path(str(mine))
    with ThreadedServer(posts(answer), ssl=context) as server:
        without = loadgen("run", server.url, *QUICK, "--ca-file", ca_file, output=tmp_path / "a")
        assert without.code == 3
        works(
            loadgen("run", server.url, *QUICK, "--ca-file", ca_file, "--client-cert", str(mine), output=tmp_path / "b")
        )


def test_x07_the_wrong_scheme_is_named(authority: trustme.CA, tmp_path: Path) -> None:
    with tls_server(authority) as server:
        ran = loadgen("run", server.url.replace("https", "http"), *QUICK, output=tmp_path)
    assert ran.code == 3
    assert "https://" in ran.err


# --- X08: proxies -----------------------------------------------------------------------------------------------------


class Proxy:
    """A forwarding proxy for tests, CONNECT included. `seen` are the heads that it got."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = "http://127.0.0.1:{1}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            data = b""
            while b"\r\n\r\n" not in data:
                data += client.recv(65536)
            self.seen.append(data.split(b"\r\n\r\n")[0].decode())
            method, where, _ = data.split(b"\r\n", 1)[0].split(b" ")
            authority = where if method == b"CONNECT" else where.split(b"/")[2]
            host, _, port = authority.partition(b":")
            with socket.create_connection((host.decode(), int(port))) as server:
                if method == b"CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                else:
                    server.sendall(data)
                back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                back.start()
                self._pump(client, server)
                back.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as one:
        yield one


def open_paths(handler: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Takes requests in the absolute form in which a proxy gets them."""

    def serve(request: Request) -> Any:
        path = "/" + request.path.split("/", 3)[3] if request.path.startswith("http") else request.path
        return handler(Request(request.method, path, *(getattr(request, n) for n in Request.__slots__[2:])))

    return serve


VARIABLES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy")


@pytest.mark.parametrize("variable", VARIABLES)
def test_x08_the_environments_proxy_is_not_obeyed(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    with ThreadedServer(posts(answer)) as server:
        ran = loadgen("run", server.url, *QUICK, output=tmp_path)
    went_well(ran)
    assert ran.manifest["target"]["access"]["proxy"] is None
    assert "proxy" not in ran.said


def test_x08_the_environments_proxy_is_obeyed_when_asked(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    with ThreadedServer(open_paths(posts(answer))) as server:
        ran = loadgen("run", server.url, *QUICK, "--trust-env", output=tmp_path / "a")
        went_well(ran)
        assert len(proxy.seen) >= 2
        assert proxy.url in ran.said, "the proxy in use is printed"
        assert ran.manifest["target"]["access"]["proxy"] == proxy.url
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        before = len(proxy.seen)
        ran = loadgen("run", server.url, *QUICK, "--trust-env", output=tmp_path / "b")
        went_well(ran)
        assert len(proxy.seen) == before
        assert proxy.url not in ran.said
        assert ran.manifest["target"]["access"]["proxy"] is None


def test_x08_a_proxy_asked_for_carries_everything(proxy: Proxy, tmp_path: Path) -> None:
    with ThreadedServer(open_paths(posts(answer))) as server:
        ran = loadgen("run", server.url, *QUICK, "--proxy", proxy.url, output=tmp_path)
        went_well(ran)
        assert all(request.path.startswith(server.url) for request in server.requests)
        assert proxy.seen[0].startswith(f"GET {server.url}/v1/models ")
    assert f"through the proxy {proxy.url}" in ran.said
    assert ran.manifest["target"]["access"]["proxy"] == proxy.url
    assert f"through the proxy {proxy.url}" in loadgen("report", str(ran.folder)).out


def test_x08_tls_through_a_proxy(proxy: Proxy, authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    with tls_server(authority) as server:
        flags = ("--proxy", proxy.url, "--ca-file", ca_file)
        ran = loadgen("run", server.url, *QUICK, *flags, output=tmp_path / "a")
        works(ran)
        host = server.url.removeprefix("https://")
        assert {head.split("\r\n")[0] for head in proxy.seen} == {f"CONNECT {host} HTTP/1.1"}
        # What is measured starts with the request itself, not with the tunnel to it.
        assert all((r.sent_ns or 0) <= (r.first_token_ns or 0) for r in ran.records())
        fails(loadgen("run", server.url, *QUICK, "--proxy", proxy.url, output=tmp_path / "b"))


def test_x08_x06_a_proxys_password_is_shown_nowhere(proxy: Proxy, tmp_path: Path) -> None:
    address = proxy.url.replace("http://", f"http://user:{SECRET}@")
    runs = tmp_path / "runs"
    with ThreadedServer(open_paths(posts(answer))) as server:
        ran = subprocess.run(
            subprocess_arguments("run", server.url, *QUICK, "--proxy", address, "-o", str(runs)),
            capture_output=True,
            timeout=60,
        )
    assert ran.returncode in (0, 4), ran.stderr
    assert all(BASIC in head for head in proxy.seen)
    assert SECRET.encode() not in everything(ran, runs)
    assert BASIC.encode() not in everything(ran, runs)
    assert proxy.url.encode() in everything(ran, runs)


class Socks(Proxy):
    """A SOCKS 5 proxy that wants a password (RFC 1928, RFC 1929). `seen` are the user names and passwords it got."""

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client:
            assert client.recv(2)[0] == 5
            client.recv(16)  # the methods
            client.sendall(b"\x05\x02")
            self.seen.append(client.recv(600)[1:].decode())
            client.sendall(b"\x01\x00")
            asked = client.recv(600)
            size = 4 if asked[3] == 1 else asked[4] + 1
            host = socket.inet_ntoa(asked[4:8]) if asked[3] == 1 else asked[5 : 4 + size].decode()
            time.sleep(0.05)
            with socket.create_connection((host, int.from_bytes(asked[4 + size : 6 + size], "big"))) as server:
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
                back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                back.start()
                self._pump(client, server)
                back.join()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_x08_through_a_socks_proxy(tls: bool, authority: trustme.CA, ca_file: str, tmp_path: Path) -> None:
    pytest.importorskip("socksio")
    with Socks() as proxy, tls_server(authority) if tls else ThreadedServer(posts(answer)) as server:
        address = proxy.url.replace("http://", f"socks5://user:{SECRET}@")
        flags = ("--proxy", address, *(("--ca-file", ca_file) if tls else ()))
        ran = loadgen("run", server.url, *QUICK, *flags, output=tmp_path)
    went_well(ran)
    assert set(proxy.seen) == {f"\x04user{chr(len(SECRET))}{SECRET}"}
    fresh = [record for record in ran.records() if record.connect is not None]
    assert fresh
    for record in fresh:  # the proxy takes 50 ms to connect, which is no part of any latency
        assert (record.sent_ns or 0) - record.scheduled_ns >= 50e6
    assert SECRET not in ran.said


@pytest.mark.parametrize("address", ["127.0.0.1:9", f"ftp://user:{SECRET}@h", "http://", "http://[::1", "nonsense"])
def test_x08_a_proxy_that_is_no_address(address: str, tmp_path: Path) -> None:
    with ThreadedServer(posts(answer)) as server:
        ran = loadgen("run", server.url, *QUICK, "--proxy", address, output=tmp_path)
        assert server.requests == []
    assert ran.code == 2
    assert "--proxy" in ran.err
    assert SECRET not in ran.err


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_x08_a_proxy_that_is_down(scheme: str, tmp_path: Path) -> None:
    ran = loadgen("run", f"{scheme}://127.0.0.1:9", *QUICK, "--proxy", "http://127.0.0.1:1", output=tmp_path)
    assert ran.code == 3
    assert "proxy" in ran.err
    assert "http://127.0.0.1:1" in ran.err


def test_x08_a_proxy_that_refuses(tmp_path: Path) -> None:
    def refuse(request: Request) -> list[Action]:
        return error_reply(407, "log in")

    with ThreadedServer(refuse) as server:
        for target in ("http://h.example", "https://h.example"):
            ran = loadgen("run", target, *QUICK, "--proxy", server.url, "--model", "m", output=tmp_path)
            assert ran.code == 3
            assert "407" in ran.err
            assert "proxy" in ran.err
