"""A tokenizer whose ids are known by hand: byte-level BPE without merges, id = byte value.

Above the bytes stand 256 <bos>, 257 <eos> and 258 <eot>; the model's vocabulary is 264.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

BOS, EOS, EOT = 256, 257, 258
VOCAB_SIZE = 264
TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def byte_characters() -> list[str]:
    """Return the character that byte-level BPE writes for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


def bytes_tokenizer(*, adds_bos: bool = True) -> Tokenizer:
    """Build the tokenizer; adds_bos lets its post-processor begin every text with <bos>."""
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ("<bos>", "<eos>", "<eot>")
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", BOS)]
        )
    return tokenizer


def write_bytes_folder(
    folder: Path, *, adds_bos: bool = True, config: dict[str, Any] | None = None
) -> Path:
    """Write the files of a model folder but for its weights; config adds to config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    bytes_tokenizer(adds_bos=adds_bos).save(str(folder / "tokenizer.json"))
    special = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE}
    model = {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": VOCAB_SIZE,
        "num_hidden_layers": 4,
        "max_position_embeddings": 4096,
        "eos_token_id": EOS,
    }
    contents = {
        "tokenizer_config.json": special,
        "generation_config.json": {"eos_token_id": [EOS, EOT]},
        "config.json": model | (config or {}),
    }
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder
