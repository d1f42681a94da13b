"""The documentation: every command and every Python example in it runs, every link leads somewhere, the site is whole.

A command is a line of a code fence that begins with `loadgen`. Addresses in it become a server's of the test's own,
files those of `FILES`, run folders a copy of the committed example; verbs that measure are only said what they would
send (`--dry-run`), or, with LOADGEN_THOROUGH set, made short. Of what `SHORTER` lists, as it takes long, only the words
are read here: `test_docs_long.py` runs it.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from loadgen.cli.main import cli
from loadgen.simulator.scripted import ThreadedServer
from tests.cli.command import COMMAND, ROOT, caller, serve
from tests.thorough import THOROUGH

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("README*.md")])
FOREIGN = ROOT / "tests" / "data" / "foreign"
FENCE = re.compile(r"^ {0,3}```(\w*)[^\n]*\n(.*?)^ {0,3}```", re.MULTILINE | re.DOTALL)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,20,4\n2023-11-16 18:17:04.0319600,30,4\n"
MOONCAKE = '{"timestamp": 0, "input_length": 40, "output_length": 4, "hash_ids": [1]}\n' * 2
# Name in the documentation → what lies there.
FILES: dict[str, str | Path] = {
    "AzureLLMInferenceTrace_conv.csv": AZURE,
    "conversation_trace.jsonl": MOONCAKE,
    "mine.csv": "when,prompt_n,answer_n\n0,20,4\n10,30,5\n",
    "mine.toml": ROOT / "workloads" / "trtllm-128-128.toml",
    "key": "sk-of-the-documentation\n",
    "prompts.jsonl": '{"prompt": "hello there", "output_tokens": 4}\n',
    "batch.jsonl": '{"prompt": "hello there", "output_tokens": 4}\n',
    "vllm-bench.json": FOREIGN / "vllm-bench-0.32.0.json.gz",
    "profile_export.jsonl": FOREIGN / "aiperf-0.13.0-profile_export.jsonl.gz",
    "guidellm.json": FOREIGN / "guidellm-0.8.1.json.gz",
}
MEASURING = ("run", "sweep", "replay")
# A piece of a command → what stands there instead; None: it is not run at all, for the reason said.
SHORTER: dict[str, tuple[str | None, str]] = {
    **({} if THOROUGH > 1 else {"loadgen calibrate": (None, "a minute; tests/cli/test_calibrate.py has it")}),
    **dict.fromkeys(
        (
            "--pairs",
            "loadgen experiment ./",
            "prefix-cache --http",
            "prefix-cache http",
            "--resume",
            "--truth",
            "runs/*",
        ),
        (None, "something is made ready for it in tests/test_docs_long.py"),
    ),
    **({} if THOROUGH > 1 else {"--seed 7": (None, "two long arms; tests/cli/test_experiment.py has it")}),
    "--ray": (None, "needs a Ray cluster; tests/ray/test_docs.py has it"),
    " --demo": ("", "a minute"),
    **({"--html": (None, "draws every chart; the page's own tests have it")} if THOROUGH < 2 else {}),
}
COMMENT = re.compile(r"\s+#.*")
URL = re.compile(r"https?://[^\s'\"|]+|\bURL(_[AB])?\b")


def commands() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for language, text in FENCE.findall(page.read_text()):
            if language in ("", "sh", "bash", "yaml"):
                joined = re.sub(r" *\\\n *", " ", text)
                for line in joined.splitlines():
                    found = re.match(r"\s*(?:\$ |run: )?(?:\.venv/bin/)?(loadgen [a-z].*)$", line)
                    if found:
                        yield page, found[1]


def split(command: str) -> list[str]:
    """What its first process gets, without the `loadgen`."""
    words = shlex.split(command, comments=True)[1:]
    end = next((at for at, word in enumerate(words) if word in ("|", ">", ">>", "&&", ";", "||")), len(words))
    return words[:end]


def words_of(command: str, url: str) -> list[str] | None:
    """Its words, as they are run here; None where it is not."""
    command = COMMENT.sub("", command)
    for piece, (instead, _) in SHORTER.items():
        if piece in command:
            if instead is None:
                return None
            command = command.replace(piece, instead)
    words = split(URL.sub(url, command))
    if words[0] in MEASURING and not {"--help", "-h"} & set(words):
        words.append("--dry-run")
    return words


def understood(command: str, url: str) -> None:
    """Raises click's UsageError for an option, a value or a number of arguments that the verb does not have."""
    words = [word for word in split(URL.sub(url, command)) if word not in ("…", "[…]")]
    context = cli.make_context("loadgen", words[:1], resilient_parsing=True)
    verb = cli.get_command(context, words[0])
    assert verb is not None, command
    verb.make_context(words[0], words[1:], parent=context)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that the documentation names."""
    folder = tmp_path_factory.mktemp("docs")
    for name, content in FILES.items():
        if isinstance(content, Path):
            data = content.read_bytes()
            (folder / name).write_bytes(gzip.decompress(data) if content.suffix == ".gz" else data)
        else:
            (folder / name).write_text(content)
    [talk] = [text for _, text in FENCE.findall((DOCS / "dialects.md").read_text()) if "class Talk" in text]
    (folder / "talk.py").write_text(talk)
    for _, command in commands():
        for name in re.findall(r"results/([\w-]+)", command):
            if not (folder / "results" / name).exists():
                shutil.copytree(ROOT / "results" / "example-vllm", folder / "results" / name)
    return folder


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadedServer(serve()) as server:
        yield server.url


COMMANDS = sorted({(str(page.relative_to(ROOT)), command) for page, command in commands()})


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}: {command[:60]}" for page, command in COMMANDS])
def test_every_command_runs(
    page: str, command: str, place: Path, url: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = words_of(command, url)
    monkeypatch.chdir(place)
    if words is None:  # SHORTER says where it is run; here it is seen that its words are understood
        understood(command, url)
        return
    monkeypatch.syspath_prepend(str(place))
    said = caller(capfd)(*words)
    assert said.code in (0, 1, 4), f"{page}: loadgen {' '.join(words)}: {said.err}"
    assert "Traceback" not in said.err


def test_what_is_not_run_is_tested_elsewhere() -> None:
    assert len(COMMANDS) > 30
    for _, reason in SHORTER.values():
        for path in re.findall(r"tests/[\w/]+\.py", reason):
            assert (ROOT / path).is_file(), path


@pytest.mark.skipif(THOROUGH < 2, reason="LOADGEN_THOROUGH=5: each is a process and a measurement of its own")
@pytest.mark.parametrize("command", sorted({c for _, c in COMMANDS if c.split()[1] in MEASURING}))
def test_every_measurement_measures(command: str, place: Path, url: str) -> None:
    words = words_of(command, url)
    if words is None or "-w" in words or "talk:Talk" in words:
        pytest.skip("it takes long, or a server that speaks another API")
    words.remove("--dry-run")
    for name in ("--duration", "--max-time", "--effort", "--input-len", "--output-len", "--requests"):
        if name in words:
            del words[words.index(name) : words.index(name) + 2]
    if "--trace" not in words and words[0] != "replay" and "--prompts" not in words:
        words += ["--input-len", "16", "--output-len", "4"]
    words += ["--requests", "6", "--max-time", "20s", "-o", "made"]
    if words[0] == "sweep" and "--levels" not in words and "--rate" not in words:
        words += ["--max-level", "2"]
    done = subprocess.run([*COMMAND, *words], cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode in (0, 1, 4), done.stderr


# --- Python -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", range(3))
def test_every_python_example_of_the_api_runs(at: int, place: Path, url: str) -> None:
    examples = [text for language, text in FENCE.findall((DOCS / "api.md").read_text()) if language == "python"]
    assert len(examples) == 3
    code = examples[at].replace("http://localhost:8000", url)
    code = code.replace("input_len=512, output_len=128", "input_len=16, output_len=4, levels=[2], requests=6")
    if "def test_" in code:
        code = code.replace("requests=40", "requests=6").replace(">= 40", ">= 6")
        code += f"\n\ntest_the_server_holds_its_objective({url!r})\n"
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=place, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


# --- the site ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", DOCS / "build.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Seen(HTMLParser):
    """The links and anchors of a page, and whatever it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in ("script", "link", "iframe") or given.get("src"):
            self.loads.append(f"{tag} {given}")


