"""How single tokens are written in JSON, once their bytes are known. Pure.

The bytes come from the mesh, and are kept for as long as the model is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chunkmesh.v1 import generation_pb2 as pb


class TokenNames:
    """The bytes of the tokens that were asked for so far; bounded by the model's vocabulary."""

    def __init__(self) -> None:
        """Begin with none."""
        self._bytes: dict[int, bytes] = {}

    def learn(self, ids: Iterable[int], tokens: Iterable[bytes]) -> None:
        """Keep the bytes of some ids."""
        self._bytes.update(zip(ids, tokens, strict=True))

    def unknown(self, reply: pb.GenerateResponse) -> list[int]:
        """Return the ids whose bytes must be known before this reply is written."""
        match reply.WhichOneof("event"):
            case "chunk" if reply.chunk.HasField("logprobs"):
                ids = {*reply.chunk.token_ids, *reply.chunk.logprobs.top_ids}
            case "complete" if reply.complete.HasField("logprobs"):
                ids = {*reply.complete.output_ids, *reply.complete.logprobs.top_ids}
            case _:
                return []
        return sorted(ids - self._bytes.keys())

    def bytes_of(self, token_id: int) -> bytes:
        """Return what an id adds to a text."""
        return self._bytes[token_id]

    def text_of(self, token_id: int) -> str:
        """Return it as text; a part of a character as escaped bytes."""
        return as_text(self._bytes, token_id, prefix="")

    def key_of(self, token_id: int) -> str:
        """Return it as completions name it: a part of a character begins with bytes:."""
        return as_text(self._bytes, token_id, prefix="bytes:")


def as_text(known: Mapping[int, bytes], token_id: int, *, prefix: str) -> str:
    """Return a token as text, or else its bytes as OpenAI writes them."""
    try:
        return known[token_id].decode()
    except UnicodeDecodeError:
        return prefix + "".join(f"\\x{byte:02x}" for byte in known[token_id])
