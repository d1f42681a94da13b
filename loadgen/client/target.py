"""Any form in which people write a server's address, turned into the one right URL. Pure.

    gpu1:8000 · http://gpu1:8000/ · http://gpu1:8000/v1 · http://gw/team-a · http://gpu1:8000/v1/chat/completions
    →  <prefix>/v1/chat/completions

Rules, in order:
1. Without a scheme it is http (https on port 443).
2. A path that ends in an endpoint is a whole address: the endpoint is taken off and nothing is added.
3. A path that ends in a version (`/v1`, `/v1beta`, `/v4`), `…/v1beta/openai` or `/openai/deployments/NAME` is a base.
4. Any other path is a prefix: `/v1` is added to it, once. For APIs that stand beside `/v1` it is taken off instead.
A query string stays with every request. Secrets in an address are refused or masked, never echoed.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import quote, unquote, unquote_plus

from ..errors import UsageError
from .dialects import DIALECTS, find_dialect

PATHS: dict[str, str] = {name: dialect.path for name, dialect in DIALECTS.items()}
FORMS = "give it as http://HOST:PORT, with the server's path prefix if it has one"

_SCHEME = re.compile(r"([a-z][a-z0-9+.\-]*)://(.*)", re.IGNORECASE | re.DOTALL)
_VERSION = re.compile(r"v\d+((alpha|beta)\d*)?", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_\-]*[a-z0-9_])?", re.IGNORECASE)
_SECRET_NAME = re.compile(r"key|token|secret|passw|pwd|auth|credential|signature|cookie|^sig$|^code$", re.IGNORECASE)
# Pages of a server that people paste from a browser: dropped where they are the whole path or follow the version.
_PAGES = {"models", "docs", "health", "metrics", "version", "openapi.json"}
# Endpoints that generate no text, by the first part of their path: what they do instead.
TEXTLESS = {
    **dict.fromkeys(("embeddings", "embedding", "embed", "embed_all", "embed_sparse"), "makes embeddings"),
    **dict.fromkeys(("rerank", "reranking", "score", "generative_scoring"), "ranks texts"),
    **dict.fromkeys(("classify", "pooling", "moderations", "similarity"), "classifies or pools texts"),
    **dict.fromkeys(("images", "videos"), "makes pictures"),
    **dict.fromkeys(("audio", "realtime"), "is for sound"),
}
# …and what generates, in a way that is not spoken: what to use instead.
_FOREIGN = {
    "messages": "most servers speak chat too: give the address without it",
    "generate": "for TGI give /generate_stream; else give the address without it",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved address. `url` is where requests go; `base` what the endpoint's path was added to (ends in the
    version, if it has one); `root` is `base` without its version, where servers keep `/version` and the like; none ends
    in a slash. `query` goes with every request. `notes` are what a user should be told of how it was read."""

    base: str
    root: str
    url: str
    host: str  # host:port for the screen and logs
    endpoint: str  # a dialect's name, or MODULE:NAME of one
    query: str = ""
    notes: tuple[str, ...] = ()

    def display(self) -> str:
        """The URL as it may be shown or logged: values of key-like query parameters are masked."""
        return mask(self.url)

    def at_base(self, path: str) -> str:
        """The URL of `path` beside the endpoint, e.g. `/models`, with the query."""
        return self._with_query(self.base + path)

    @property
    def models_url(self) -> str:
        """Where the server lists its models: beside the endpoint, or in its `/v1` beside an API without a version."""
        return self.at_root("/v1/models") if find_dialect(self.endpoint).at_root else self.at_base("/models")

    def at_root(self, path: str) -> str:
        """The URL of `path` at the server's own root, e.g. `/version`, with the query."""
        return self._with_query(self.root + path)

    @property
    def deployment(self) -> str:
        """The deployment that an address such as …/openai/deployments/NAME names, else empty."""
        _before, found, name = self.base.rpartition("/openai/deployments/")
        return unquote(name) if found and "/" not in name else ""

    def _with_query(self, url: str) -> str:
        return f"{url}?{self.query}" if self.query else url


