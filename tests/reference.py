"""What Hugging Face transformers answers, which is what a stage pipeline must answer too."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Sequence
from typing import Any

import torch
import transformers


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Greedy ids, and the logits that each was chosen from."""

    ids: tuple[int, ...]
    logits_nV: torch.Tensor
    """Shape [answered tokens, vocabulary]."""

    def behind(self, num_tokens: int) -> Answer:
        """Return the answer to the prompt with so many tokens of this answer behind it."""
        return Answer(ids=self.ids[num_tokens:], logits_nV=self.logits_nV[num_tokens:])


class Reference:
    """A model folder in transformers: float32, eager attention, greedy, KV cache."""

    def __init__(self, model_path: pathlib.Path, *, attention: str = "eager") -> None:
        self.model: Any = transformers.AutoModelForCausalLM.from_pretrained(
            model_path, dtype=torch.float32, attn_implementation=attention
        ).eval()
        self.model.generation_config = transformers.GenerationConfig(pad_token_id=0)

    def generate(self, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """Return exactly max_new_tokens ids; end tokens do not end it."""
        ids: list[int] = self._generate(prompt, max_new_tokens)[0, len(prompt) :].tolist()
        return ids

    def answer(self, prompt: Sequence[int], max_new_tokens: int) -> Answer:
        """Return exactly max_new_tokens ids and their logits, computed in one piece."""
        ids = self.generate(prompt, max_new_tokens)
        with torch.inference_mode():
            output = self.model(torch.tensor([[*prompt, *ids[:-1]]]))
        return Answer(ids=tuple(ids), logits_nV=output.logits[0, len(prompt) - 1 :])

    def token_stamps(self, prompt: Sequence[int], max_new_tokens: int) -> list[float]:
        """Return the times on time.perf_counter at which each token was chosen."""
        stamps = _Stamps()
        self._generate(prompt, max_new_tokens, streamer=stamps)
        return stamps.times_s[1:]  # the first one is the prompt

    def logits(self, prompt: Sequence[int]) -> torch.Tensor:
        """Return the logits of the last token, [V]."""
        with torch.inference_mode():
            answer = self.model(torch.tensor([list(prompt)]), logits_to_keep=1)
        last: torch.Tensor = answer.logits[0, -1]
        return last

    def _generate(self, prompt: Sequence[int], max_new_tokens: int, **settings: Any) -> Any:
        with torch.inference_mode():
            return self.model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
                max_new_tokens=max_new_tokens,
                do_sample=False,
                **settings,
            )


class _Stamps(transformers.generation.BaseStreamer):  # type: ignore[misc]
    """Notes when tokens come."""

    def __init__(self) -> None:
        self.times_s: list[float] = []

    def put(self, _value: torch.Tensor) -> None:
        self.times_s.append(time.perf_counter())

    def end(self) -> None:
        """Part of the interface; there is nothing to finish."""
