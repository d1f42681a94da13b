"""Workload files: the schema, every mistake in one sentence with its place, and a hash of what is sent."""

from __future__ import annotations

import json
import re
import string
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import UsageError
from loadgen.workload.check import check
from loadgen.workload.definition import Workload, parse_workload, workload_of
from loadgen.workload.lengths import Apart, Fixed, Histogram, Lognormal, Mixture, Uniform

DOCS = Path(__file__).parents[2] / "docs" / "workloads.md"
EXAMPLES = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)
PLAIN = (
    'name = "n"\n[lengths]\ninput = { kind = "fixed", value = 5 }\noutput = { kind = "uniform", low = 2, high = 9 }\n'
)
JOINT = 'name = "n"\n[lengths.joint]\ninput_edges = [1, 2, 9]\noutput_edges = [1, 4]\nrows = [[0, 0, 3], [1, 0, 1]]\n'


def test_a_small_file() -> None:
    workload = parse_workload(PLAIN, "n.toml")
    assert workload.lengths.source == Apart(Fixed(5), Uniform(2, 9))
    assert workload.describe() == "n · in 5 · out 6 (p50 5, p99 9)"
    assert (workload.arrivals, workload.sessions, workload.sharing, workload.slo) == (None, None, None, ())


def test_the_examples_of_the_documentation_are_what_they_say() -> None:
    chat, kinds = (parse_workload(text, "docs") for text in EXAMPLES)
    assert isinstance(chat.lengths.source, Apart) and isinstance(kinds.lengths.source, Histogram)
    assert isinstance(chat.lengths.source.input, Lognormal) and isinstance(chat.lengths.source.output, Mixture)
    assert chat.lengths.limits.total == 8192 and chat.lengths.limits.input == (16, 6000)
    assert str(chat.arrivals) == "gamma:0.8"
    assert chat.slo == ("ttft_p95=500ms", "tpot_p95=50ms")
    assert chat.sessions is not None and chat.sessions.history == "server" and chat.sessions.turns.span == (1, 20)
    assert chat.sharing is not None and (chat.sharing.tokens, chat.sharing.groups) == (500, 12)
    assert chat.notes == ("weekends are missing",) and chat.reference_n == 18250
    assert check(chat, 50_000).findings == ()
    assert check(kinds, 50_000).findings == ()


def test_the_keys_of_the_documentation_are_all_there_are() -> None:
    """Each kind of distribution named there is one, with the keys named there and no others."""
    rows = re.findall(r"^\| `(\w+)` \| ((?:`\w+`(?:, )?)+) \|", DOCS.read_text(), re.MULTILINE)
    assert len(rows) == 8
    for kind, keys in rows:
        table = {"kind": kind}
        message = ""
        while "is missing" in (message := mistake_of(table)):
            found = re.search(r"lengths\.input\.(\w+) is missing", message)
            assert found is not None and f"`{found[1]}`" in keys, message
            table[found[1]] = {
                "at": [0, 1],
                "values": [2, 9],
                "weights": [1],
                "parts": [{"kind": "fixed", "value": 3}],
            }.get(found[1], 5)
        assert sorted(re.findall(r"`(\w+)`", keys)) == sorted(set(table) - {"kind"}), kind


def mistake_of(table: dict[str, Any]) -> str:
    try:
        workload_of(
            {"name": "n", "lengths": {"input": {**table, "max": 9}, "output": {"kind": "fixed", "value": 1}}}, "f"
        )
    except UsageError as error:
        return error.message
    return ""


MISTAKES: dict[str, tuple[str, str]] = {
    "no TOML": ("name = ", "f.toml is no TOML: Invalid value (at end of document)"),
    "no TOML, with its line": ('name = "n"\n[lengths\n', "line 2"),
    "a number of too many digits": (f"name = {'9' * 5000}", "f.toml is no TOML"),
    "nested too deep": ("a=" + "[" * 5000, "f.toml is no workload: it is nested too deep"),
    "empty": ("", "f.toml: name is missing"),
    "no lengths": ('name = "n"', "f.toml: lengths is missing"),
    "a name with a slash": (PLAIN.replace('"n"', '"a/b"'), "f.toml: name is 'a/b'"),
    "an empty name": (PLAIN.replace('"n"', '""'), "f.toml: name is empty"),
    "a name that is a number": (PLAIN.replace('"n"', "3"), "f.toml: name is a whole number, not a text"),
    "an unknown section": (PLAIN + "[length]\n", "f.toml: there is no key length"),
    "an unknown key": (PLAIN.replace("high", "hihg"), "lengths.output.high is missing"),
    "one key too many": (PLAIN.replace("value = 5", "value = 5, mean = 4"), "there is no key lengths.input.mean"),
    "an unknown kind": (
        PLAIN.replace('"fixed"', '"pareto"'),
        "lengths.input.kind is 'pareto', which is no distribution",
    ),
    "a text for a number": (
        PLAIN.replace("value = 5", 'value = "5"'),
        "lengths.input.value is a text, not a whole number",
    ),
    "a boolean for a number": (PLAIN.replace("value = 5", "value = true"), "lengths.input.value is true or false"),
    "a fraction of a token": (
        PLAIN.replace("value = 5", "value = 5.5"),
        "lengths.input.value is a number, not a whole",
    ),
    "no tokens": (PLAIN.replace("value = 5", "value = 0"), "lengths.input.value is 0, not a whole number from 1"),
    "too many tokens": (
        PLAIN.replace("value = 5", "value = 1_000_000_000"),
        "not a whole number from 1 to 100,000,000",
    ),
    "a huge number": (PLAIN.replace("value = 5", f"value = 1{'0' * 400}"), "lengths.input.value is 1000"),
    "a range upside down": (
        PLAIN.replace("high = 9", "high = 1"),
        "lengths.output.high is 1, not a whole number from 2",
    ),
    "no end": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "lognormal", mu = 3, sigma = 1'),
        "lengths.input has no end",
    ),
    "infinite": (PLAIN.replace('kind = "fixed", value = 5', 'kind = "gamma", shape = inf, scale = 1'), "shape is inf"),
    "not a number": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "gamma", shape = nan, scale = 1'),
        "shape is nan",
    ),
    "no spread": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "normal", mean = 9, std = 0, max = 9'),
        "lengths.input.std is 0, not a number above 0",
    ),
    "limits that leave nothing": (PLAIN.replace("value = 5", "value = 5, max = 4"), "lengths.input leave nothing"),
    "limits that leave next to nothing": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "normal", mean = 900, std = 9, max = 800'),
        "the limits refuse 100 % of what lengths gives",
    ),
    "a total that leaves nothing": (
        PLAIN.replace("[lengths]", "[lengths]\nmax_total = 6"),
        "lengths.input leave nothing: from 5 to 4",
    ),
    "a correlation of one": (PLAIN.replace("[lengths]", "[lengths]\nspearman = 1.0"), "lengths.spearman is 1.0"),
    "a mixture of nothing": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "mixture", weights = [], parts = []'),
        "lengths.input.weights has 0 numbers for 0 parts",
    ),
    "a weight too few": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "mixture", weights = [1], parts = [{}, {}]'),
        "lengths.input.weights has 1 numbers for 2 parts",
    ),
    "a part of no kind": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "mixture", weights = [1], parts = [{}]'),
        "lengths.input.parts[0].kind is missing",
    ),
    "a negative weight": (
        PLAIN.replace(
            'kind = "fixed", value = 5', 'kind = "mixture", weights = [-1], parts = [{kind="fixed", value=1}]'
        ),
        "lengths.input.weights has one that is not above zero",
    ),
    "quantiles that fall": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "quantiles", at = [0, 1], values = [4, 2]'),
        "lengths.input.values do not rise",
    ),
    "quantiles without an end": (
        PLAIN.replace('kind = "fixed", value = 5', 'kind = "quantiles", at = [0, 0.9], values = [1, 2]'),
        "lengths.input.at does not rise from 0 to 1",
    ),
    "both kinds of lengths": (
        PLAIN + JOINT.partition("\n")[2],
        "lengths.input and lengths.joint exclude each other",
    ),
    "edges that fall": (JOINT.replace("[1, 2, 9]", "[1, 9, 2]"), "lengths.joint.input_edges do not rise"),
    "an edge at zero": (JOINT.replace("[1, 2, 9]", "[0, 2, 9]"), "lengths.joint.input_edges are not two or more"),
    "an edge of text": (JOINT.replace("[1, 2, 9]", '[1, "2", 9]'), "lengths.joint.input_edges[1] is 2, not a whole"),
    "a bin that is not there": (
        JOINT.replace("[1, 0, 1]", "[2, 0, 1]"),
        "rows[1] names the bin 2, but there are 0 to 1",
    ),
    "a row without a weight": (JOINT.replace("[1, 0, 1]", "[1, 0]"), "lengths.joint.rows[1] is not an input bin"),
    "a row that is none": (JOINT.replace("[1, 0, 1]", "4"), "lengths.joint.rows[1] is not an input bin"),
    "a weight of zero": (JOINT.replace("[1, 0, 1]", "[1, 0, 0]"), "lengths.joint.rows[1] has the weight 0"),
    "no rows": (JOINT.replace("[[0, 0, 3], [1, 0, 1]]", "[]"), "lengths.joint.rows hold 0 cells"),
    "unknown arrivals": (PLAIN + '[arrivals]\nprocess = "often"\n', "arrivals.process cannot be meant"),
    "unknown objectives": (PLAIN + '[slo]\nobjectives = ["fast"]\n', "slo.objectives cannot be meant"),
    "no objectives": (PLAIN + "[slo]\nobjectives = []\n", "slo.objectives is empty"),
    "sessions without turns": (PLAIN + "[sessions]\n", "sessions.turns is missing"),
    "an unknown history": (
        PLAIN + '[sessions]\nhistory = "x"\nturns = {kind="fixed", value=2}\nmessage = {kind="fixed", value=2}\n',
        "sessions.history is 'x'",
    ),
    "sharing nothing": (PLAIN + "[sharing]\ngroups = 3\n", "sharing shares nothing"),
    "a negative exponent": (PLAIN + "[sharing]\nprefix_tokens = 3\nzipf = -1\n", "sharing.zipf is -1"),
    "an exponent just below zero": (PLAIN + "[sharing]\nprefix_tokens = 3\nzipf = -1e-10\n", "sharing.zipf is -1e-10"),
    "half a reference": (PLAIN + "[reference]\ninput = { mean = 3 }\n", "reference.input.p50 is missing"),
    "notes that are numbers": ("notes = [1]\n" + PLAIN, "notes is not a list of texts"),
    "a date": ("notes = 2020-01-01\n" + PLAIN, "notes is date, not a list"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named_by_its_place(name: str) -> None:
    text, expected = MISTAKES[name]
    with pytest.raises(UsageError) as caught:
        parse_workload(text, "f.toml")
    assert expected in caught.value.message
    assert caught.value.message.startswith("f.toml")
    assert "\n" not in caught.value.message and caught.value.remedy


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.integers(0, 9), st.just(10**400)
)
TREES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "lengths",
                    "input",
                    "output",
                    "joint",
                    "kind",
                    "value",
                    "rows",
                    "weights",
                    "parts",
                    "at",
                    "values",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["lengths", "sessions", "sharing", "reference", "slo", "notes", "x"]), TREES))