def test_the_site_has_every_page_and_every_link_leads_somewhere(builder: ModuleType, tmp_path: Path) -> None:
    named = {builder.source(page).resolve() for page in builder.pages()}
    assert {page.resolve() for page in DOCS.rglob("*.md")} <= named, "a page that PAGES of docs/build.py lacks"
    builder.build(tmp_path)
    seen = {path: Seen(path.read_text()) for path in tmp_path.rglob("*.html")}
    assert tmp_path / "index.html" in seen and len(seen) == len(builder.pages())
    for path, page in seen.items():
        assert not [load for load in page.loads if "http" in load or "script" in load], path
        for href in page.links:
            if re.match(r"https?:", href):
                continue
            name, _, anchor = href.partition("#")
            there = (path.parent / name).resolve() if name else path
            assert there.is_file(), f"{path.name}: {href}"
            if anchor and there in seen:
                assert anchor in seen[there].ids, f"{path.name}: {href}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_in_the_repository_lead_somewhere(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    for href in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", text):
        if not re.match(r"[a-z]+:", href):
            assert (page.parent / href).exists(), f"{page.name}: {href}"


def test_a_page_is_rendered_and_escaped(builder: ModuleType) -> None:
    text = builder.render("metrics.md")
    assert "<table>" in text and "<h1" in text and "aria-current=page" in text
    assert builder.slug("What is `kept`, and why?") == "what-is-kept-and-why"
    assert json.dumps(builder.link("start.md", "../README.md")) == '"readme.html"'
