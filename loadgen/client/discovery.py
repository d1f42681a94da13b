"""What a server tells of itself when asked politely: its kind, version, models, context length and flags.

Only GETs, each with a short timeout; an answer that does not come, or is of another shape than expected, is an unknown
and never an error. Which server answers what:

    vLLM /v1/models owned_by, /version, /metrics   SGLang /v1/models owned_by, /get_server_info   TGI /info
    llama.cpp /v1/models owned_by, /props          Ollama /api/version, /v1/models owned_by       others: the header
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx

from ..errors import Failure
from .dialects.base import MalformedEvent
from .dialects.reading import parse_json
from .failures import error_message, failure_kind, forget, redirected, system_words
from .remedies import NAME_ANOTHER, PreflightError
from .target import Target, mask

GET_TIMEOUT_S = 5.0
MAX_BODY_BYTES = 8 << 20
EXCERPT_BYTES = 2048

OWNERS = {
    "vllm": "vllm",
    "sglang": "sglang",
    "llamacpp": "llama.cpp",
    "library": "ollama",
    "organization_owner": "lm-studio",
    "tensorrt_llm": "tensorrt-llm",
    "lmdeploy": "lmdeploy",
    "tabbyapi": "tabbyapi",
    "loadgen-simulator": "simulator",
}
# The paths asked once the kind is known; for an unknown kind all of them are.
INFO_PATHS = {
    "vllm": ("/version", "/metrics"),
    "sglang": ("/get_server_info", "/get_model_info"),
    "llama.cpp": ("/props",),
    "ollama": ("/api/version",),
    "tgi": ("/info",),
    "simulator": ("/version",),
}
UNKNOWN_PATHS = ("/version", "/get_server_info", "/info", "/props", "/api/version")
# What is worth keeping of the long lists in which some servers tell their settings.
SETTINGS = (
    "attention_backend", "chunked_prefill_size", "disable_radix_cache", "docker_label", "dp_size", "dtype",
    "enable_mixed_chunk", "kv_cache_dtype", "max_batch_prefill_tokens", "max_batch_total_tokens",
    "max_concurrent_requests", "max_input_tokens", "max_prefill_tokens", "max_running_requests",
    "max_total_num_tokens", "max_total_tokens", "mem_fraction_static", "model_dtype", "model_id", "model_path",
    "model_sha", "page_size", "pp_size", "quantization", "schedule_policy", "sha", "speculative_algorithm",
    "speculative_num_steps", "stream_interval", "total_slots", "tp_size",
)  # fmt: skip
CACHE_SETTINGS = (
    "block_size", "cache_dtype", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_size_tokens",
    "num_gpu_blocks",
)  # fmt: skip
CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length", "n_ctx")
# One sample of vLLM's, whose labels are its cache settings.
_CACHE_CONFIG = re.compile(r"^vllm:cache_config_info\{(.*)\}\s", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Answer:
    """What a GET gave: a status, the JSON in its body (None if it is none) and its text; or the failure."""

    url: str
    status: int | None = None
    json: Any = None
    text: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: Failure | None = None

    def as_failure(self) -> Failure:
        """An answer that is not the one hoped for, as a failure with the server's words."""
        if self.status is not None and 300 <= self.status < 400:
            return Failure("redirect", redirected(self.url, mask(self.headers.get("location", ""))), self.status)
        words = error_message(self.text.encode()) or ""
        return Failure("http", words, self.status, self.text[:EXCERPT_BYTES])

    def __str__(self) -> str:
        if self.failure is None:
            return f"{mask(self.url)} answered {self.status}"
        return f"{mask(self.url)} gave no answer ({self.failure.message})"


