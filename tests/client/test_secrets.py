"""What counts as a secret of a request, and that none is left in a record or a manifest."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.secrets import masked_body, scrub, secrets_of, without_secrets
from loadgen.errors import Failure
from loadgen.records import InputTokens, OutputTokens, Record

BASIC = base64.b64encode(b"user:pass-word").decode()

# headers, query, body → the secrets, the longest first
CASES: dict[str, tuple[dict[str, str], str, dict[str, Any], set[str]]] = {
    "nothing": ({"x-route": "pool-a", "user-agent": "mine"}, "a=1", {"max_tokens": 3, "stop_token": "<end>"}, set()),
    "a key": ({"x-api-key": "abcdef"}, "", {}, {"abcdef"}),
    "a scheme": ({"authorization": "Bearer abcdef"}, "", {}, {"Bearer abcdef", "abcdef"}),
    "a password": ({"authorization": f"Basic {BASIC}"}, "", {}, {f"Basic {BASIC}", BASIC, "pass-word"}),
    "no base64": ({"authorization": "Basic §§§§ a"}, "", {}, {"Basic §§§§ a", "§§§§ a"}),
    "half of base64": ({"authorization": "Basic dXNlcjp=w"}, "", {}, {"Basic dXNlcjp=w", "dXNlcjp=w"}),
    "a cookie": ({"cookie": "theme=dark; id=abcdef"}, "", {}, {"theme=dark; id=abcdef", "id=abcdef", "dark", "abcdef"}),
    "too short to be told from a word": ({"x-api-key": "k"}, "key=ab", {}, set()),
    "the query": ({}, "a=plain&api-key=ab%2Fcd&code=1234", {}, {"ab%2Fcd", "ab/cd", "1234"}),
    "the body": ({}, "", {"user_token": "abcd", "a": [{"api_key": "efgh"}], "token": "word"}, {"abcd", "efgh"}),
}


@pytest.mark.parametrize("case", CASES)
def test_secrets_of(case: str) -> None:
    headers, query, body, wanted = CASES[case]
    found = secrets_of(headers, f"http://h/v1/chat/completions?{query}", body)
    assert set(found) == wanted
    assert [len(one) for one in found] == sorted((len(one) for one in found), reverse=True)


def test_a_body_is_masked_where_it_holds_a_secret_and_nowhere_else() -> None:
    body = {"temperature": 0, "stop_token": "<end>", "auth_token": "abcd", "deep": [{"api_key": "e", "n": None}, 3]}
    masked = {"temperature": 0, "stop_token": "<end>", "auth_token": "***", "deep": [{"api_key": "***", "n": None}, 3]}
    assert masked_body(body) == masked
    assert body["auth_token"] == "abcd", "the body itself is sent as it is"


def record(text: str | None, error: Failure | None) -> Record:
    return Record(
        id="r", step=1, concurrency=1, phase="measured", worker=0, scheduled_ns=0, sent_ns=0, connect=None,
        first_byte_ns=None, first_token_ns=None, first_content_ns=None, last_token_ns=None, done_ns=1,
        input_tokens=InputTokens(), output_tokens=OutputTokens(), first_event_tokens=None, events=None,
        outcome="error", error=error, excerpt=text, finish_reason=text, server_id=text,
    )  # fmt: skip


words = st.text(alphabet="ab-", max_size=12)


@given(words, words, st.lists(st.text(alphabet="ab", min_size=4, max_size=5), max_size=3))
def test_a_scrubbed_record_holds_no_secret(before: str, after: str, secrets: list[str]) -> None:
    text = before + "".join(secrets) + after
    found = scrub(record(text, Failure("http", text, text, text)), secrets)
    assert found.error is not None
    for seen in (found.excerpt, found.server_id, found.finish_reason):
        assert seen == without_secrets(text, secrets)
        assert not any(secret in seen for secret in secrets)
    assert found.error == replace(found.error, message=seen, code=seen, excerpt=seen)


def test_a_record_without_a_secret_is_left_alone() -> None:
    one = record("plain", Failure("http", "plain", 400))
    assert scrub(one, ()) is one
    assert scrub(one, ("abcd",)) == one
