"""A local tokenizer: what it counts, and the words for what is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.records import Prompt
from loadgen.workload.tokenizer import LocalTokenizer, prompt_text
from tests.workload.toy_tokenizers import bytes_tokenizer, words_tokenizer


def test_it_counts_text_alone_however_long(tmp_path: Path) -> None:
    """No special tokens, and what truncation the file asks for is for models."""
    folder = words_tokenizer(tmp_path)
    for path in (folder, folder / "tokenizer.json"):
        tokenizer = LocalTokenizer(str(path))
        assert tokenizer.count("the of, and") == 4
        assert tokenizer.count("the " * 100) == 100
        assert tokenizer.count("") == 0
    assert tokenizer.encode("the of") == [2, 3]
    assert len(tokenizer.sha256) == 64


def test_any_text_is_counted(tmp_path: Path) -> None:
    tokenizer = LocalTokenizer(str(bytes_tokenizer(tmp_path)))
    assert tokenizer.count("aé汉🙂") == 1 + 2 + 3 + 4
    assert tokenizer.count("\ud83d") == 1


def test_what_is_no_tokenizer_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "tokenizer.json").write_text("{}")
    for path, words in (
        ("meta-llama/Llama-3.1-8B", "nothing is downloaded"),
        ("a" * 300, "cannot be read: File name too long"),
        ("a\0b", "cannot be read"),
        (str(tmp_path / "empty"), "holds no tokenizer.json"),
        (str(tmp_path / "tokenizer.json"), "is no tokenizer"),
    ):
        with pytest.raises(UsageError) as caught:
            LocalTokenizer(path)
        assert words in caught.value.message
        assert "\n" not in caught.value.message
        assert caught.value.remedy


def test_without_the_package_the_remedy_is_to_install_it(tmp_path: Path) -> None:
    folder = words_tokenizer(tmp_path)
    code = "import sys; sys.modules['tokenizers'] = None; from loadgen.cli.main import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "run", "http://127.0.0.1:9", "--tokenizer", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "pip install 'loadgen[tokenizer]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_text_of_a_body_is_that_of_all_its_messages() -> None:
    parts = [{"type": "text", "text": "of"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    body = {"messages": [{"role": "system", "content": "the "}, {"role": "user", "content": parts}], "top_k": 5}
    assert prompt_text(Prompt(body=body)) == "the of"
    assert prompt_text(Prompt(body={"prompt": ["a", "b"]})) == "ab"
    assert prompt_text(Prompt("and")) == "and"