@dataclass(frozen=True, slots=True)
class Model:
    """An entry of the server's model list. `parent` is set for an adapter on a base model; `generates` is False where
    the server says that the model only embeds, ranks or classifies."""

    id: str
    root: str | None = None
    parent: str | None = None
    context_length: int | None = None
    generates: bool = True


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found out. `listing` is the answer to the model list; `models` is empty where there was none."""

    listing: Answer
    models: tuple[Model, ...] = ()
    kind: str | None = None
    version: str | None = None
    context_length: int | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)


async def discover(client: httpx.AsyncClient, target: Target, *, timeout_s: float = GET_TIMEOUT_S) -> Discovery:
    """Ask the server what it is. Never raises for what the server does: a list that did not come is in `listing`."""
    listing = await get(client, target.models_url, timeout_s)
    if listing.failure is not None:
        return Discovery(listing)
    kind = recognise(listing)
    answers: dict[str, Answer] = {}

    async def ask(path: str) -> None:
        answers[path] = await get(client, target.at_root(path), timeout_s)

    async with anyio.create_task_group() as group:
        for path in INFO_PATHS.get(kind, ()) if kind else UNKNOWN_PATHS:
            group.start_soon(ask, path)
    return read_answers(listing, answers)


async def get(client: httpx.AsyncClient, url: str, timeout_s: float = GET_TIMEOUT_S) -> Answer:
    """One GET, read up to a bound; any failure is in the answer."""
    response = None
    try:
        with anyio.fail_after(timeout_s):
            async with client.stream("GET", url) as response:
                data = bytearray()
                async for chunk in response.aiter_bytes():
                    data += chunk
                    if len(data) > MAX_BODY_BYTES:
                        break
                status, headers = response.status_code, dict(response.headers)
    except TimeoutError:
        return Answer(url, failure=Failure("connect", f"no answer within {timeout_s:g} s", "timeout"))
    except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError) as error:
        return Answer(url, failure=Failure(failure_kind(error), system_words(error)))
    finally:
        if response is not None:
            forget(response)
    try:
        value = parse_json(bytes(data).removeprefix(b"\xef\xbb\xbf"))
    except MalformedEvent:
        value = None
    return Answer(url, status, value, data.decode("utf-8", "replace"), headers)


def recognise(listing: Answer) -> str | None:
    """The kind of server, by its model list and `server` header."""
    for entry in _entries(listing.json):
        owner = entry.get("owned_by")
        if isinstance(owner, str) and owner.lower() in OWNERS:
            return OWNERS[owner.lower()]
    header = listing.headers.get("server", "").lower()
    return next((kind for kind in ("llama.cpp", "vllm", "sglang", "tgi") if header.startswith(kind)), None)


def read_answers(listing: Answer, answers: Mapping[str, Answer]) -> Discovery:
    """All answers put together. Pure; any JSON will do."""
    models = read_models(listing)
    kind = recognise(listing)

    def at(path: str) -> dict[str, Any]:
        answer = answers.get(path)
        good = answer is not None and answer.status == 200 and isinstance(answer.json, dict)
        return answer.json if good and answer is not None else {}

    server, info, props = at("/get_server_info"), at("/info"), at("/props")
    ollama, version = _text(at("/api/version").get("version")), _text(at("/version").get("version"))
    if kind is None:
        if isinstance(info.get("model_type"), dict) and "model_id" in info:
            kind = "tei"
        elif "model_id" in info and ("router" in info or "max_total_tokens" in info):
            kind = "tgi"
        elif "tp_size" in server or "model_path" in server:
            kind = "sglang"
        elif "default_generation_settings" in props:
            kind = "llama.cpp"
        elif ollama:
            kind = "ollama"
    told: dict[str, Any] = {}
    for source in (server, at("/get_model_info"), info, props):
        told.update({k: source[k] for k in SETTINGS if isinstance(source.get(k), str | int | float | bool)})
    if kind == "vllm" and "/metrics" in answers:
        told.update(_cache_config(answers["/metrics"].text))
    generation = props.get("default_generation_settings")
    contexts = [server, generation if isinstance(generation, dict) else {}]
    context = next((n for source in contexts if (n := _context(source))), None)
    if kind == "tei":
        listed_type = next(iter(info["model_type"]), "embedding")
        models = (Model(str(info["model_id"]), generates=False),)
        told["model_type"] = str(listed_type)
    elif kind == "tgi" and not models and _text(info.get("model_id")):  # older ones list none
        models = (Model(str(info["model_id"])),)
    versions = {
        "sglang": server.get("version"),
        "tgi": info.get("version"),
        "tei": info.get("version"),
        "llama.cpp": props.get("build_info"),
        "ollama": ollama,
    }
    return Discovery(
        listing=listing,
        models=models,
        kind=kind,
        version=_text(versions.get(kind or "")) or version or None,
        context_length=context or _number(info.get("max_total_tokens")),
        flags=told,
    )


def read_models(listing: Answer) -> tuple[Model, ...]:
    """The models of an answer to `/v1/models`, each name once; none where it is something else."""
    if listing.status != 200:
        return ()
    models: dict[str, Model] = {}
    for entry in _entries(listing.json):
        name = _text(entry.get("id")) or _text(entry.get("name"))
        if name and name not in models:
            meta = entry.get("meta")
            context = _context(entry) or (_context(meta) if isinstance(meta, dict) else None)
            generates = _generates(entry.get("capabilities"))
            models[name] = Model(name, _text(entry.get("root")), _text(entry.get("parent")), context, generates)
    return tuple(models.values())


def choose_model(found: Discovery, asked: str | None) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """The model to use, notes on how it was chosen, and warnings. `asked` is what `--model` said, None if nothing.

    Raises PreflightError when none was asked for and the list does not leave exactly one base model.
    """
    names = [model.id for model in found.models]
    silent = [model.id for model in found.models if not model.generates]
    if asked in silent or (not asked and silent and silent == names):
        raise PreflightError(
            f"{listed([asked] if asked else silent)} generates no text: the server says that it only embeds, ranks or"
            " classifies",
            NAME_ANOTHER,
        )
    if asked:
        if not names or asked in names:
            return asked, (), ()
        close = difflib.get_close_matches(asked, names, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return asked, (), (f"the server does not list the model {asked}; it has {listed(names)}{hint}",)
    able = [model for model in found.models if model.generates]
    bases = [model for model in able if model.parent is None] or able
    if len(bases) == 1:
        rest = len(able) - 1
        aside = f"; {rest} adapter{'s' if rest > 1 else ''} on it left aside" if rest else ""
        aside += f"; {listed(silent)} left aside, which generates no text" if silent else ""
        return bases[0].id, (f"model {bases[0].id}, the only one there{aside}",), ()
    if bases and found.kind == "vllm" and bases[0].root and all(m.root == bases[0].root for m in bases):
        return bases[0].id, (f"model {bases[0].id}; the server's other names for it: {listed(names[1:])}",), ()
    if bases:
        raise PreflightError(
            f"the server has {len(bases)} models: {listed([m.id for m in bases])}", "name one with --model"
        )
    why = "lists no model" if found.listing.status == 200 else "does not tell its models"
    if found.listing.status == 200 and not isinstance(found.listing.json, dict | list):
        kind = found.listing.headers.get("content-type", "").split(";")[0] or "something else"
        raise PreflightError(
            f"{found.listing} with {mask(kind)} instead of a list of models",
            "check host, port and path: another program, or a gateway's page, may answer there",
            transient=True,
            status=200,
        )
    raise PreflightError(
        f"{found.listing}: the server {why}",
        "name the model with --model, or check the address if that path is wrong",
        transient=True,
        status=found.listing.status,
    )


def context_of(found: Discovery, model: str) -> int | None:
    """The context length in tokens of `model`, or the server's own."""
    named = next((m.context_length for m in found.models if m.id == model), None)
    return named or found.context_length


