"""A self-signed certificate for 127.0.0.1, made afresh with nothing but the standard library. Pure.

It lets the ground-truth server speak TLS on a machine that has neither an openssl program nor a crypto package, and
keeps private keys out of the source tree. It is for a loopback address and some minutes: the arithmetic is plain and
takes no care to hide its timing.

P-256 and ECDSA with SHA-256 as in FIPS 186-5, the certificate as in RFC 5280, the key as in RFC 5915.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import time

_P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_DAYS = 2

_Point = tuple[int, int] | None


def self_signed(address: tuple[int, int, int, int] = (127, 0, 0, 1)) -> tuple[str, str]:
    """(certificate, private key) as PEM, valid for two days, its own authority, for this IPv4 address."""
    private = 1 + secrets.randbelow(_N - 1)
    public = _encode_point(_multiply(private, _G))
    body = _certificate_body(public, bytes(address))
    signature = _sign(private, body)
    certificate = _sequence(body, _sequence(_oid(1, 2, 840, 10045, 4, 3, 2)), _bits(signature))
    curve = _tag(0xA0, _oid(1, 2, 840, 10045, 3, 1, 7))
    key = _sequence(_integer(1), _tag(0x04, private.to_bytes(32, "big")), curve, _tag(0xA1, _bits(public)))
    return _pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", key)


def _certificate_body(public: bytes, address: bytes) -> bytes:
    algorithm = _sequence(_oid(1, 2, 840, 10045, 4, 3, 2))
    name = _sequence(_tag(0x31, _sequence(_oid(2, 5, 4, 3), _tag(0x0C, b"loadgen ground truth"))))
    now = time.time()
    valid = _sequence(_moment(now - 86400), _moment(now + _DAYS * 86400))
    key = _sequence(_sequence(_oid(1, 2, 840, 10045, 2, 1), _oid(1, 2, 840, 10045, 3, 1, 7)), _bits(public))
    extensions = _sequence(
        _extension((2, 5, 29, 19), _sequence(_tag(0x01, b"\xff")), critical=True),  # basic constraints: a CA
        _extension((2, 5, 29, 15), _tag(0x03, b"\x02\x84"), critical=True),  # usage: signature, certificate signing
        _extension((2, 5, 29, 14), _tag(0x04, hashlib.sha1(public, usedforsecurity=False).digest())),  # key identifier
        _extension((2, 5, 29, 17), _sequence(_tag(0x87, address))),  # alternative name: the address
    )
    serial = _integer(secrets.randbits(120) | 1)
    return _sequence(_tag(0xA0, _integer(2)), serial, algorithm, name, valid, name, key, _tag(0xA3, extensions))


# --- P-256 and ECDSA ------------------------------------------------------------------------------------------------


def _add(a: _Point, b: _Point) -> _Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0]:
        if (a[1] + b[1]) % _P == 0:
            return None
        slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P) % _P
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P) % _P
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _multiply(factor: int, point: _Point) -> _Point:
    total: _Point = None
    while factor:
        if factor & 1:
            total = _add(total, point)
        point = _add(point, point)
        factor >>= 1
    return total


def _sign(private: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest(), "big")
    while True:
        nonce = 1 + secrets.randbelow(_N - 1)
        point = _multiply(nonce, _G)
        r = point[0] % _N if point is not None else 0
        s = pow(nonce, -1, _N) * (digest + r * private) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


def _encode_point(point: _Point) -> bytes:
    assert point is not None
    return b"\x04" + point[0].to_bytes(32, "big") + point[1].to_bytes(32, "big")


# --- DER ------------------------------------------------------------------------------------------------------------


def _tag(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tag(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tag(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _bits(content: bytes) -> bytes:
    return _tag(0x03, b"\x00" + content)


def _oid(*arcs: int) -> bytes:
    out = bytearray((arcs[0] * 40 + arcs[1],))
    for arc in arcs[2:]:
        digits = [arc & 127]
        while arc := arc >> 7:
            digits.append(arc & 127 | 128)
        out += bytes(reversed(digits))
    return _tag(0x06, bytes(out))


def _extension(arcs: tuple[int, ...], value: bytes, critical: bool = False) -> bytes:
    return _sequence(_oid(*arcs), _tag(0x01, b"\xff") if critical else b"", _tag(0x04, value))


def _moment(epoch_s: float) -> bytes:
    return _tag(0x17, time.strftime("%y%m%d%H%M%SZ", time.gmtime(epoch_s)).encode())


def _pem(label: str, der: bytes) -> str:
    text = base64.b64encode(der).decode()
    lines = "\n".join(text[i : i + 64] for i in range(0, len(text), 64))
    return f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n"