def resolve(text: str, endpoint: str | None = None) -> Target:
    """The one right address for what was typed. `endpoint` is None when it was not asked for: then the address decides,
    and `chat` is the default.

    Raises UsageError with one sentence and its remedy; no secret of the address is in it.
    """
    if endpoint is not None:
        if endpoint.lower() in TEXTLESS:
            raise _textless(endpoint.lower(), f"--endpoint {endpoint}")
        find_dialect(endpoint)
    typed = text.strip()
    shown = mask(typed)
    if not typed:
        raise UsageError("the address of the server is empty", FORMS)
    if any(c.isspace() or ord(c) < 32 or ord(c) == 127 for c in typed):
        raise UsageError(f"the address {shown!r} holds a space or a control character", FORMS)
    scheme, authority, path, query, notes = _split(typed, shown)
    host, port = _host_port(authority, shown)
    if not scheme:
        scheme = "https" if port == 443 else "http"

    segments = [part for part in path.split("/") if part]
    segments, found = _take_endpoint(segments, endpoint, shown, notes)
    chosen = _endpoint(endpoint, found, shown, notes)
    dialect = find_dialect(chosen)
    whole = found is not None
    if dialect.at_root:
        if not whole and segments and _VERSION.fullmatch(segments[-1]):
            segments.pop()
    elif not whole and not _is_base(segments):
        segments.append("v1")
    origin = f"{scheme}://{host}" + (f":{port}" if port is not None else "")
    base = origin + "".join("/" + quote(part, safe="%:@!$&'()*+,;=~") for part in segments)
    root = base.rsplit("/", 1)[0] if segments and _VERSION.fullmatch(segments[-1]) else base
    url = base + dialect.path + (f"?{query}" if query else "")
    return Target(base, root, url, origin.split("://", 1)[1], chosen, query, tuple(notes))


def mask(url: str) -> str:
    """Any text of an address without its secrets: user and password, and values of key-like query parameters."""
    prefix, slashes, rest = url.rpartition("://") if "://" in url.split("?")[0] else ("", "", url)
    if _holds_password(rest):
        slashes, rest = f"{slashes}***@", rest.rpartition("@")[2]
    head, mark, query = rest.partition("?")
    query, hash_mark, fragment = query.partition("#")
    return prefix + slashes + head + mark + "&".join(_mask_pairs(query.split("&"))) + hash_mark + fragment


def holds_secret(name: str) -> bool:
    """Is this the name of a header or a parameter whose value is not for others to see?"""
    return _SECRET_NAME.search(name) is not None


def _holds_password(rest: str) -> bool:
    """Does an address, its scheme taken off, name a user? A password may hold an unescaped slash, ? or #: then what
    stands before it looks like a host with a port that is no number."""
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    _, colon, port = authority.partition(":")
    no_port = bool(colon) and not port.isdigit() and not authority.startswith("[")
    return "@" in authority or ("@" in rest and no_port)


def _mask_pairs(pairs: Iterable[str]) -> Iterable[str]:
    for pair in pairs:
        name, equals, value = pair.partition("=")
        yield f"{name}=***" if value and holds_secret(unquote_plus(name)) else name + equals + value


def _split(typed: str, shown: str) -> tuple[str, str, str, str, list[str]]:
    """Scheme ('' where none was typed), authority, path, query and the first notes."""
    notes: list[str] = []
    match = _SCHEME.fullmatch(typed)
    if match:
        scheme, rest = match.group(1).lower(), match.group(2)
        if scheme not in ("http", "https"):
            raise UsageError(f"{shown} has the scheme {scheme}, and only http and https are spoken", FORMS)
    elif re.match(r"https?:/", typed, re.IGNORECASE) or typed.startswith("/"):
        raise UsageError(f"{shown} is not an address: a scheme is followed by ://", FORMS)
    else:
        scheme, rest = "", typed
    secret = _holds_password(rest)
    rest, _, fragment = rest.partition("#")
    if fragment:
        notes.append("the part of the address after # is not sent")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    if secret:
        raise UsageError(
            f"{shown} holds a user name or password, which other users of this machine could read",
            "leave it out; send it with --header 'Authorization: Basic …', or put a key into LOADGEN_API_KEY",
        )
    if not authority:
        raise UsageError(f"{shown} names no host", FORMS)
    return scheme, authority, slash + path, query, notes