def listed(names: list[str], most: int = 10) -> str:
    """Names for a sentence, not too many."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _entries(value: Any) -> list[dict[str, Any]]:
    """The entries of a model list in any of its usual shapes."""
    if isinstance(value, dict):
        value = value.get("data") if isinstance(value.get("data"), list) else value.get("models")
    listed = value if isinstance(value, list) else []
    return [entry if isinstance(entry, dict) else {"id": entry} for entry in listed if isinstance(entry, dict | str)]


def _generates(capabilities: Any) -> bool:
    """False where a list of what a model can do names embedding or ranking, and nothing that gives text."""
    if not isinstance(capabilities, list):
        return True
    known = [one.lower() for one in capabilities if isinstance(one, str)]
    text = any(part in one for one in known for part in ("complet", "chat", "generat", "text", "vision"))
    return text or not any(part in one for one in known for part in ("embed", "rerank", "classif"))


def _context(source: Mapping[str, Any]) -> int | None:
    return next((n for key in CONTEXT_KEYS if (n := _number(source.get(key)))), None)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _text(value: Any) -> str | None:
    """None also for half a character, which cannot be sent back."""
    return value if isinstance(value, str) and value and _is_unicode(value) else None


def _is_unicode(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _cache_config(text: str) -> dict[str, str]:
    match = _CACHE_CONFIG.search(text)
    return {name: value for name, value in _LABEL.findall(match.group(1)) if name in CACHE_SETTINGS} if match else {}
