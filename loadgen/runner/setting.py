"""What stays the same from a run's first request to its last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field, replace

import httpx

from ..client.addresses import Addresses
from ..client.counting import ahead
from ..client.dialects import find_dialect
from ..client.dialects.base import Dialect, RequestOptions
from ..client.dialects.sampling import sampling_fields
from ..client.exchange import HttpxSender
from ..client.peers import in_turn
from ..client.sender import Sender
from ..client.target import Target, resolve
from ..client.transport import open_client
from ..errors import UsageError
from ..records import Prompt
from ..workload.plain import PlainWorkload, defined_workload, plain_workload, traced_workload
from ..workload.prompts import Calibration
from ..workload.sessions import Sessions
from ..workload.sharing import parse_sharing
from ..workload.tokenizer import LocalTokenizer
from .config import RunConfig


@dataclass(frozen=True, slots=True)
class Setting:
    """The server, the workload and the run's own numbers. `zero_ns` is the run's start on CLOCK_MONOTONIC."""

    config: RunConfig
    target: Target
    workload: PlainWorkload
    seed: int
    nonce: str
    zero_ns: int
    others: tuple[Target, ...] = ()  # further servers, which requests go to in turn
    addresses: Addresses = field(default_factory=Addresses)
    tokenizer: LocalTokenizer | None = None

    @property
    def targets(self) -> tuple[Target, ...]:
        return (self.target, *self.others)

    def client(self, connections: int) -> httpx.AsyncClient:
        access = self.config.access
        return open_client(
            access,
            connections * len(self.targets),
            tls=any(target.url.startswith("https") for target in self.targets) or access.proxy is not None,
            connect_timeout_s=self.config.timeouts.connect,
            idle_timeout_s=self.config.timeouts.idle,
            addresses=self.addresses,
        )

    def sender(self, client: httpx.AsyncClient, dialect: Dialect, options: RequestOptions) -> Sender:
        """To all servers in turn."""
        return in_turn({target.url: self.sender_to(target, client, dialect, options) for target in self.targets})

    def sender_to(
        self, target: Target, client: httpx.AsyncClient, dialect: Dialect, options: RequestOptions
    ) -> HttpxSender:
        return HttpxSender(
            client,
            target.url,
            dialect,
            options,
            zero_ns=self.zero_ns,
            timeouts=self.config.timeouts,
            run=self.nonce,
            tokenizer=self.tokenizer,
        )

    async def survey(self) -> tuple[str, ...]:
        """What is to be said of the addresses that the servers' names lead to."""
        access = self.config.access
        said: list[str] = []
        for url in (httpx.URL(target.url) for target in self.targets):
            if access.proxy_for(str(url)) is None and access.unix_socket is None:
                said += await self.addresses.survey(url.host, url.port or (443 if url.scheme == "https" else 80))
        return tuple(dict.fromkeys(said))

    def step_nonce(self, step: int) -> str:
        """Each step's stream replays the same lengths, so that levels are compared on equal work, with a text of its
        own, so that none finds the prefix cache warmed by another."""
        nonce = f"seed {self.seed}" if self.config.workload.same_text else self.nonce
        return f"{nonce}-{step}"

    def prompts(
        self, step: int, calibration: Calibration | None, context: int | None = None
    ) -> AbstractContextManager[Iterator[Prompt]]:
        """A step's endless stream; `context` is the server's, in tokens."""
        stream = self.workload.stream(self.seed, self.step_nonce(step), calibration, context=context)
        return ahead(stream, self.tokenizer)


def workload_of(config: RunConfig) -> PlainWorkload:
    """Raises UsageError where what is asked for does not go together."""
    workload, choice = _chosen(config), config.workload
    made = workload.sized and workload.trace is None
    shortest = workload.input_len.low if workload.input_len and workload.definition is None else None
    sharing = parse_sharing(choice.shared_prefix, choice.prefix_groups, shortest, made=made) or workload.sharing
    sessions = choice.sessions or workload.sessions
    if sessions is not None and not made:
        raise UsageError("--turns is for made text: given prompts cannot be gone on from", "leave it out")
    if sessions is not None and config.token_ids:
        raise UsageError("--token-ids and conversations exclude each other: an answer comes as text", "drop one")
    if sessions is not None:
        workload = replace(workload, notes=(*workload.notes, _played(config, sessions)))
    if (sharing, sessions) != (workload.sharing, workload.sessions):
        own = hashlib.sha256(f"{workload.content_hash} {sharing} {sessions}".encode()).hexdigest()
        workload = replace(workload, sharing=sharing, sessions=sessions, content_hash=own)
    return workload


