"""`loadgen.run` and `loadgen.sweep` from Python: the words, the log and the answer of the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import pytest

import loadgen
from loadgen.api.keywords import SCREEN, RunOptions, SweepOptions, arguments
from loadgen.cli.run import run as run_verb
from loadgen.cli.sweep import sweep as sweep_verb
from loadgen.log.store import open_run
from loadgen.simulator.scripted import ScriptedServer, ThreadedServer, error_reply
from tests.cli.command import ROOT, generations, serve, too_busy, tries

SHORT: dict[str, Any] = {"input_len": 32, "output_len": 4, "requests": 6, "concurrency": 2, "effort": "quick"}
KEY = "sk-never-written-down"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOADGEN_API_KEY", raising=False)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ThreadedServer(serve(wait_ms=2.0)) as found:
        yield found


def test_the_public_names() -> None:
    assert sorted(loadgen.__all__) == [
        *("LoadgenError", "LogError", "Requests", "Result", "TargetError", "UsageError", "__version__"),
        *("load", "run", "sweep"),
    ]
    for name in loadgen.__all__:
        assert getattr(loadgen, name) is not None and name in dir(loadgen)
        assert name == "__version__" or getattr(loadgen, name).__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'sweeep'"):
        _ = loadgen.sweeep
    assert (Path(loadgen.__file__).parent / "py.typed").is_file()


def test_importing_it_imports_next_to_nothing() -> None:
    code = "import sys, loadgen; print([m for m in ('numpy', 'httpx', 'click', 'anyio', 'scipy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(("verb", "options"), [(run_verb, RunOptions), (sweep_verb, SweepOptions)])
def test_every_flag_is_a_keyword_and_every_keyword_a_flag(verb: click.Command, options: type) -> None:
    flags = {str(param.name): param for param in verb.params if isinstance(param, click.Option)}
    keywords = get_type_hints(options)
    assert set(keywords) - {"api_key"} == set(flags) - SCREEN
    for name, param in flags.items():
        if name not in SCREEN:
            assert (keywords[name] is bool) == param.is_flag, name


def test_keywords_become_the_command_line() -> None:
    words = arguments(
        run_verb,
        ["localhost:8000"],
        {
            "concurrency": 4,
            "token_log": False,
            "simulate": False,
            "seed": None,
            "model": {"a": 0.7, "b": 0.3},
            "header": {"X-Route": "a=b"},
            "describe": ["gpu=H100", "n=2"],
            "extra_body": {"top_k": 1},
            "price": (0.15, 0.6),
            "prompts": Path("a b.jsonl"),
            "top_k": -1,
        },
    )
    assert words == [
        *("--concurrency=4", "--no-token-log", "--model=a=0.7", "--model=b=0.3", "--header=X-Route: a=b"),
        *("--describe=gpu=H100", "--describe=n=2", '--extra-body={"top_k":1}', "--price=0.15/0.6"),
        *("--prompts=a b.jsonl", "--top-k=-1", "localhost:8000"),
    ]
    assert arguments(sweep_verb, [], {"levels": [1, 8]}) == ["--levels=1,8"]


def test_a_run_in_a_loop_that_runs_already(server: ScriptedServer) -> None:
    async def cell() -> tuple[loadgen.Result, int]:
        others = 0

        async def beat() -> None:
            nonlocal others
            while True:
                await asyncio.sleep(0.001)
                others += 1

        beating = asyncio.create_task(beat())
        lines: list[str] = []
        result = await loadgen.run(server.url, **SHORT, seed=7, api_key=KEY, tell=lines.append)
        beating.cancel()
        assert any(line.lstrip().startswith("2 ") for line in lines), "a line for the step"
        return result, others

    result, others = asyncio.run(cell())
    assert others > 0, "the loop went on with what else it had"
    assert result.status == "complete" and result.exit_code in (0, 4)
    assert len(result.steps) == len(result.levels) == 1 and result.steps[0].requests["ok"] == 6
    assert str(result).startswith("target    ") and str(result.folder) in str(result)
    assert result.report()["steps"][0]["completed"] == 6
    assert {request.headers["authorization"] for request in generations(server.requests)} == {f"Bearer {KEY}"}
    assert not any(KEY.encode() in path.read_bytes() for path in result.folder.iterdir())
    assert KEY not in str(result) + repr(result) + str(result.report())
    assert result.manifest["command"][0] == "run" and "--seed=7" in result.manifest["command"]
    table = result.load()
    assert len(table) == 6 and set(table["outcome"]) == {"ok"} and (table["ttft_ms"] > 0).all()


def test_a_sweep_that_is_cancelled_closes_its_log_and_is_resumed(tmp_path: Path) -> None:
    wait_ms = [40.0]

    async def cancelled(url: str, output: Path) -> bool:
        """Was it cancelled in its second step? Not so where this machine was too busy to measure the first."""
        wait_ms[0], seen = 40.0, asyncio.Event()

        def tell(line: str) -> None:
            if line.lstrip().startswith("1 "):
                wait_ms[0] = 20_000.0
                seen.set()

        shape: dict[str, Any] = {"input_len": 16, "output_len": 2, "requests": 6, "seed": 1}
        task = asyncio.create_task(loadgen.sweep(url, levels=[1, 2, 3], **shape, output=output, tell=tell))
        await seen.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            wait_ms[0] = 40.0
            return True
        return False

    with ThreadedServer(lambda request: serve(wait_ms[0])(request)) as server:
        for output in tries(tmp_path):
            if asyncio.run(cancelled(server.url, output)):
                break
        (folder,) = output.iterdir()
        run = open_run(folder)
        assert run.status == "interrupted" and run.manifest and "cancelled" in run.manifest["error"]
        assert sum(record.step == 1 and record.phase == "measured" for record in run.records()) == 6

        result = asyncio.run(loadgen.sweep(resume=folder))
        assert result.folder == folder and result.status == "complete"
        assert 1 < len({step.concurrency for step in result.steps}) <= 3
        ids = loadgen.load(folder, everything=True)["request_id"].tolist()
        assert len(ids) == len(set(ids))
        if result.stop.reason == "client_bound":  # which may be gone on with once more
            too_busy()
        with pytest.raises(loadgen.UsageError, match="came to its end"):
            asyncio.run(loadgen.sweep(resume=folder))


def test_it_works_in_a_thread_and_leaves_signals_alone(server: ScriptedServer) -> None:
    found: list[Any] = []

    def work() -> None:
        try:
            found.append(asyncio.run(loadgen.run(server.url, **SHORT)))
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert isinstance(found[0], loadgen.Result), found


@pytest.mark.parametrize(
    ("urls", "options", "words"),
    [
        ((), {}, "nothing to measure"),
        (("http://127.0.0.1:9",), {"simulate": True}, "exclude each other"),
        (("http://127.0.0.1:9",), {"concurrency": 0}, "not a whole number"),
        (("http://127.0.0.1:9",), {"slo": "ttft_p95=abc"}, "no number"),
        (("http://127.0.0.1:9",), {"output": "-"}, "a folder"),
        (("http://127.0.0.1:9",), {"simulate": "yes"}, "True or False"),
        (("http://127.0.0.1:9",), {"concurrency": True}, "not True or False"),
        (("http://127.0.0.1:9",), {"extra_body": {"a": object()}}, "no JSON"),
        (("http://127.0.0.1:9",), {"api_key": "a", "api_key_env": "HOME"}, "another place for the key"),
        (("http://127.0.0.1:9",), {"api_key": "a b"}, "holds a space"),
        ((b"http://127.0.0.1:9",), {}, "a URL is text"),
    ],
)
def test_what_cannot_be_meant(urls: tuple[Any, ...], options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(loadgen.UsageError, match=words):
        asyncio.run(loadgen.run(*urls, **options))
    assert not list(tmp_path.iterdir())


def test_an_unknown_keyword_and_a_server_that_cannot_be_measured() -> None:
    with pytest.raises(TypeError, match="no keyword 'concurency'; did you mean concurrency"):
        asyncio.run(loadgen.run("http://127.0.0.1:9", concurency=3))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no keyword 'quiet'"):
        asyncio.run(loadgen.run("http://127.0.0.1:9", quiet=True))  # type: ignore[call-arg]
    with pytest.raises(loadgen.TargetError):
        asyncio.run(loadgen.run("http://127.0.0.1:9"))
    with (
        ThreadedServer(lambda request: error_reply(401, f"who is {KEY}?")) as server,
        pytest.raises(loadgen.TargetError) as told,
    ):
        asyncio.run(loadgen.run(server.url, api_key=KEY))
    assert KEY not in str(told.value) + repr(told.value.__cause__) + repr(told.value.__context__)
