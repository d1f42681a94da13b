"""docs/schema/requests.schema.json says what is written, no less and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given

from loadgen.log.codec import encode_record
from loadgen.records import FLAGS, OUTCOMES, PHASES, Record
from tests.log.record_strategies import any_record

ROOT = Path(__file__).parents[2]
SCHEMA: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / "requests.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The same schema, without room for keys it does not name."""
    if "properties" in schema:
        inner = {key: closed(value) for key, value in schema["properties"].items()}
        schema = {**schema, "properties": inner, "additionalProperties": False}
    if isinstance(schema.get("items"), dict):
        schema = {**schema, "items": closed(schema["items"])}
    return schema


CLOSED = jsonschema.Draft202012Validator(closed(SCHEMA))


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_it_names_the_words_that_records_use() -> None:
    named = SCHEMA["properties"]
    assert named["phase"]["enum"] == list(PHASES)
    assert named["outcome"]["enum"] == list(OUTCOMES)
    assert named["flags"]["items"]["enum"] == list(FLAGS)


@given(any_record)
def test_whatever_is_written_has_its_keys_and_types_and_no_others(record: Record) -> None:
    CLOSED.validate(json.loads(encode_record(record)))


def test_a_real_log_is_valid() -> None:
    lines = (ROOT / "results" / "example-vllm" / "requests.jsonl").read_text().splitlines()
    assert len(lines) > 500
    for line in lines:
        CLOSED.validate(json.loads(line))


WRONG = {
    "no id": ({"id": None}, "id"),
    "a time as text": ({"sent_ns": "1"}, "sent_ns"),
    "an outcome nobody knows": ({"outcome": "fine"}, "outcome"),
    "a count below zero": ({"output_tokens": {"asked": None, "count": -1, "source": None}}, "count"),
    "half a bound": ({"events": {"gap_us": [1], "tokens": [1], "bounded": [[0]]}}, "bounded"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused(name: str) -> None:
    with (ROOT / "results" / "example-vllm" / "requests.jsonl").open() as log:
        line = json.loads(log.readline())
    change, at = WRONG[name]
    error = next(VALIDATOR.iter_errors({**line, **change}))
    assert at in [str(part) for part in error.absolute_path]
