"""The bytes of single tokens, as log-probabilities show them. No I/O.

A tokenizer decodes only whole texts: it drops a leading space, and shows half a character as
U+FFFD. So a token is decoded behind itself, and what is no text is read from how the vocabulary
writes bytes: <0xE2>, or one character for each byte.
Source: the characters are those of bytes_to_unicode in https://github.com/openai/gpt-2
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def token_bytes(tokenizer: Tokenizer, token_id: int) -> bytes:
    """Return what an id adds to a text that has begun; nothing if there is no such token."""
    token = tokenizer.id_to_token(token_id)
    if token is None:
        return b""
    once = tokenizer.decode([token_id], skip_special_tokens=False)
    twice = tokenizer.decode([token_id, token_id], skip_special_tokens=False)
    text: str = twice[len(once) :] if twice.startswith(once) else once
    if text and _REPLACEMENT not in text:
        return text.encode()
    if match := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(match[1], 16)])
    if all(character in _BYTE_OF for character in token):
        return bytes(_BYTE_OF[character] for character in token)
    return text.encode()


def _byte_characters() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return {chr(byte if byte in printable else next(others)): byte for byte in range(0x100)}


_BYTE_OF = _byte_characters()
