"""What a request that failed before any load means, and what to do about it. Pure.

One sentence that names the address, the status and the server's own words; one remedy. `transient` says whether waiting
may help (`--wait-ready`): a server that loads refuses connections, or is behind a gateway that answers 502, 503 or 404.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..errors import Failure, TargetError
from ..records import Outcome, Record, TimeoutKind
from .secrets import without_secrets
from .target import mask

WORDS_LENGTH = 400

_TOO_LONG = re.compile(
    r"context|too long|too large|maximum.{0,20}(length|tokens)|exceed|must (be <=|have less than)", re.IGNORECASE
)
_MODEL = re.compile(r"\bmodel\b|\bdeployment\b", re.IGNORECASE)
# Of models that embed, rank or classify: the words of vLLM, Ollama, llama.cpp and OpenAI; how such models are named.
_TEXTLESS = re.compile(
    r"does(n't| not) support (the )?(chat(?!.?template)|generat|completion)|not a chat model|without .{0,3}--embedding"
    r"|(is an?|only).{0,20} embedding",
    re.IGNORECASE,
)
_TEXTLESS_NAME = re.compile(r"embed|rerank|(^|[/_-])(bge|gte|e5|minilm)(-|$)|colbert|reward", re.IGNORECASE)
NAME_ANOTHER = "name a model that generates text with --model, or give the address of a server that has one"
_NOT_TLS = re.compile(r"wrong.version.number|record.layer.failure|unknown.protocol|http.request", re.IGNORECASE)
_URL = re.compile(r"https?://[^\s,]+")
_TAGS = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)


class PreflightError(TargetError):
    """The server cannot be measured, found out before any load. `records` are the requests sent so far; `status` is the
    HTTP status, if one came; `transient` whether it may pass while a server loads."""

    def __init__(self, message: str, remedy: str = "", *, transient: bool = False, status: int | None = None) -> None:
        super().__init__(message, remedy)
        self.transient = transient
        self.status = status
        self.records: tuple[Record, ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """What the one who explains should know: the URL as shown, whether a key was sent, the model asked for and those
    the server lists, the other addresses that were tried, the user's own body fields, the secrets to mask, and the
    proxy or Unix socket in between."""

    url: str
    has_key: bool = False
    model: str = ""
    models: Sequence[str] = ()
    tried: Sequence[str] = ()
    extra_fields: Sequence[str] = ()
    secrets: Sequence[str] = ()
    proxy: str | None = None
    unix_socket: str | None = None


def explain_record(record: Record, context: Context) -> PreflightError:
    """The error for a request that did not succeed."""
    return explain(context, record.status, record.error, record.timeout, record.outcome)


def explain(
    context: Context,
    status: int | None,
    failure: Failure | None,
    timeout: TimeoutKind | None = None,
    outcome: Outcome = "error",
) -> PreflightError:
    """The error for any way to fail: a status, a failure of the connection, a timeout, or an answer without a token."""
    words = without_secrets(server_words(failure), context.secrets)
    url = context.url
    if timeout is not None:
        return _timeout(url, timeout)
    if outcome in ("cut", "cancelled"):
        return PreflightError("interrupted before any load")
    if status is not None and 300 <= status < 400:
        return _redirect(url, status, words)
    if status is not None and status != 200:
        remedy, transient = _status_remedy(status, words, context)
        said = f": {words}" if words else ""
        return PreflightError(f"{url} answered {status}{said}", remedy, transient=transient, status=status)
    if failure is not None:
        return _failure(failure, words, context)
    what = "ended before it was complete" if outcome == "incomplete" else "holds no output"
    return PreflightError(
        f"the answer of {url} {what}", "try the same request by hand and see what comes", transient=True
    )


def _redirect(url: str, status: int, words: str) -> PreflightError:
    words = _URL.sub(lambda found: mask(found[0]), words)
    told = f"{url} answered {status}: {words}"
    where = _URL.search(words)
    if where is None:
        return PreflightError(told, "check the address: a redirect without a goal comes from no model server")
    goal = where[0]
    if goal.startswith("https:") and goal.removeprefix("https") == url.removeprefix("http"):
        return PreflightError(told, "write https:// in place of http://")
    try:
        elsewhere = urlsplit(goal).netloc != urlsplit(url).netloc
    except ValueError as error:
        return PreflightError(told, f"check the address: where it points to is none ({error})")
    key = "; no key of yours was sent there" if elsewhere else ""
    return PreflightError(told, f"give {goal} as the address it points to, if that is the server you mean{key}")


def server_words(failure: Failure | None) -> str:
    """The server's or the system's own words on one line, a page without its tags, bounded."""
    if failure is None:
        return ""
    words = failure.message
    excerpt = (failure.excerpt or "").strip()
    if excerpt and words and (words in excerpt or failure.kind == "redirect"):
        pass  # the body's words are in the message
    elif excerpt and not excerpt.startswith(("{", "[")):
        words = f"{words}: {_TAGS.sub(' ', excerpt)}" if words else _TAGS.sub(" ", excerpt)
    elif excerpt and (not words or words not in excerpt):
        words = f"{words} {excerpt}".strip()  # JSON of no known shape: the message is only the status's name
    words = " ".join(words.split())
    return words if len(words) <= WORDS_LENGTH else words[: WORDS_LENGTH - 1] + "…"


def _timeout(url: str, timeout: TimeoutKind) -> PreflightError:
    what, remedy = {
        "connect": ("no connection was made in time", "check host, port and firewall, or raise --connect-timeout"),
        "first_token": ("no token came in time", "is the server loaded, or busy? else raise --first-token-timeout"),
        "idle": ("the stream stopped in its middle", "look into the server's log, or raise --idle-timeout"),
        "total": ("the answer took too long", "lower --output-len, or raise --timeout"),
    }[timeout]
    return PreflightError(f"{url}: {what}", remedy, transient=True)


def _status_remedy(status: int, words: str, context: Context) -> tuple[str, bool]:
    """What to do about a status, and whether waiting may help."""
    if status in (400, 404, 405, 422, 500, 501) and textless(words, context.model if status in (404, 405) else ""):
        return f"it may be a model that only embeds, ranks or classifies: {NAME_ANOTHER}", False
    if status in (401, 403):
        if context.has_key:
            return "the key that was sent is refused: check it (LOADGEN_API_KEY, --api-key-env, --api-key-file)", False
        return "no key was sent: put it into LOADGEN_API_KEY, or name it with --api-key-env or --api-key-file", False
    if status == 407:
        return f"the proxy {context.proxy or ''} wants a password: --proxy http://USER:PASSWORD@HOST:PORT", False
    if status == 402:
        return "the account behind the key has no credit", False
    if status in (404, 405):
        return _not_found(words, context), True
    if status in (400, 413, 422):
        return _refused(words, context), False
    if status == 429:
        return "the server limits how often you may ask: wait, or have the limit of the key raised", True
    if status in (502, 503, 504):
        return "the server is not ready behind that address: start it, or wait for it with --wait-ready 5m", True
    if status >= 500:
        return "the server itself failed: its log says why", True
    return "try the same request by hand and see what comes", False


def _not_found(words: str, context: Context) -> str:
    if context.model and context.models and (context.model not in context.models or _MODEL.search(words)):
        return f"name a model that the server has with --model: {', '.join(context.models[:10])}"
    if context.model and _MODEL.search(words):
        return f"the server does not know the model {context.model}: name another with --model"
    tried = f" (tried too: {', '.join(context.tried)})" if context.tried else ""
    return f"check the path; a whole address ends in /chat/completions or another that --endpoint names{tried}"


def _refused(words: str, context: Context) -> str:
    low = words.lower()
    if "https port" in low:
        return "write https:// in place of http://"
    if "max_completion_tokens" in low and "max_completion_tokens" not in context.extra_fields:
        return """the server wants another name for the length: --extra-body '{"max_completion_tokens": N}'"""
    mine = [name for name in context.extra_fields if re.search(rf"\b{re.escape(name)}\b", words)]
    if mine:
        return f"the field {', '.join(mine)} comes from --extra-body: change it or leave it out"
    if "chat template" in low or "chat_template" in low:
        return "the model has no chat template: use --endpoint completions"
    if too_long(words):
        return "lower --input-len or --output-len so that both fit into the context"
    return "the words are the server's own; --dry-run shows the body that was sent, --extra-body changes it"


def _failure(failure: Failure, words: str, context: Context) -> PreflightError:
    url, https = context.url, context.url.startswith("https://")
    if context.unix_socket and failure.kind in ("connect", "client"):
        remedy = "is the server up, does it listen there, and may this user open it?"
        return PreflightError(f"nothing answers at the socket {context.unix_socket}: {words}", remedy, transient=True)
    if context.proxy and failure.kind in ("dns", "connect"):
        remedy = "check its address, or leave --proxy and --trust-env out to go straight to the server"
        return PreflightError(f"the proxy {context.proxy} on the way to {url} failed: {words}", remedy, transient=True)
    if failure.kind == "dns":
        return PreflightError(f"the host of {url} is not known: {words}", "check its spelling", transient=True)
    if failure.kind == "connect" and failure.code == "timeout":
        hint = ", and does it speak TLS? else write http://" if https else "?"
        return PreflightError(f"{url}: {words}", f"check host and port; is the server busy{hint}", transient=True)
    if failure.kind == "connect":
        remedy = "is the server up, and are host and port right? --wait-ready 5m waits for one that is starting"
        return PreflightError(f"nothing answers at {url}: {words}", remedy, transient=True)
    if failure.kind == "tls" and _NOT_TLS.search(words):
        return PreflightError(f"{url} does not speak TLS: {words}", "write http:// in place of https://")
    if failure.kind == "tls":
        remedy = "give the CA's certificate with --ca-file FILE, or --insecure for a self-signed one that you trust"
        return PreflightError(f"the TLS connection to {url} failed: {words}", remedy)
    if failure.kind in ("reset", "protocol"):
        remedy = (
            "look into the server's log" if https else "look into the server's log; if it speaks TLS, write https://"
        )
        return PreflightError(f"the connection to {url} broke: {words}", remedy, transient=True)
    if failure.kind == "content_type":
        remedy = "check port and path: another program, or a gateway's page, answers there"
        return PreflightError(f"{url} gave no event stream: {words}", remedy)
    if failure.kind == "client":
        return PreflightError(f"this machine could not send the request: {words}", "see ulimit -n and free memory")
    if failure.kind == "server":
        if too_long(words):
            return PreflightError(f"{url} sent an error: {words}", "lower --input-len or --output-len")
        return PreflightError(f"{url} sent an error: {words}", "the server's log says why", transient=True)
    return PreflightError(f"{url} failed: {words}", "try the same request by hand and see what comes")


def too_long(words: str) -> bool:
    """Do the server's words say that the request does not fit its context?"""
    return _TOO_LONG.search(words) is not None


def textless(words: str, model: str = "") -> bool:
    """Do the server's words, or the model's name, say that it generates no text?"""
    return _TEXTLESS.search(words) is not None or _TEXTLESS_NAME.search(model) is not None


def names_model(words: str) -> bool:
    """Do the server's words speak of the model?"""
    return _MODEL.search(words) is not None
