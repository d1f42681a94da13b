"""A key planted wherever one can be given, and every byte searched that any verb then writes.

The cases X06 (tests/cases/test_access.py) have servers that repeat what they were sent; here are the other ways out:
workers, proxies, exports and comparisons, faults of our own, and what lies in the folder beside the figures.
"""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.client.transport import Access
from loadgen.simulator.scripted import ThreadedServer
from tests.cases.support import everything
from tests.cases.test_tls_proxy import Proxy, open_paths
from tests.cli.command import COMMAND, ROOT, Call, folder_in, serve

KEY = "Wq7-planted-Lk29x"
QUICK = ("--input-len", "16", "--output-len", "3", "-c", "2", "--requests", "6")

DIALECT = """
from loadgen.client.dialects.base import Dialect
class Broken(Dialect):
    name, path = "broken", "/broken"
    def body(self, prompt, options):
        raise RuntimeError("a fault of its own")
    def event(self, data): ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LOADGEN_API_KEY", KEY)


def found_in(*places: Path) -> dict[str, str]:
    """What makes Python look for modules there as well."""
    return {"PYTHONPATH": os.pathsep.join([*map(str, places), os.environ["PYTHONPATH"]])}


def run(*words: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    given = {**os.environ, **found_in(ROOT), **(env or {})}
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, timeout=60, env=given)


def test_workers_a_proxy_with_a_password_and_every_reader(tmp_path: Path, call: Call) -> None:
    with Proxy() as proxy, ThreadedServer(open_paths(serve(wait_ms=5.0))) as server:
        through = proxy.url.replace("//", f"//user:{KEY}@")
        url = f"{server.url}?api_key={KEY}"
        body = json.dumps({"auth_token": KEY})
        for number, more in enumerate((("--workers", "2"), ("--proxy", through), ())):
            words = ("run", url, *QUICK, *more, "--header", f"X-Api-Key: {KEY}", "--extra-body", body, "-o", "runs")
            if number == 0:  # one in a process of its own, to its very end
                ran = run(*words)
            else:
                said = call(*words)
                ran = subprocess.CompletedProcess(words, said.code, said.out.encode(), said.err.encode())
            assert ran.returncode in (0, 4), ran.stderr
            assert len(list((tmp_path / "runs").iterdir())) == number + 1
            assert KEY.encode() not in everything(ran, tmp_path / "runs")
        assert any("proxy-authorization" in head.lower() for head in proxy.seen), "the password was used"
    first, second, third = sorted((tmp_path / "runs").iterdir())
    seen = ""
    for verb in (
        *(("report", first, "--details"), ("report", first, "--json"), ("export", first, "--all")),
        *(("export", first, "--format", "jsonl", "--all"), ("export", first, "--format", "vllm", "-o", "vllm.json")),
        *(("export", first, "--format", "parquet", "-o", "a.parquet"), ("compare", second, third)),
        *(("compare", second, third, "--json"), ("check", second, "--against", third, "--json")),
    ):
        said = call(*verb)
        assert said.code in (0, 1, 4), said.err
        seen += said.out + said.err
    assert KEY not in seen
    assert not any(KEY.encode() in path.read_bytes() for path in tmp_path.glob("*.*") if path.is_file())


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry-run"])
def test_a_fault_of_a_dialect_of_ones_own(more: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(DIALECT)
    with ThreadedServer(serve()) as server:
        ran = run(
            *("run", f"{server.url}?token={KEY}", *QUICK, "--endpoint", "mine:Broken", "-o", "runs", *more),
            env=found_in(ROOT, tmp_path),
        )
    assert ran.returncode != 0 and b"a fault of its own" in ran.stderr
    assert KEY.encode() not in everything(ran, tmp_path)


def test_neither_a_traceback_nor_an_object_shows_it() -> None:
    access = Access(headers={"authorization": f"Bearer {KEY}"}, proxy=f"http://user:{KEY}@h:1")
    assert KEY not in repr(access) + str(access)
    code = (
        "import os, loadgen, asyncio, traceback\n"
        "try: asyncio.run(loadgen.run('http://127.0.0.1:9', api_key=os.environ['LOADGEN_API_KEY']))\n"
        "except loadgen.TargetError as error:\n"
        "    print(''.join(traceback.TracebackException.from_exception(error).format()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60)
    assert b"Traceback" in done.stdout and KEY.encode() not in done.stdout + done.stderr


def test_neither_prompts_nor_answers_are_kept(tmp_path: Path, call: Call) -> None:
    (tmp_path / "prompts.jsonl").write_text(
        "".join(json.dumps({"prompt": f"my private question {n}"}) + "\n" for n in range(4))
    )
    with ThreadedServer(serve()) as server:
        said = call("run", server.url, "--prompts", "prompts.jsonl", *QUICK[2:], "-o", "runs")
        assert any("private question" in str(request.json) for request in server.requests)
    assert said.code in (0, 4), said.err
    kept = b"".join(path.read_bytes() for path in folder_in(tmp_path / "runs").iterdir())
    assert b"private" not in kept and b"private" not in (said.out + said.err).encode()
    # The scripted answer's text is " 0 1 2": no field holds text at all where a request went well.
    lines = [json.loads(line) for line in (folder_in(tmp_path / "runs") / "requests.jsonl").read_bytes().splitlines()]
    assert not any("excerpt" in line for line in lines if line["outcome"] == "ok")


@pytest.mark.parametrize(("mask", "workers"), [(0o077, 2), (0o000, 1)])
def test_nobody_else_may_write_and_the_umask_says_who_may_read(
    mask: int, workers: int, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", found_in(ROOT)["PYTHONPATH"])
    with ThreadedServer(serve()) as server:
        before = os.umask(mask)
        try:
            said = call("run", server.url, *QUICK, "-o", "runs", "--workers", workers)
        finally:
            os.umask(before)
    assert said.code in (0, 4), said.err
    folder = folder_in(tmp_path / "runs")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    folder_mode = modes.pop(folder.name)
    assert folder_mode == 0o755 & ~mask
    assert set(modes.values()) == {0o644 & ~mask}, modes


def test_no_source_unpickles_or_evaluates() -> None:
    """Ruff's S rules are on; this holds without them, and for what a `noqa` would hide."""
    words = ("pickle", "marshal", "shelve", "dill", "yaml", "eval(", "exec(", "__import__", "shell")
    sources = {path: path.read_text() for path in sorted((ROOT / "loadgen").rglob("*.py"))}
    assert len(sources) > 100
    for path in [path for path, text in sources.items() if any(word in text for word in words)]:
        for node in ast.walk(ast.parse(sources[path])):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "marshal", "shelve", "dill", "yaml"} & {name.split(".")[0] for name in names}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "__import__"), f"{path}:{node.lineno}"
            if isinstance(node, ast.keyword) and node.arg == "shell":
                raise AssertionError(f"{path}: a shell")
