"""Small local tokenizers, written to a folder as their package writes them."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

from loadgen.workload.words import WORDS


def words_tokenizer(folder: Path) -> Path:
    """A token for each word and each sign between them; a start token that is special."""
    vocabulary = {word: i for i, word in enumerate(("<unk>", "<s>", *WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(16)
    return _saved(tokenizer, folder)


def bytes_tokenizer(folder: Path) -> Path:
    """A token for each byte of UTF-8."""
    vocabulary = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _saved(tokenizer, folder)


def _saved(tokenizer: Tokenizer, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
