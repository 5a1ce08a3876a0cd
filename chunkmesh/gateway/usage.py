"""Counts the tokens of one HTTP request, over its prompts and their outputs. Pure."""

from __future__ import annotations

import dataclasses

from pydantic import JsonValue

from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(slots=True)
class _OfPrompt:
    """What replies have told of one prompt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: dict[int, int] = dataclasses.field(default_factory=dict)
    """By output."""


class Usage:
    """Owner of the counts."""

    def __init__(self, num_prompts: int) -> None:
        """Begin with nothing."""
        self._prompts = [_OfPrompt() for _ in range(num_prompts)]

    def take(self, prompt: int, told: pb.GenerateStreamChunk | pb.GenerateComplete) -> None:
        """Take what a reply tells; the prompt is counted once for all of its outputs."""
        counts = self._prompts[prompt]
        counts.prompt_tokens = told.prompt_tokens
        counts.cached_tokens = told.cached_tokens
        counts.output_tokens[told.index] = told.completion_tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(each.prompt_tokens for each in self._prompts)

    @property
    def cached_tokens(self) -> int:
        """Those of them that came from the prefix cache."""
        return sum(each.cached_tokens for each in self._prompts)

    @property
    def output_tokens(self) -> int:
        """Tokens of all outputs so far."""
        return sum(sum(each.output_tokens.values()) for each in self._prompts)

    def as_json(self) -> dict[str, JsonValue]:
        """Return the usage as OpenAI writes it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
