"""How prompts get the length asked for: settled before any load, so that making them later asks nobody.

The first of these that stands the test: the server's own tokenizer over HTTP, a local one, the server's usage of a few
short requests (each teaches the cost of a group of words, `workload.vocabulary`). The test is the server's usage of
prompts made by it. What the first such prompt costs more is what stands around the text, the second must be exact.
Where none does, lengths are about right, by what a word costs in the mean (`workload.prompts.fit`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import anyio

from ..records import Prompt, Record
from ..workload.prompts import EVERY_WORD, OPENING_WORDS, Calibration, count_words, fit, make_text
from ..workload.tokenizer import LocalTokenizer
from ..workload.vocabulary import Learning, Vocabulary, learn
from ..workload.words import WORDS
from .remedies import PreflightError
from .tokenize import TokenizeApi

Ask = Callable[[Prompt], Awaitable[Record]]
Count = Callable[[str], Awaitable[int | None]]
How = Literal["server", "local", "usage", "token_ids"]

SHORT_OUTPUT = 4  # tokens; of the requests that only teach the cost of text
DEVIATION_LIMIT = 0.02  # of the input length, and of the local count; above it there is a warning
COUNTS = 400  # asked of a tokenizer
LEARN_S = 10.0  # asked of the server's own, in all
PROBES, OPENERS = 12, 2  # requests that teach by their usage, and words tried as a prompt's first
CHECKS = (37, 161)  # tokens beyond the least, of the prompts that try it

BY: dict[How, str] = {
    "server": "by the server's tokenizer",
    "local": "by the local tokenizer",
    "usage": "by usage",
    "token_ids": "as token ids",
}


@dataclass(slots=True)
class Learnt:
    """What a preflight has to say. `exact` is by what lengths are met exactly; None is about."""

    notes: list[str]
    warnings: list[str]
    counts: list[tuple[int, int]] = field(default_factory=list)  # (words, prompt tokens by the server)
    calibration: Calibration | None = None
    deviation: float | None = None
    exact: How | None = None
    silent: bool = False  # the server tells no prompt tokens
    around_known: bool = True  # what it puts around a text is known all the same


async def learn_lengths(
    ask: Ask,
    learnt: Learnt,
    *,
    api: TokenizeApi | None,
    tokenizer: LocalTokenizer | None,
    length: int | None,
    nonce: str,
    probes: int = PROBES,
) -> None:
    """Fill `learnt.calibration`. `length` is the context's; `probes` is how many requests may teach by their usage,
    none if 0. Raises PreflightError where the server does not even answer a short request."""
    most = next((n for n in (len(WORDS), 256, 128, 64) if length is None or 3 * n + 64 <= length), 32)
    for how in _ways(api, tokenizer, probes):
        vocabulary = None
        if how == "server" and api is not None:
            with anyio.move_on_after(LEARN_S):
                vocabulary = await _learnt_by(api.count, learn(COUNTS, nonce, most), nonce)
        elif how == "local" and tokenizer is not None:
            vocabulary = await _learnt_by(_in_this_process(tokenizer), learn(COUNTS, nonce), nonce)
        else:
            vocabulary = await _drive(learn(probes, nonce, most, OPENERS), _by_usage(ask, learnt))
        if vocabulary is not None:
            vocabulary = await _tried(ask, learnt, vocabulary, how, nonce, most)
        if vocabulary is not None:
            around = max(0, vocabulary.base - vocabulary.cost)
            learnt.calibration = Calibration(around, vocabulary.cost, vocabulary)
            learnt.exact = how
            learnt.around_known = not learnt.silent or (api is not None and how == "server" and api.whole)
            return
        if learnt.silent:
            return
    await _fitted(ask, learnt, length, nonce)


async def learn_ids(learnt: Learnt, api: TokenizeApi | None, tokenizer: LocalTokenizer | None) -> None:
    """Make prompts of token ids, of those that our words have. Raises PreflightError where nobody tells them."""
    text = " ".join(WORDS)
    ids = await api.ids(text) if api is not None else None
    if not ids and tokenizer is not None:
        ids = tokenizer.encode(text)
    if not ids:
        raise PreflightError(
            "--token-ids needs ids that the model knows, and the server's /tokenize does not tell them",
            "give the model's own with --tokenizer PATH, or leave --token-ids out",
        )
    learnt.calibration = Calibration(ids=tuple(sorted(set(ids))))
    learnt.exact = "token_ids"


def check_length(
    learnt: Learnt,
    prompt: Prompt,
    record: Record,
    records: Sequence[Record],
    *,
    short: str | None,
    length: int | None,
    full: bool,
) -> None:
    """Did the prompt of the run's own shape have the length asked for, by the server's count? `records` are all of the
    preflight's; `short` is what is to be said of inputs too short to be had; `full`: input and output nearly fill the
    context of `length` tokens."""
    _check_ratio_of(learnt, records)
    if short is not None:
        learnt.warnings.append(short)
    server, asked = record.input_tokens.server, prompt.input_tokens
    if server is None or asked is None:
        if learnt.exact is not None and learnt.around_known:
            learnt.notes.append(f"input lengths exact {BY[learnt.exact]}; the server tells no count to try them by")
        elif learnt.exact is not None:
            learnt.warnings.append(
                f"input lengths exact {BY[learnt.exact]}, without what the server puts around a text: it tells no count"
            )
            learnt.exact = None
        else:
            learnt.warnings.append("the server reports no prompt tokens: input lengths are estimates by words")
        return
    learnt.deviation = server / asked - 1
    seen = f"input of {asked:,} tokens asked for, {server:,} by the server's count"
    if prompt.token_ids is None:
        learnt.counts.append((count_words(prompt.text), server))
        if learnt.calibration is None:
            learnt.calibration = fit(learnt.counts)
        text = learnt.calibration
        if text is None and len(learnt.counts) > 1:
            pairs = ", ".join(f"{tokens} for {words} words" for words, tokens in learnt.counts)
            learnt.warnings.append(f"the server's count of prompt tokens does not follow the text: {pairs}")
            return
        if text is not None:
            seen = f"{max(0, round(text.overhead_tokens))} around the text; {seen}"
        if text is not None and text.vocabulary is None:
            seen = f"{text.tokens_per_word:.2f} tokens a word, {seen}"
    if server != asked:
        learnt.exact = None
    if abs(server - asked) > max(2, DEVIATION_LIMIT * asked):
        learnt.warnings.append(f"the input length is {learnt.deviation:+.0%} off: {seen}")
    else:
        how = "about right, ±1 %" if learnt.exact is None else f"exact {BY[learnt.exact]}"
        learnt.notes.append(f"input lengths {how}: {seen}")
    if full and learnt.exact is None:
        learnt.warnings.append(
            f"input and output nearly fill the context of {length:,} tokens: some requests may be refused as too long"
        )


def check_ratio(learnt: Learnt, local: int, server: int) -> None:
    """Of a given prompt, whatever the server puts around it included."""
    ratio = server / local
    if abs(ratio - 1) > DEVIATION_LIMIT:
        learnt.warnings.append(
            f"the server counts {server:,} prompt tokens where the local tokenizer counts {local:,}"
            f" (ratio {ratio:.2f}); rates use the server's count"
        )


def _check_ratio_of(learnt: Learnt, records: Sequence[Record]) -> None:
    """Of made text: by how much the counts of the shortest and the longest differ, so that the template does not."""
    both = [(r.input_tokens.local, r.input_tokens.server) for r in records]
    known = sorted((local, server) for local, server in both if local is not None and server is not None)
    if known and known[-1][0] - known[0][0] >= 16:
        check_ratio(learnt, known[-1][0] - known[0][0], known[-1][1] - known[0][1])


def _ways(api: TokenizeApi | None, tokenizer: LocalTokenizer | None, probes: int) -> list[How]:
    ways: list[tuple[How, bool]] = [
        ("server", api is not None),
        ("local", tokenizer is not None),
        ("usage", probes > 0),
    ]
    return [how for how, there in ways if there]


async def _drive(learning: Learning, count: Count) -> Vocabulary | None:
    try:
        text = next(learning)
        while True:
            text = learning.send(await count(text))
    except StopIteration as end:
        found: Vocabulary | None = end.value
        return found


async def _learnt_by(count: Count, learning: Learning, nonce: str) -> Vocabulary | None:
    """What a tokenizer teaches, if its counts of whole texts are the sums that follow."""
    vocabulary = await _drive(learning, count)
    if vocabulary is not None:
        for text, tokens in vocabulary.samples(nonce, 1500):
            if await count(text) != tokens:
                return None
    return vocabulary


def _in_this_process(tokenizer: LocalTokenizer) -> Count:
    async def count(text: str) -> int:
        return tokenizer.count(text)

    return count


def _by_usage(ask: Ask, learnt: Learnt) -> Count:
    first = True

    async def count(text: str) -> int | None:
        nonlocal first
        try:
            record = await ask(Prompt(text, output_tokens=SHORT_OUTPUT))
        except PreflightError as error:
            # A text longer than the run's own may be refused: what the run's meets decides.
            if first or error.status not in (400, 413, 422):
                raise
            return None
        learnt.silent = first and record.input_tokens.server is None
        first = False
        return record.input_tokens.server

    return count


async def _tried(
    ask: Ask, learnt: Learnt, vocabulary: Vocabulary, how: How, nonce: str, most: int
) -> Vocabulary | None:
    """The vocabulary, with what the server puts around a text; None where its usage says that the sums are wrong."""
    known = how == "usage"
    for beyond in CHECKS[known:]:
        tokens = vocabulary.base + max(vocabulary.fill_costs) + min(beyond, most) * vocabulary.cost
        text = vocabulary.text(tokens, f"preflight {nonce} {beyond}", beyond)
        assert text is not None
        record = await ask(Prompt(text, output_tokens=SHORT_OUTPUT))
        server = record.input_tokens.server
        if server is None:
            learnt.silent = True
            return vocabulary
        if server != tokens and known:
            return None
        vocabulary = replace(vocabulary, base=vocabulary.base + server - tokens)
        known = True
    return vocabulary


async def _fitted(ask: Ask, learnt: Learnt, length: int | None, nonce: str) -> None:
    """Learn what text costs from two short requests, the second with every word of the list, if the context allows."""
    fitting = [n for n in (EVERY_WORD, 256, 128, 64) if length is None or 2 * n + 64 <= length]
    for words in (OPENING_WORDS, *(OPENING_WORDS + n for n in fitting[:1])):
        prompt = Prompt(make_text(words, f"preflight {nonce} {words}"), output_tokens=SHORT_OUTPUT)
        try:
            record = await ask(prompt)
        except PreflightError as error:
            # The run's own shape may be shorter than this one: what it meets decides.
            if words == OPENING_WORDS or error.status not in (400, 413, 422):
                raise
            return
        if record.input_tokens.server is None:
            return
        learnt.counts.append((words, record.input_tokens.server))
    learnt.calibration = fit(learnt.counts)
