"""Address forms: every way of typing one server gives the one right URL; what cannot be meant gets one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.client.dialects import DIALECTS
from loadgen.client.target import PATHS, TEXTLESS, mask, resolve
from loadgen.errors import Exit, UsageError

CHAT = "http://h:8000/v1/chat/completions"


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        # X01: base URL with and without /v1, trailing slash, prefix
        ("http://h:8000", CHAT),
        ("http://h:8000/", CHAT),
        ("http://h:8000//", CHAT),
        ("http://h:8000/v1", CHAT),
        ("http://h:8000/v1/", CHAT),
        ("http://h:8000/v1/chat/completions", CHAT),
        ("http://h:8000/v1/chat/completions/", CHAT),
        ("http://h:8000/v1/chat", CHAT),
        ("http://h:8000/v1/models", CHAT),
        ("http://h:8000/docs", CHAT),
        ("h:8000", CHAT),
        ("h:8000/v1/", CHAT),
        ("  h:8000\n", CHAT),
        ("HTTP://H:8000", CHAT),
        ("http://h:8000/#top", CHAT),
        ("http://h/pre/model-a", "http://h/pre/model-a/v1/chat/completions"),
        ("http://h/pre/model-a/", "http://h/pre/model-a/v1/chat/completions"),
        ("http://h/pre/v1", "http://h/pre/v1/chat/completions"),
        ("http://h/pre/v1/completions", "http://h/pre/v1/completions"),
        ("http://h/v1/completions", "http://h/v1/completions"),
        ("http://h/Mixed/Case", "http://h/Mixed/Case/v1/chat/completions"),
        ("http://h/chat/completions", "http://h/chat/completions"),
        ("http://h/models/a", "http://h/models/a/v1/chat/completions"),
        ("http://h/v1beta/openai/", "http://h/v1beta/openai/chat/completions"),
        ("http://h/openai", "http://h/openai/v1/chat/completions"),
        ("http://h/api/paas/v4", "http://h/api/paas/v4/chat/completions"),
        ("http://h/a%20b", "http://h/a%20b/v1/chat/completions"),
        ("localhost:8000", "http://localhost:8000/v1/chat/completions"),
        ("gpu1", "http://gpu1/v1/chat/completions"),
        ("gpu_1:80", "http://gpu_1:80/v1/chat/completions"),
        ("10.0.0.7:8000/v1", "http://10.0.0.7:8000/v1/chat/completions"),
        ("h:443", "https://h:443/v1/chat/completions"),
        ("https://api.example.com/v1", "https://api.example.com/v1/chat/completions"),
        ("[::1]:8000", "http://[::1]:8000/v1/chat/completions"),
        ("http://[2001:DB8::1]/v1", "http://[2001:db8::1]/v1/chat/completions"),
        ("http://bücher.example", "http://xn--bcher-kva.example/v1/chat/completions"),
        ("http://h?api-version=2", "http://h/v1/chat/completions?api-version=2"),
        (
            "https://x/openai/deployments/g/chat/completions?api-version=2024-10-21",
            "https://x/openai/deployments/g/chat/completions?api-version=2024-10-21",
        ),
        ("https://x/openai/deployments/g", "https://x/openai/deployments/g/chat/completions"),
        ("http://h/v1/responses", "http://h/v1/responses"),
        ("http://h/pre/v1/responses/", "http://h/pre/v1/responses"),
        ("http://h/generate_stream", "http://h/generate_stream"),
        ("http://h:11434/api/chat", "http://h:11434/api/chat"),
        ("http://h:11434/pre/API/generate", "http://h:11434/pre/api/generate"),
    ],
)
def test_x01_every_form_gives_the_one_url(typed: str, url: str) -> None:
    assert resolve(typed).url == url


def test_parts_of_a_target() -> None:
    target = resolve("https://gw:8443/team/v1?api-version=1&code=s3cret", "completions")
    assert target.base == "https://gw:8443/team/v1"
    assert target.root == "https://gw:8443/team"
    assert target.host == "gw:8443"
    assert target.endpoint == "completions"
    assert target.at_base("/models") == "https://gw:8443/team/v1/models?api-version=1&code=s3cret"
    assert target.at_root("/version") == "https://gw:8443/team/version?api-version=1&code=s3cret"
    assert target.display() == "https://gw:8443/team/v1/completions?api-version=1&code=***"
    assert resolve("http://h/v1beta/openai").root == "http://h/v1beta/openai"


def test_the_address_chooses_the_endpoint_unless_it_was_asked_for() -> None:
    switched = resolve("http://h/v1/completions")
    assert switched.endpoint == "completions"
    assert "completions" in switched.notes[0]
    assert resolve("http://h/v1/completions", "completions").endpoint == "completions"
    assert resolve("http://h/v1", "completions").url == "http://h/v1/completions"
    assert resolve("http://h").notes == ()
    with pytest.raises(UsageError, match="completions endpoint, but --endpoint says chat"):
        resolve("http://h/v1/completions", "chat")
    with pytest.raises(UsageError, match="there is no endpoint 'chats'"):
        resolve("http://h", "chats")


@pytest.mark.parametrize(
    ("typed", "part"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http:///v1", "names no host"),
        ("/v1", "followed by ://"),
        ("http:/h:8000", "followed by ://"),
        ("ftp://h", "scheme ftp"),
        ("ws://h:8000/v1", "scheme ws"),
        ("grpc://h:8000", "scheme grpc"),
        ("http://h :8000", "space"),
        ("http://h:8000/a b", "space"),
        ("http://h\x00", "control"),
        ("http://h:", "port of http://h: is missing"),
        ("http://h:port", "port of"),
        ("http://h:0", "is 0, not a number"),
        ("http://h:65536", "65536"),
        ("http://h:99999999999999999999", "port of"),
        ("http://h:-1", "port of"),
        ("http://h:８０", "port of"),
        ("::1", "more than one colon"),
        ("http://::1:8000", "more than one colon"),
        ("http://[::1", "bracket"),
        ("http://[::1]x", "bracket"),
        ("http://[nope]:1", "no IPv6"),
        ('"http://h:8000"', "://"),
        ("http://h,g:8000", "cannot be a host"),
        ("http://-h", "cannot be a host"),
        ("http://a..b", "cannot be a host"),
        ("http://h/v1/messages", "not spoken"),
        ("http://h/generate", "not spoken"),
        ("http://h/v1/embeddings", "makes embeddings"),
        ("http://h/embed", "makes embeddings"),
        ("http://h:11434/api/embed", "makes embeddings"),
        ("http://h/pre/v1/embeddings", "makes embeddings"),
        ("http://h/v1/rerank", "ranks texts"),
        ("http://h/v2/rerank", "ranks texts"),
        ("http://h/score", "ranks texts"),
        ("http://h/v1/classify", "classifies"),
        ("http://h/v1/images/generations", "makes pictures"),
        ("http://h/v1/audio/transcriptions", "is for sound"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence_with_a_remedy(typed: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(typed)
    error = caught.value
    assert part in error.message
    assert error.remedy
    assert "\n" not in error.message
    assert error.exit_code == Exit.USAGE


@pytest.mark.parametrize(
    "typed",
    [
        "http://ann:hunter2@h:8000/v1",
        "ann:hunter2@h:8000",
        "http://hunter2@h",
        "http://ann:hunter2@h:x",
        "http://ann:hunter2/hunter2@h",
        "http://ann:hunter2?hunter2@h",
        "http://ann:hunter2#hunter2@h",
        "http://ann:hunter2?hunter2@h/a b",
        "ftp://ann:hunter2@h",
        "http://ann:hunter2@h/a b",
        "http://h/a b?api_key=hunter2",
        "http://h:x?x-token=hunter2",
    ],
)
def test_secrets_in_a_refused_address_are_never_echoed(typed: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(typed)
    assert "hunter2" not in str(caught.value)


def test_mask_hides_values_of_key_like_names_only() -> None:
    masked = mask("https://h/v1?api-version=2&api_key=s1&sig=s2&X-Token=s3&access%5Fkey=s4&flag&monkeys=")
    assert masked == "https://h/v1?api-version=2&api_key=***&sig=***&X-Token=***&access%5Fkey=***&flag&monkeys="
    assert mask("http://a:b@h/x") == "http://***@h/x"
    assert mask("http://h:1/x?mail=a@b") == "http://h:1/x?mail=a@b"
    assert resolve("[::1]:1/a@b?c=d@e").display() == "http://[::1]:1/a@b/v1/chat/completions?c=d@e"


SEGMENT = st.from_regex(r"[a-z][a-z0-9\-]{0,8}", fullmatch=True).filter(
    lambda s: (
        s not in {"completions", "models", "docs", "health", "metrics", "version", "openai", "generate"}
        and s not in {"responses", "messages", "generate_stream", "api", *TEXTLESS}
        and not (s[0] == "v" and s[1:2].isdigit())
    )
)


@given(
    scheme=st.sampled_from(["http://", "https://", "HTTP://"]),
    host=st.sampled_from(["h", "gpu-1.example.com", "10.0.0.1", "[::1]", "localhost"]),
    port=st.one_of(st.none(), st.integers(1, 65535)),
    prefix=st.lists(SEGMENT, max_size=4),
    version=st.booleans(),
    endpoint=st.sampled_from([None, *PATHS]),
    slash=st.sampled_from(["", "/", "//"]),
    query=st.sampled_from(["", "?api-version=2024-10-21", "?a=1&b=2"]),
)
def test_all_forms_of_one_server_agree(
    scheme: str,
    host: str,
    port: int | None,
    prefix: list[str],
    version: bool,
    endpoint: str | None,
    slash: str,
    query: str,
) -> None:
    origin = scheme + host + (f":{port}" if port else "")
    path = "".join(f"/{part}" for part in prefix)
    below = "" if endpoint and DIALECTS[endpoint].at_root else "/v1"  # the others stand beside it
    tail = below + PATHS[endpoint] if endpoint else "/v1" if version else ""
    target = resolve(origin + path + tail + slash + query)
    expected = scheme.lower() + host + (f":{port}" if port else "") + path + below + PATHS[endpoint or "chat"] + query
    assert target.url == expected
    assert resolve(target.url) == resolve(target.url, target.endpoint)  # a resolved address stays as it is
    assert resolve(target.url).url == target.url
    other = resolve(target.base + query, target.endpoint)
    assert (other.url, other.root) == (target.url, target.root)


@pytest.mark.parametrize("name", ["embeddings", "rerank", "score", "images", "audio"])
def test_an_endpoint_that_generates_no_text_is_refused_by_name(name: str) -> None:
    with pytest.raises(UsageError, match="no text is generated there") as caught:
        resolve("http://h", name)
    assert "chat" in caught.value.remedy


@pytest.mark.parametrize(
    ("typed", "endpoint", "models"),
    [
        ("http://h/pre", "chat", "http://h/pre/v1/models"),
        ("http://h/v1?a=1", "responses", "http://h/v1/models?a=1"),
        ("http://h/pre", "generate_stream", "http://h/pre/v1/models"),
        ("http://h/v1", "ollama_chat", "http://h/v1/models"),
    ],
)
def test_where_the_models_are_listed(typed: str, endpoint: str, models: str) -> None:
    assert resolve(typed, endpoint).models_url == models


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        url = resolve(text).url
    except UsageError:
        return
    assert url.startswith(("http://", "https://"))
    assert not url.endswith("/v1/v1/chat/completions") or "/v1/v1" in text
