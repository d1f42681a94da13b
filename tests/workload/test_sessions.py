"""Conversations: turns, growth, history, and the ways they end."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.records import InputTokens, Outcome, OutputTokens, Prompt, Record
from loadgen.workload.lengths import Fixed, Lognormal, Uniform
from loadgen.workload.plain import plain_workload
from loadgen.workload.prompts import Calibration, LengthRange, PromptStream
from loadgen.workload.sessions import (
    MOST_DRAWN,
    MOST_TURNS,
    Conversations,
    Sessions,
    parse_sessions,
    sessions_object,
    sessions_of,
    with_sessions,
)
from loadgen.workload.vocabulary import Vocabulary
from loadgen.workload.words import WORDS

EXACT = Calibration(vocabulary=Vocabulary(base=9, openers=WORDS[:16], words=WORDS[16:400]))
SESSIONS = Sessions(Uniform(1, 6), Uniform(20, 40), Uniform(5, 9), Uniform(100, 300))


def record(prompt: Prompt, outcome: Outcome = "ok", *, server: int | None = None, spoken: int | None = None) -> Record:
    count = prompt.output_tokens if spoken is None else spoken
    return Record(
        id="r", step=1, concurrency=1, phase="measured", worker=0, scheduled_ns=0, sent_ns=0, connect=None,
        first_byte_ns=1, first_token_ns=1, first_content_ns=1, last_token_ns=2, done_ns=2,
        input_tokens=InputTokens(prompt.input_tokens, None, server), output_tokens=OutputTokens(count, count, "usage"),
        first_event_tokens=1, events=None, outcome=outcome,
    )  # fmt: skip


def first(sessions: Sessions = SESSIONS, n: int = 1, *, worker: int = 0, workers: int = 1, context: int | None = None,
          seed: int = 7, key: str = "k") -> list[Prompt]:  # fmt: skip
    prompts = PromptStream(seed, key, LengthRange(50, 90), LengthRange(5, 9), EXACT, worker=worker, workers=workers)
    of = Conversations(sessions, seed, key, EXACT, context)
    return list(islice(with_sessions(prompts, of, worker, workers), n))


def played(prompt: Prompt, answer: str = "so it is") -> list[tuple[int, Prompt]]:
    """All turns of a session, each with the think time before it, as a server would count that adds 8 tokens a turn."""
    turns, tokens = [(0, prompt)], prompt.input_tokens or 0
    while turns[-1][1].then is not None:
        last = turns[-1][1]
        then = last.then
        assert then is not None
        if then.keeps:
            then.heard(answer)
        following = then.next(record(last, server=tokens))
        if following is None:
            break
        tokens += (last.output_tokens or 0) + 8 + len(following[1].text.split())
        turns.append(following)
    return turns


def test_turns_alternate_and_hold_what_was_said() -> None:
    turns = [prompt for _, prompt in played(first(replace(SESSIONS, turns=Fixed(4)))[0], "yes")]
    assert [(p.session, p.turn) for p in turns] == [(0, 1), (0, 2), (0, 3), (0, 4)]
    assert [len(p.history) for p in turns] == [0, 2, 4, 6]
    assert turns[3].history == (turns[0].text, "yes", turns[1].text, "yes", turns[2].text, "yes")
    assert len({p.text for p in turns}) == 4
    assert turns[3].then is None, "nothing is kept for a turn that does not come"


@pytest.mark.parametrize("history", ["server", "made"])
def test_workers_play_the_same_sessions_together(history: str) -> None:
    sessions = replace(SESSIONS, history=history)
    whole = [played(p) for p in first(sessions, 30)]
    parts = [[played(p) for p in first(sessions, 10, worker=i, workers=3)] for i in range(3)]
    assert [parts[i % 3][i // 3] for i in range(30)] == whole


def test_lengths_are_those_asked_for() -> None:
    sessions = [played(p) for p in first(SESSIONS, 400)]
    lengths = [len(turns) for turns in sessions]
    assert {*lengths} == {1, 2, 3, 4, 5, 6}
    assert sum(lengths) / 400 == pytest.approx(SESSIONS.mean_turns, rel=0.1)
    later = [turn for turns in sessions for turn in turns[1:]]
    added = [len(p.text.split()) for _, p in later]
    assert (min(added), max(added)) == (20, 40), "a token a word"
    assert {p.output_tokens for _, p in later} == {5, 6, 7, 8, 9}
    thoughts = [think for think, _ in later]
    assert 100e6 <= min(thoughts) < 110e6
    assert 290e6 < max(thoughts) <= 300e6


def test_the_seed_fixes_the_structure_and_the_key_the_text() -> None:
    one, two = (played(first(SESSIONS, 8, key=key)[7]) for key in ("run 1", "run 2"))
    assert [(t, len(p.text.split()), p.output_tokens) for t, p in one] == [
        (t, len(p.text.split()), p.output_tokens) for t, p in two
    ]
    assert not {p.text for _, p in one} & {p.text for _, p in two}
    assert [len(played(p)) for p in first(n=20)] != [len(played(p)) for p in first(n=20, seed=8)]


def test_made_history_is_as_long_as_asked_for_and_does_not_wait_for_the_answer() -> None:
    [opening] = first(replace(SESSIONS, turns=Fixed(3), history="made"))
    assert opening.then is not None
    assert not opening.then.keeps
    turns = [p for _, p in played(opening)]
    for i, prompt in enumerate(turns[1:]):
        answer = prompt.history[-1]
        assert answer.startswith(" ")
        assert len(answer.split()) == turns[i].output_tokens


@pytest.mark.parametrize("outcome", ["error", "timeout", "empty", "incomplete", "cut", "cancelled", "client_error"])
def test_a_turn_that_failed_ends_its_session(outcome: Outcome) -> None:
    [opening] = first(replace(SESSIONS, turns=Fixed(5)))
    assert opening.then is not None
    assert opening.then.next(record(opening, outcome, server=60)) is None
    assert not opening.then.cut


@given(st.integers(100, 2000), st.integers(0, 50), st.sampled_from(["server", "made"]))
def test_no_turn_is_sent_that_might_not_fit(context: int, seed: int, history: str) -> None:
    sessions = Sessions(Fixed(100), Uniform(10, 60), Uniform(5, 60), history=history)  # type: ignore[arg-type]
    [opening] = first(sessions, context=context, seed=seed)
    tokens, prompt = opening.input_tokens or 0, opening
    while True:
        then = prompt.then
        assert then is not None
        answer = "word " * (prompt.output_tokens or 0)
        then.heard(answer)
        following = then.next(record(prompt, server=tokens))
        if following is None:
            break
        # Random text may cost up to a quarter more when it is read again.
        tokens += round(1.25 * (prompt.output_tokens or 0)) + 8 + len(following[1].text.split())
        prompt = following[1]
        assert tokens + (prompt.output_tokens or 0) <= context
    assert then.cut
    assert tokens + 2 * 60 * 1.25 + 60 + 8 + 16 + 60 > context, "nor ended long before it"


def test_what_is_shared_is_the_prompt_before_and_at_most_its_answer() -> None:
    [opening] = first(replace(SESSIONS, turns=Fixed(3)))
    assert opening.shared == (0, 8)
    assert opening.then is not None
    opening.then.heard("ok")
    following = opening.then.next(record(opening, server=100, spoken=7))
    assert following is not None
    assert following[1].shared == (100 - 8 - 1, 107)
    assert following[1].input_tokens is None, "nobody asked for a length of the whole"


def test_a_workload_with_sessions_and_models() -> None:
    from loadgen.workload.models import parse_models

    workload = replace(
        plain_workload("60", "6"), sessions=replace(SESSIONS, turns=Fixed(3)), models=parse_models(["a=1", "b=1"])
    )
    for prompt in islice(workload.stream(1, "n", EXACT), 10):
        models = {turn.model for _, turn in played(prompt)}
        assert len(models) == 1, "a conversation stays with its model"
    assert "sessions of 3 turns" in workload.describe()


@pytest.mark.parametrize(
    "given",
    [(None, "64", None, None), (None, None, 1.0, None), ("x", None, None, None), ("3", "0", None, None)],
    ids=["a message alone", "think alone", "no number", "no message"],
)
def test_what_cannot_be_meant(given: tuple[str | None, str | None, float | None, str | None]) -> None:
    with pytest.raises(UsageError):
        parse_sessions(*given)


def test_flags_and_json() -> None:
    assert parse_sessions(None, None, None, None) is None
    sessions = parse_sessions("2-8", "40-80", 1.5, "made")
    assert sessions == Sessions(Uniform(2, 8), Uniform(40, 80), think_ms=Fixed(1500), history="made")
    assert sessions_of(sessions_object(sessions)) == sessions
    assert sessions.mean_turns == pytest.approx(5, rel=0.01)
    assert sessions.pause_s == pytest.approx(1.5 * 4 / 5, rel=0.01)
    assert Sessions(Lognormal(1.0, 0.5), Fixed(9)).as_object()["turns"] == "lognormal, mu 1, sigma 0.5"


def test_a_distribution_without_an_end_is_cut() -> None:
    endless = Lognormal(18.0, 20.0)
    sessions = Sessions(endless, Fixed(9), Fixed(9), endless)
    turns = [sessions.turns_of(1, session) for session in range(50)]
    assert max(turns) == MOST_TURNS
    assert sessions.mean_turns <= MOST_TURNS and sessions.pause_s <= MOST_DRAWN / 1e3
    long = (prompt for prompt in first(replace(sessions, turns=Fixed(2)), 50))
    assert max(pause for prompt in long for pause, _ in played(prompt)) == MOST_DRAWN * 1_000_000
