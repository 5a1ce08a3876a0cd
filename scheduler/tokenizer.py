"""Text and chats to token ids, and the way back. One per scheduler, used from several threads.

Ids are those that Hugging Face transformers 5 gives for the same folder: text gets what the
post-processor of tokenizer.json adds, whatever add_bos_token in tokenizer_config.json says, and
a chat only what its template writes. Other than there, BOS is never doubled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tokenizers

from chunkmesh.errors import ConfigError, InvalidRequest, reason_of
from chunkmesh.json_text import parse_json
from chunkmesh.pages import TokenIds
from scheduler.chat_template import ChatEnd, ChatMessage, ChatTemplate
from scheduler.detokenizer import Detokenizer
from scheduler.model_files import Json, ModelFiles
from scheduler.output_text import OutputText
from scheduler.stop_strings import StopMatcher
from scheduler.token_bytes import token_bytes
from scheduler.tokenizer_bounds import check_bounds, no_panic


class Tokenizer:
    """A model folder's tokenizer and chat template."""

    def __init__(self, files: ModelFiles, *, max_tokens: int | None = None) -> None:
        """Load tokenizer.json and compile the chat template.

        A text that max_tokens of the longest token could not hold is refused before it is encoded:
        tens of megabytes would take minutes and gigabytes, only to be refused then.

        Raises:
            ConfigError: the tokenizer or the template is not usable.
        """
        self._tokenizer = _load(files)
        special_tokens = _special_tokens(files.tokenizer_config)
        self._bos_id = self._id_of(special_tokens.get("bos_token"))
        self._adds_bos = self._first_id_added() == self._bos_id is not None
        self._special_ids = frozenset(
            id_
            for id_, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special
        )
        longest = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)), default=1)
        self._max_chars = None if max_tokens is None else max_tokens * longest
        self._template = (
            None
            if files.chat_template is None
            else ChatTemplate(files.chat_template, special_tokens)
        )

    def encode(self, text: str) -> TokenIds:
        """Return the ids of a text prompt. Blocks (a second a million ids), leaves the GIL.

        Raises:
            InvalidRequest: the text cannot fit.
        """
        self._check_length(text, field="text")
        ids = self._encode(text, add_special_tokens=True)
        stands_already = self._adds_bos and ids[1:2].tolist() == [self._bos_id]
        return ids[1:] if stands_already else ids

    def encode_chat(self, messages: Sequence[ChatMessage], end: ChatEnd = "assistant") -> TokenIds:
        """Return the ids of a chat. Blocks as encode does.

        Raises:
            InvalidRequest: the model has no chat template, or it refuses these messages, or what it
                makes of them cannot fit.
        """
        if self._template is None:
            raise InvalidRequest("the model has no chat template; send text instead", field="chat")
        text = self._template.render(messages, end)
        self._check_length(text, field="chat")
        return self._encode(text, add_special_tokens=False, field="chat")

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids that form a whole output."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what an id adds to a text that has begun; nothing if there is no such token."""
        return token_bytes(self._tokenizer, token_id)

    def output_text(self, *, stop: Sequence[str], skip_special_tokens: bool) -> OutputText:
        """Return a fresh sink for one request's only output."""
        (text,) = self.output_texts(1, stop=stop, skip_special_tokens=skip_special_tokens)
        return text

    def output_texts(
        self, num_outputs: int, *, stop: Sequence[str], skip_special_tokens: bool
    ) -> tuple[OutputText, ...]:
        """Return a fresh sink for each of one request's outputs."""
        skipped_ids = self._special_ids if skip_special_tokens else frozenset[int]()
        stops = StopMatcher(stop)
        return tuple(
            OutputText(Detokenizer(self._tokenizer, skipped_ids), stops.fresh())
            for _ in range(num_outputs)
        )

    def _check_length(self, text: str, *, field: str) -> None:
        if self._max_chars is not None and len(text) > self._max_chars:
            raise InvalidRequest(
                f"the prompt has {len(text)} characters; the context cannot hold more than "
                f"{self._max_chars}",
                field=field,
            )

    def _encode(self, text: str, *, add_special_tokens: bool, field: str = "text") -> TokenIds:
        # encode() would hold the GIL; the batch call releases it.
        try:
            with no_panic():
                encodings = self._tokenizer.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )
        except ValueError as error:
            reason = f"the model's tokenizer cannot encode {field}: {error}"
            raise InvalidRequest(reason, field=field) from error
        return np.array(encodings[0].ids, dtype=np.uint32)

    def _id_of(self, token: str | None) -> int | None:
        return None if token is None else self._tokenizer.token_to_id(token)

    def _first_id_added(self) -> int | None:
        """Return the id that tokenizer.json puts before every text, if it does.

        Raises:
            ConfigError: it cannot encode a single letter.
        """
        try:
            bare = self._encode("a", add_special_tokens=False)
            full = self._encode("a", add_special_tokens=True)
        except InvalidRequest as error:
            raise ConfigError(f"tokenizer.json: {error}") from error
        return int(full[0]) if len(full) > len(bare) else None


def _load(files: ModelFiles) -> tokenizers.Tokenizer:
    """Read tokenizer.json."""
    path = files.tokenizer_path
    try:
        content = path.read_bytes()
        with no_panic():
            tokenizer = tokenizers.Tokenizer.from_buffer(content)
        check_bounds(parse_json(content))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    # Limits that a training run left in the file would cut prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_tokens(tokenizer_config: Json) -> dict[str, str]:
    """Return the named special tokens, such as bos_token, each text or an object with content."""
    tokens = {}
    for name, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens
