"""Turns one request's output ids into text as they arrive. No I/O.

Text is sent only when later ids cannot change it, so a character that spans several ids never
shows as U+FFFD. Each step decodes a short window: the ids of the last text sent, which tell the
decoder that it is not at the start (leading spaces), and those that are still pending.

Source: the same window idea as DecodeStream of https://github.com/huggingface/tokenizers, which
however has no flush and fails where a decoder rewrites text that was already sent.
"""

from __future__ import annotations

import re

from tokenizers import Tokenizer

_REPLACEMENT = "\ufffd"
# A longer run of pending ids is no single character any more: the output is not valid UTF-8.
_MAX_PENDING = 16
# An unfinished character has at most three bytes, each at least one id.
_MAX_UNFINISHED = 3
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Detokenizer:
    """Detokenises one output. Not shared between requests."""

    def __init__(self, tokenizer: Tokenizer, skipped_ids: frozenset[int] = frozenset()) -> None:
        """Start an output whose skipped_ids (special tokens) give no text."""
        self._tokenizer = tokenizer
        self._skipped_ids = skipped_ids
        self._sent: list[int] = []
        self._pending: list[int] = []

    def push(self, token_id: int) -> str:
        """Take the next id; return new text, empty while a character is incomplete."""
        if token_id in self._skipped_ids or self._tokenizer.id_to_token(token_id) is None:
            return ""
        self._pending.append(token_id)
        text = self._new_text(self._pending)
        if text and not text.endswith(_REPLACEMENT):
            return self._send(len(self._pending), text)
        if len(self._pending) > _MAX_PENDING:
            return self._send_invalid()
        return ""

    def flush(self) -> str:
        """Return the text of what is pending; an unfinished character is one U+FFFD."""
        if not self._pending:
            return ""
        text = self._new_text(self._pending)
        if _REPLACEMENT in text:
            bytes_text = self._unfinished_bytes()
            text = text if bytes_text is None else bytes_text
        self._pending = []
        return text

    def _new_text(self, ids: list[int]) -> str:
        """Decode ids as a continuation of what was sent last."""
        before = self._decode(self._sent)
        text = self._decode(self._sent + ids)
        # Byte-fallback decoders may turn bytes that were fine into U+FFFD when more bytes follow.
        return text[len(before) :] if text.startswith(before) else self._decode(ids)

    def _send(self, num_ids: int, text: str) -> str:
        """Note that the first pending ids are sent as text."""
        self._sent, self._pending = self._pending[:num_ids], self._pending[num_ids:]
        return text

    def _send_invalid(self) -> str:
        """Send pending ids that are no text, but for a character that may end them."""
        num_ids = len(self._pending)
        whole = self._new_text(self._pending)
        for cut in range(num_ids - 1, num_ids - 1 - _MAX_UNFINISHED, -1):
            text = self._new_text(self._pending[:cut])
            if text + self._decode(self._pending[cut:]) == whole:
                return self._send(cut, text)
        return self._send(num_ids, whole)

    def _unfinished_bytes(self) -> str | None:
        """Decode pending ids that are all single bytes; decoders give one mark for each."""
        tokens = [self._tokenizer.id_to_token(token_id) or "" for token_id in self._pending]
        matches = [match for token in tokens if (match := _BYTE_TOKEN.fullmatch(token))]
        if len(matches) < len(tokens):
            return None
        return bytes(int(match[1], 16) for match in matches).decode(errors="replace")

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False) if ids else ""
