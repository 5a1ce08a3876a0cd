"""From the replies of the mesh to the JSON of an answer, whole or in pieces. Pure.

Completions and chats differ in how a choice looks: that is a ChoiceForm's to know.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

from pydantic import JsonValue

from chunkmesh.gateway.asked import Asked, StreamOptions
from chunkmesh.gateway.usage import Usage
from chunkmesh.v1 import generation_pb2 as pb

Json = dict[str, JsonValue]
FINISH_REASONS = {
    pb.FINISH_REASON_STOP: "stop",
    pb.FINISH_REASON_LENGTH: "length",
    pb.FINISH_REASON_ABORT: "abort",
}


class ChoiceForm(Protocol):
    """How the choices of one kind of answer look."""

    whole_object: str
    """Name of a whole answer."""
    piece_object: str
    """Name of a piece of a streamed one."""

    def pieces(self, index: int, chunk: pb.GenerateStreamChunk) -> Iterator[Json]:
        """Yield the choices that tell of new output; none if there is nothing to tell."""
        ...

    def ends(self, index: int, complete: pb.GenerateComplete) -> Iterator[Json]:
        """Yield the choices that tell of an output's end."""
        ...

    def whole(self, index: int, complete: pb.GenerateComplete) -> Json:
        """Return the choice that tells all of an output."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What all pieces of an answer have in common."""

    id: str
    created_s: int
    """Seconds since 1970."""
    model: str
    fingerprint: str
    """Of the model's weights, in hexadecimal; empty if not known."""


class Answer:
    """One answer, as its replies come in."""

    def __init__(self, asked: Asked, head: AnswerHead, form: ChoiceForm) -> None:
        """Begin with no reply."""
        self.usage = Usage(len(asked.requests))
        self.finish_reasons: set[str] = set()
        self._asked = asked
        self._head = head
        self._form = form
        self._choices: dict[int, Json] = {}
        """Whole ones, by index."""

    def pieces(self, prompt: int, reply: pb.GenerateResponse) -> Iterator[Json]:
        """Take a reply about one of the prompts, and yield what a stream tells of it."""
        choices = self._take(prompt, reply)
        return (self._piece([choice]) for choice in choices)

    def last_pieces(self) -> Iterator[Json]:
        """Yield what a stream tells behind all replies."""
        if self._options.include_usage:
            yield {**self._piece([]), "usage": self.usage.as_json()}

    def take(self, prompt: int, reply: pb.GenerateResponse) -> None:
        """Take a reply of an answer that is told whole."""
        if reply.WhichOneof("event") == "complete":
            complete = reply.complete
            self._count(prompt, complete)
            index = self._index(prompt, complete.index)
            self._choices[index] = self._form.whole(index, complete)

    def whole(self) -> Json:
        """Return the answer, once all replies have come."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {**self._object(self._form.whole_object, choices), "usage": self.usage.as_json()}

    @property
    def _options(self) -> StreamOptions:
        return self._asked.stream or StreamOptions()

    def _take(self, prompt: int, reply: pb.GenerateResponse) -> Iterator[Json]:
        match reply.WhichOneof("event"):
            case "chunk":
                self.usage.take(prompt, reply.chunk)
                yield from self._form.pieces(self._index(prompt, reply.chunk.index), reply.chunk)
            case "complete":
                self._count(prompt, reply.complete)
                yield from self._form.ends(
                    self._index(prompt, reply.complete.index), reply.complete
                )

    def _count(self, prompt: int, complete: pb.GenerateComplete) -> None:
        self.usage.take(prompt, complete)
        self.finish_reasons.add(FINISH_REASONS[complete.finish_reason])

    def _index(self, prompt: int, output: int) -> int:
        """Return the index of a choice: the outputs of the first prompt come first."""
        return prompt * self._asked.num_outputs + output

    def _piece(self, choices: list[Json]) -> Json:
        piece = self._object(self._form.piece_object, choices)
        if self._options.usage_in_all:
            piece["usage"] = self.usage.as_json()
        elif self._options.include_usage:
            piece["usage"] = None
        return piece

    def _object(self, name: str, choices: list[Json]) -> Json:
        head = self._head
        return {
            "id": head.id,
            "object": name,
            "created": head.created_s,
            "model": head.model,
            "system_fingerprint": f"fp_{head.fingerprint[:16]}" if head.fingerprint else None,
            "choices": list(choices),
        }


def end_of(complete: pb.GenerateComplete, stop_ids: frozenset[int]) -> Json:
    """Return what a choice tells of its end; stop_ids are those that the client named.

    The mesh tells the model's own end tokens, too, which clients know as a plain stop.
    """
    stop_reason: JsonValue = None
    match complete.WhichOneof("matched"):
        case "matched_stop":
            stop_reason = complete.matched_stop
        case "matched_token_id" if complete.matched_token_id in stop_ids:
            stop_reason = complete.matched_token_id
    return {
        "finish_reason": FINISH_REASONS[complete.finish_reason],
        "stop_reason": stop_reason,
    }
