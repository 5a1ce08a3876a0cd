"""The choices of completions and of chats. Pure but for what they remember of their outputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from chunkmesh.gateway.answer import Json, end_of
from chunkmesh.gateway.logprob_forms import TextOffsets, chat_logprobs, completion_logprobs
from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.v1 import generation_pb2 as pb

_Told = pb.GenerateStreamChunk | pb.GenerateComplete


class CompletionChoices:
    """Implements answer.ChoiceForm for /v1/completions."""

    whole_object = "text_completion"
    piece_object = "text_completion"

    def __init__(self, names: TokenNames, stop_ids: frozenset[int] = frozenset()) -> None:
        """Write tokens by these names; stop_ids are those that the client has named."""
        self._names = names
        self._stop_ids = stop_ids
        self._offsets: dict[int, TextOffsets] = defaultdict(TextOffsets)

    def pieces(self, index: int, chunk: pb.GenerateStreamChunk) -> Iterator[Json]:
        """Yield the new text, if there is any, or what is told of its tokens."""
        if chunk.text or chunk.HasField("logprobs"):
            yield {
                "index": index,
                "text": chunk.text,
                "logprobs": self._logprobs(index, chunk.token_ids, chunk),
                "finish_reason": None,
                "stop_reason": None,
            }

    def ends(self, index: int, complete: pb.GenerateComplete) -> Iterator[Json]:
        """Yield why an output ended."""
        yield {"index": index, "text": "", "logprobs": None, **end_of(complete, self._stop_ids)}

    def whole(self, index: int, complete: pb.GenerateComplete) -> Json:
        """Return an output."""
        return {
            "index": index,
            "text": complete.text,
            "logprobs": self._logprobs(index, complete.output_ids, complete),
            **end_of(complete, self._stop_ids),
        }

    def _logprobs(self, index: int, ids: Sequence[int], told: _Told) -> JsonValue:
        if not told.HasField("logprobs"):
            return None
        return completion_logprobs(ids, told.logprobs, self._names, self._offsets[index])


class ChatChoices:
    """Implements answer.ChoiceForm for /v1/chat/completions."""

    whole_object = "chat.completion"
    piece_object = "chat.completion.chunk"

    def __init__(self, names: TokenNames, stop_ids: frozenset[int] = frozenset()) -> None:
        """Write tokens by these names; stop_ids are those that the client has named."""
        self._names = names
        self._stop_ids = stop_ids
        self._begun: set[int] = set()
        """Choices whose role was told."""

    def pieces(self, index: int, chunk: pb.GenerateStreamChunk) -> Iterator[Json]:
        """Yield who speaks, before anything is said, and what is new."""
        yield from self._begin(index)
        if chunk.text or chunk.HasField("logprobs"):
            yield _chat_piece(
                index, {"content": chunk.text}, self._logprobs(chunk.token_ids, chunk)
            )

    def ends(self, index: int, complete: pb.GenerateComplete) -> Iterator[Json]:
        """Yield why an output ended."""
        yield from self._begin(index)
        yield {"index": index, "delta": {}, "logprobs": None, **end_of(complete, self._stop_ids)}

    def whole(self, index: int, complete: pb.GenerateComplete) -> Json:
        """Return an output."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": complete.text, "refusal": None},
            "logprobs": self._logprobs(complete.output_ids, complete),
            **end_of(complete, self._stop_ids),
        }

    def _begin(self, index: int) -> Iterator[Json]:
        if index not in self._begun:
            self._begun.add(index)
            yield _chat_piece(index, {"role": "assistant", "content": ""}, None)

    def _logprobs(self, ids: Sequence[int], told: _Told) -> JsonValue:
        return chat_logprobs(ids, told.logprobs, self._names) if told.HasField("logprobs") else None


def _chat_piece(index: int, delta: Json, logprobs: JsonValue) -> Json:
    return {
        "index": index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": None,
        "stop_reason": None,
    }
