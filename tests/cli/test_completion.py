"""`loadgen completion`: scripts that a shell takes, and what they are answered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from loadgen.cli.main import VERBS
from tests.cli.command import COMMAND, ROOT, Call

COMPLETE = "import os, sys; sys.argv = ['loadgen']; from loadgen.cli.main import main; main()"


def offered(*words: str) -> list[str]:
    """What is offered for the last word, as bash asks."""
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE],
        cwd=ROOT,
        env={
            **os.environ,
            "_LOADGEN_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("loadgen", *words)),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_verbs_flags_and_choices() -> None:
    assert offered("s") == [name for name in VERBS if name.startswith("s")]
    assert "--concurrency" in offered("run", "--conc")
    assert offered("run", "--effort", "q") == ["quick"]
    assert offered("nothing-such", "--x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts(shell: str, call: Call) -> None:
    said = call("completion", shell)
    assert said.code == 0 and "_LOADGEN_COMPLETE" in said.out and said.err == ""
    if shutil.which(shell):
        done = subprocess.run([shell, "-n", "/dev/stdin"], input=said.out, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    assert call("completion", "tcsh").code == 2


def test_bash_takes_it() -> None:
    if not shutil.which("bash"):
        pytest.skip("there is no bash")
    program = f'loadgen() {{ {" ".join(COMMAND)} "$@"; }}'
    code = (
        f"""{program}; source <(loadgen completion bash); type _loadgen_completion >/dev/null && complete -p loadgen"""
    )
    done = subprocess.run(["bash", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "_loadgen_completion" in done.stdout, done.stderr