def _host_port(authority: str, shown: str) -> tuple[str, int | None]:
    port: str | None
    if authority.startswith("["):
        inside, bracket, after = authority[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise UsageError(f"the host of {shown} opens a bracket that does not close rightly", "write [::1]:8000")
        try:
            host = f"[{ipaddress.IPv6Address(inside)}]"
        except ValueError:
            raise UsageError(f"the brackets of {shown} hold no IPv6 address", "write it as [::1]:8000") from None
        port = after[1:] if after else None
    elif authority.count(":") > 1:
        raise UsageError(f"the host of {shown} has more than one colon", "put an IPv6 address in brackets: [::1]:8000")
    else:
        name, colon, number = authority.partition(":")
        host, port = _host(name, shown), number if colon else None
    if port is None:
        return host, None
    if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
        raise UsageError(f"the port of {shown} is {port or 'missing'}, not a number from 1 to 65535", FORMS)
    return host, int(port)


def _host(name: str, shown: str) -> str:
    if not name:
        raise UsageError(f"{shown} names no host", FORMS)
    try:
        plain = name.lower() if name.isascii() else name.encode("idna").decode("ascii")
    except UnicodeError:
        plain = ""
    if len(plain) > 253 or not all(_LABEL.fullmatch(label) for label in plain.removesuffix(".").split(".")):
        raise UsageError(f"{name} in {shown} cannot be a host's name", FORMS)
    return plain


def _take_endpoint(
    segments: list[str], asked: str | None, shown: str, notes: list[str]
) -> tuple[list[str], str | None]:
    """The path without an endpoint at its end, and which one that was."""
    low = [part.lower() for part in segments]
    own = {} if asked is None or asked in PATHS else {asked: find_dialect(asked).path}
    for name, path in {**own, **PATHS}.items():  # in this order: /chat/completions ends in /completions
        parts = path.lower().strip("/").split("/")
        if low[-len(parts) :] == parts:
            return segments[: -len(parts)], name
    after_version = len(low) > 1 and _VERSION.fullmatch(low[-2]) is not None
    if after_version and low[-1] == "chat":
        return segments[:-1], "chat"
    if (after_version or len(low) == 1) and low[-1] in _PAGES:
        notes.append(f"/{segments[-1]} at the end of the address is a page of the server and was left out")
        return segments[:-1], None
    start = next((i + 1 for i, part in enumerate(low) if _VERSION.fullmatch(part)), 1 if low[:1] == ["api"] else 0)
    first = low[start] if len(low) > start and len(low) - start <= 2 else ""
    if first in TEXTLESS:
        raise _textless(first, f"/{'/'.join(segments)} of {shown}")
    if first in _FOREIGN and len(low) - start == 1:
        raise UsageError(f"/{'/'.join(segments)} of {shown} is an endpoint that is not spoken here", _FOREIGN[first])
    return segments, None


def _textless(what: str, named: str) -> UsageError:
    return UsageError(
        f"{named} {TEXTLESS[what]}: no text is generated there, and that is what is measured",
        f"give the address of a model that generates text, without this path; the endpoints are {', '.join(DIALECTS)}",
    )


def _endpoint(asked: str | None, found: str | None, shown: str, notes: list[str]) -> str:
    if asked is not None and found is not None and asked != found:
        raise UsageError(f"{shown} is the {found} endpoint, but --endpoint says {asked}", "leave one of the two out")
    if found is not None:
        if found != "chat":
            notes.append(f"the address ends in {PATHS[found]}, so the endpoint is {found}")
        return found
    return asked or "chat"


def _is_base(segments: list[str]) -> bool:
    if not segments:
        return False
    low = [part.lower() for part in segments]
    if _VERSION.fullmatch(low[-1]):
        return True
    if low[-1] == "openai":  # a gateway's OpenAI form below its own version: /v1beta/openai
        return any(_VERSION.fullmatch(part) for part in low[:-1])
    return low[-3:-1] == ["openai", "deployments"]
