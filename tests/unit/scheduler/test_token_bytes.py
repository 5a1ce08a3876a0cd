"""The bytes of single tokens are those that a whole text has at their place."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models

from scheduler.token_bytes import token_bytes
from tests.bytes_tokenizer import EOS, bytes_tokenizer


@pytest.fixture
def sentencepiece() -> Tokenizer:
    """Return a vocabulary that writes spaces as U+2581 and single bytes as <0xNN>."""
    vocab = {"\u2581a": 0, "b": 1, "<0xE2>": 2, "<0x82>": 3, "\u00e9": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@pytest.mark.parametrize("byte", [0x20, 0x41, 0xC3, 0xA9, 0xFF])
def test_a_byte_of_a_byte_level_vocabulary(byte: int) -> None:
    """Half a character is no U+FFFD: clients put the bytes together again."""
    assert bytes([byte]) == token_bytes(bytes_tokenizer(), byte)


def test_a_special_token_is_its_name() -> None:
    """A client sees why an output ended."""
    assert b"<eos>" == token_bytes(bytes_tokenizer(), EOS)


def test_an_id_without_a_token_has_no_bytes() -> None:
    """Vocabularies are padded, and a model may choose an id of the padding."""
    assert b"" == token_bytes(bytes_tokenizer(), 263)


@pytest.mark.parametrize(
    ("token_id", "expected"), [(0, b" a"), (1, b"b"), (2, b"\xe2"), (3, b"\x82"), (4, b"\xc3\xa9")]
)
def test_tokens_of_sentencepiece(sentencepiece: Tokenizer, token_id: int, expected: bytes) -> None:
    """The space that a decoder drops from the begin of a text belongs to the token."""
    assert expected == token_bytes(sentencepiece, token_id)
