"""`loadgen plan` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from click.types import StringParamType

from loadgen.cli.plan import plan
from loadgen.errors import LoadgenError
from loadgen.hardware.named import table
from tests.cli.command import Call


def run(*args: str) -> tuple[int, str]:
    result = CliRunner().invoke(plan, args, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value), result.output


def test_a_named_model_on_a_named_gpu() -> None:
    code, text = run(
        "--model", "llama-3.1-70b", "--gpu", "h100", "--tp", "4", "--input-len", "1000", "--output-len", "200"
    )
    assert code == 0
    assert "141.1 GB in all" in text
    assert "320 KiB a token" in text
    assert "2 × h100 (TP 2) would do" in text


def test_what_does_not_fit_ends_with_no_and_what_would_do() -> None:
    code, text = run("--model", "deepseek-v3", "--gpu", "h100", "--tp", "8")
    assert code == 1
    assert "16 × h100" in text


def test_the_lengths_of_a_workload() -> None:
    """In 228 and out 471 tokens on average, with a tail: far fewer are held at the 99th percentile than at the mean."""
    asked = ("--model", "llama-3.1-8b", "--gpu", "h100", "--json")
    code, text = run(*asked, "-w", "sharegpt-first-turn")
    found = json.loads(text)["requests"]
    assert code == 0
    assert found["input_tokens_mean"] == pytest.approx(228, rel=0.05)
    assert found["output_tokens_mean"] == pytest.approx(471, rel=0.05)
    assert found["total_tokens_p99"] > 2 * (228 + 471)
    with pytest.raises(LoadgenError, match="exclude each other"):
        run(*asked, "-w", "sharegpt-first-turn", "--input-len", "9")
    with pytest.raises(LoadgenError, match="no-such"):
        run(*asked, "-w", "no-such")


def test_json_from_flags() -> None:
    shape = ("--layers", "80", "--heads", "64", "--kv-heads", "8", "--head-dim", "128")
    code, text = run("--params", "70B", "--weight-bits", "4", *shape, "--gpu", "h100", "--json")
    found = json.loads(text)
    assert code == 0
    assert found["model"]["weight_bytes"] == 35e9
    assert found["kv_cache"]["bytes_per_token"] == 327_680
    assert found["model"]["flops_per_token"] == 140e9


def test_a_config_file_or_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(table()["qwen2.5-7b"]["config"]))
    for path in (tmp_path, tmp_path / "config.json"):
        code, text = run("--config", str(path), "--gpu", "l4", "--json")
        assert code == 0
        assert json.loads(text)["kv_cache"]["bytes_per_token"] == 57_344


def test_an_own_gpu() -> None:
    code, text = run("--model", "llama-3.1-8b", "--memory", "32", "--bandwidth", "1.8", "--peak", "200", "--json")
    assert code == 0
    assert json.loads(text)["floors"]["tpot_ms_alone"] == pytest.approx(
        1e3 * (16.06e9 + 576 * 131072) / 1.8e12, rel=1e-3
    )


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_the_plot_is_written(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"memory{suffix}"
    run("--model", "qwen3-8b", "--gpu", "l40s", "--plot", str(path))
    start = path.read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if suffix == ".png" else b"<svg" in start


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "no model"),
        (("--model", "gpt-9"), "gpt-9"),
        (("--model", "qwen3-8b", "--params", "8e9"), "twice"),
        (("--model", "qwen3-8b", "--layers", "4"), "--layers"),
        (("--params", "8e9"), "--layers"),
        (("--model", "qwen3-8b", "--gpu", "voodoo"), "voodoo"),
        (("--model", "qwen3-8b", "--group-size", "128"), "--weight-bits"),
        (("--config", "/nowhere/config.json"), "cannot be read"),
        (("--model", "qwen3-8b", "--plot", "x.pdf"), "svg"),
        (("--model", "qwen3-8b", "--plot", "/nowhere/x.svg"), "cannot be written"),
        (("--params", "1e9", "--layers", "2", "--heads", "2", "--kv-heads", "4", "--head-dim", "8"), "KV heads"),
    ],
    ids=lambda value: " ".join(value) or "nothing" if isinstance(value, tuple) else value,
)
def test_a_mistake_is_one_sentence(args: tuple[str, ...], word: str) -> None:
    with pytest.raises(LoadgenError, match=word):
        run(*args)


TEXTS = [max(param.opts, key=len) for param in plan.params if isinstance(param.type, StringParamType)]


@pytest.mark.parametrize("flag", TEXTS)
def test_an_empty_text_is_not_as_if_its_flag_were_left_out(call: Call, flag: str) -> None:
    said = call("plan", *(() if flag == "--model" else ("--model", "llama-3.1-8b")), flag, "")
    assert (said.code, said.out) == (2, "")
    assert f"{flag} is empty" in said.err


NUMBERS = ("params", "active-params", "weight-bits", "memory", "bandwidth", "peak", "kv-bits")


@pytest.mark.parametrize("flag", NUMBERS)
@pytest.mark.parametrize("text", ["80,5", "3,350", "1,000,000", ",5", "2,5B"])
def test_a_comma_is_no_part_of_a_number(call: Call, flag: str, text: str) -> None:
    """It would make ten times as much of a decimal comma."""
    said = call("plan", "--model", "llama-3.1-8b", f"--{flag}", text)
    assert (said.code, said.out) == (2, "")
    assert f"'{text}' is not a number above zero: write it with a point, and without commas" in said.err


@pytest.mark.parametrize("content", ["", "{", "[]", '{"text": 1}', "\ufeff{}", "null"])
def test_a_file_that_is_no_config(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(LoadgenError):
        run("--config", str(path))
