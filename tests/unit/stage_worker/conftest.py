"""Models and reference answers that the stage worker's tests share."""

from __future__ import annotations

import pathlib

import pytest

from tests.random_ids import make_prompt
from tests.reference import Reference
from tests.tiny_models import make_tiny_llama


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Four layers, untied head, one file."""
    path = tmp_path_factory.mktemp("tiny_llama")
    make_tiny_llama(path)
    return path


@pytest.fixture(scope="session")
def tied_llama(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Tied embeddings and no lm_head, in several files with an index."""
    path = tmp_path_factory.mktemp("tied_llama")
    make_tiny_llama(path, tie_word_embeddings=True, max_shard_size="300KB")
    assert len(list(path.glob("*.safetensors"))) >= 3
    return path


@pytest.fixture(scope="session")
def reference(tiny_llama: pathlib.Path) -> Reference:
    """What transformers answers for tiny_llama."""
    return Reference(tiny_llama)


@pytest.fixture
def prompt() -> list[int]:
    """Seventy tokens: several pages, the last one partial."""
    return make_prompt(70, seed=1)