def test_no_content_is_more_than_a_mistake(table: dict[str, Any]) -> None:
    try:
        workload = workload_of({"name": "n", **table}, "f")
    except UsageError as error:
        assert error.message.startswith("f: ")
        return
    assert isinstance(workload, Workload)


@given(st.data())
def test_a_damaged_file_is_no_more_than_a_mistake(data: st.DataObject) -> None:
    text = data.draw(st.sampled_from(EXAMPLES))
    at = data.draw(st.integers(0, len(text)))
    damaged = text[:at] + data.draw(st.text(string.printable, max_size=4)) + text[at + data.draw(st.integers(0, 9)) :]
    try:
        parse_workload(damaged, "f")
    except UsageError as error:
        assert "\n" not in error.message


def test_what_would_take_the_parser_for_ever_is_refused() -> None:
    hidden = (
        '","  . ' + "a." * 15_000 + "a = 1\n",
        "x = {y = 1, " + "a." * 70 + "a = 1}",
        "'='" + ' . "a\\""' * 70 + " = 1",
    )
    for text in ("a." * 200_000, "[" + "a." * 70 + "a]", "x = {" + "b." * 70 + "b = 1}", "#" * 2_000_000, *hidden):
        with pytest.raises(UsageError, match="f is no workload: it has"):
            parse_workload(text, "f")


def test_a_text_of_many_dots_is_no_long_key() -> None:
    for note in ("See there. " * 70, "." * 200, "a.b " * 70, " . " * 70):
        assert parse_workload(f'notes = "{note}"\n{PLAIN}', "f").notes == (note,)


def test_the_hash_is_of_what_is_sent() -> None:
    table = tomllib.loads(EXAMPLES[0])

    def hash_of(**change: Any) -> str:
        return workload_of({**table, **change}, "f").hash

    own = hash_of()
    reordered = json.loads(json.dumps(table, sort_keys=True))
    assert workload_of(reordered, "f").hash == own
    assert hash_of(name="other", notes=[], source="s", licence="", tokenizer="t") == own
    assert hash_of(slo={"objectives": ["tpot=9ms"]}) == own
    as_floats = {**table["lengths"], "input": {**table["lengths"]["input"], "sigma": 1.0}}
    as_whole = {**table["lengths"], "input": {**table["lengths"]["input"], "sigma": 1}}
    assert hash_of(lengths=as_floats) == hash_of(lengths=as_whole) != own
    assert len({own, hash_of(arrivals={"process": "constant"}), hash_of(sharing={"system_tokens": 9})}) == 3


def test_a_limit_from_outside_is_part_of_the_workload() -> None:
    workload = parse_workload(EXAMPLES[0], "f")
    limited = workload.limited(600, "--max-total-len")
    inputs, outputs, refused = limited.lengths.sample(1, 20_000)
    assert (inputs + outputs).max() <= 600 and refused > 0.3
    assert limited.hash != workload.hash and limited.lengths.most_total == 600
    assert workload.limited(100_000, "--max-total-len").hash == workload.hash  # its own limit is closer
    with pytest.raises(UsageError, match="support-chat with --max-total-len 20"):
        workload.limited(20, "--max-total-len")
