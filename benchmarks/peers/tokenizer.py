"""Train a tiny byte-level BPE tokenizer on the licences and the standard library of this machine: no download.

python tokenizer.py FOLDER        needs `tokenizers` only

The folder is what `AutoTokenizer.from_pretrained(FOLDER)` wants; a config.json stands in for the model's.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers  # type: ignore[import-not-found]

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + (m['content'] if m['content'] is string"
    " else m['content'] | map(attribute='text') | join('')) + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def make(folder: Path) -> None:
    licences = sorted(Path("/usr/share/common-licenses").glob("*"))
    library = sorted(Path(os.__file__).parent.glob("*.py"))[:150]
    texts = [str(path) for path in [*licences, *library] if path.is_file()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train(
        texts,
        trainers.BpeTrainer(
            vocab_size=8192,
            special_tokens=["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    folder.mkdir(parents=True, exist_ok=True)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "</s>",
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
    shape = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(shape | {"max_position_embeddings": 32768}, indent=1))
    tokenizer.save(str(folder / "tokenizer.json"))  # last: its presence means that the folder is whole


if __name__ == "__main__":
    make(Path(sys.argv[1]))