def _played(config: RunConfig, sessions: Sessions) -> str:
    """How the load is to be understood."""
    turns = f"{sessions.mean_turns:.3g} turns in the mean"
    if config.open_loop is not None:
        return f"--rate is of conversations, with {turns}; the turns after the first come as their users send them"
    thinking = "; who thinks is not in flight" if sessions.think_ms is not None else ""
    return f"each of the concurrent slots is a user, who has one conversation after the other, with {turns}{thinking}"


def _chosen(config: RunConfig) -> PlainWorkload:
    choice = config.workload
    if choice.trace is not None:
        return replace(traced_workload(choice.trace), models=config.models)
    if choice.definition is not None:
        workload = defined_workload(choice.definition)
        said = f"objectives of {workload.source}, as no --slo is given: {' '.join(choice.definition.slo)}"
        notes = (*workload.notes, said) if choice.own_slo else workload.notes
        return replace(workload, models=config.models, notes=notes)
    return replace(plain_workload(choice.input_len, choice.output_len, choice.prompts), models=config.models)


def target_of(config: RunConfig, workload: PlainWorkload) -> Target:
    """The address, and the endpoint that it, `--endpoint` or the bodies of a file tell. Raises UsageError where they
    contradict each other."""
    target = resolve(config.url, config.endpoint)
    theirs = workload.endpoint
    if theirs is None or theirs == target.endpoint:
        return target
    if config.endpoint is None:
        try:
            return resolve(config.url, theirs)
        except UsageError:  # the address names another one
            pass
    if workload.file is not None and workload.file.batch:
        raise UsageError(
            f"{workload.source} is a batch for the endpoint {theirs}, but {target.endpoint} was asked for",
            "leave --endpoint out and give the address without an endpoint, or give another file",
        )
    return target


def others_of(config: RunConfig, first: Target) -> tuple[Target, ...]:
    """The further addresses. Raises UsageError where one is given twice, or is of another endpoint than the first."""
    others: list[Target] = []
    for url in config.more_urls:
        other = resolve(url, config.endpoint)
        if other.endpoint != first.endpoint:
            with suppress(UsageError):  # it may name none itself
                other = resolve(url, first.endpoint)
        if other.endpoint != first.endpoint:
            raise UsageError(
                f"{first.display()} is the {first.endpoint} endpoint, {other.display()} the {other.endpoint} one",
                "give addresses of one endpoint, or measure them one after the other",
            )
        if other.url in (first.url, *(known.url for known in others)):
            raise UsageError(f"{other.display()} is given twice", "leave one of the two out")
        others.append(other)
    return tuple(others)


def options_of(config: RunConfig, endpoint: str) -> RequestOptions:
    """What every request asks for. Its model is empty when it is to be found out."""
    models = config.models
    dialect = find_dialect(endpoint)
    if not config.stream and not dialect.whole:
        raise UsageError(f"{endpoint} always streams", "leave --no-stream out, or take another --endpoint")
    if models is not None and len(models.names) > 1 and not dialect.names_model:
        raise UsageError(f"requests to {endpoint} name no model, so that they cannot be mixed", "give --model once")
    if config.token_ids and endpoint != "completions":
        raise UsageError(
            f"{endpoint} takes no token ids as a prompt", "add --endpoint completions, or drop --token-ids"
        )
    return RequestOptions(
        model=models.names[0] if models is not None else "",
        stream=config.stream,
        force_length=config.force_length,
        sampling=sampling_fields(endpoint, config.sampling),
        extra_body=config.extra_body,
    )
