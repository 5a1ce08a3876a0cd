"""O17: one Redis, one prompt, many set-ups: pages are found by whoever would compute the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
from structlog.testing import capture_logs

from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.element_type import DtypeChoice
from stage_worker.model_stage import load_stage
from tests.bytes_tokenizer import write_bytes_folder
from tests.cached_mesh import cached_mesh
from tests.random_ids import make_prompt
from tests.tiny_models import make_tiny_llama
from tests.valkey import Valkey, running_valkey

NEW_TOKENS = 8
PROMPT = make_prompt(128, seed=17)
HALVES = (0, 2, 4)


@pytest.fixture
def cold_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Run another one, in which a set-up finds nothing."""
    with running_valkey(tmp_path_factory.mktemp("c")) as server:
        yield server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write model A."""
    return _model(tmp_path_factory.mktemp("a") / "model")


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write model B: A's config and name, one attention matrix times 1.5."""
    folder = _model(tmp_path_factory.mktemp("b") / "model")
    file = folder / "model.safetensors"
    weights = safetensors.numpy.load_file(file)
    weights["model.layers.1.self_attn.q_proj.weight"] *= 1.5
    safetensors.numpy.save_file(weights, file, metadata={"format": "pt"})
    return folder


def _model(folder: Path) -> Path:
    folder.mkdir()
    write_bytes_folder(folder)
    make_tiny_llama(folder)
    return folder


async def _ask(
    folder: Path,
    redis: Valkey,
    *,
    borders: Sequence[int] = HALVES,
    dtype: DtypeChoice = "float32",
    cache_salt: str = "",
    **settings: Any,
) -> tuple[list[int], int]:
    """Run a mesh for one request; return its ids and how many tokens were found."""
    stages = [
        load_stage(folder, layers=range(*part), dtype=dtype) for part in itertools.pairwise(borders)
    ]
    async with cached_mesh(folder, stages, redis.url, **settings) as running:
        complete = await running.generate(
            input_ids=pb.TokenIds(ids=PROMPT),
            cache_salt=cache_salt,
            sampling_params=pb.SamplingParams(
                temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
            ),
        )
        await running.at_rest()
    return list(complete.output_ids), complete.cached_tokens


@pytest.fixture
async def stored(folder: Path, valkey: Valkey) -> list[int]:
    """Serve A, so that its pages are in Redis; return its answer."""
    ids, cached_tokens = await _ask(folder, valkey)
    assert cached_tokens == 0
    return ids


async def test_o17_other_weights(
    folder: Path, other_folder: Path, stored: list[int], valkey: Valkey, cold_valkey: Valkey
) -> None:
    """The same config and served name, and not one page in common."""
    cold = await _ask(other_folder, cold_valkey)
    assert cold == await _ask(other_folder, valkey)
    assert cold[1] == 0
    assert folder.name == other_folder.name
    assert stored != cold[0]


@pytest.mark.parametrize(
    "setup",
    [{"dtype": "float16"}, {"dtype": "bfloat16"}, {"page_size": 32}, {"cache_salt": "tenant"}],
    ids="-".join,
)
@pytest.mark.usefixtures("stored")
async def test_o17_another_set_up(
    folder: Path, valkey: Valkey, cold_valkey: Valkey, setup: dict[str, Any]
) -> None:
    """KV dtype, page size and salt are in the key: its own cold answer, and nothing found."""
    cold = await _ask(folder, cold_valkey, **setup)
    assert cold[1] == 0
    assert cold == await _ask(folder, valkey, **setup)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Write a server secret."""
    file = tmp_path / "secret"
    file.write_bytes(b"0123456789abcdef" + b"\n")
    return file


async def test_o17_a_server_secret(
    folder: Path, valkey: Valkey, stored: list[int], secret: Path, tmp_path: Path
) -> None:
    """Nobody without it finds pages, salted or not, nor is given its own; with it all are there.

    Also after a restart, whatever the file's name and line end are.
    """
    copy = tmp_path / "copy"
    copy.write_bytes(b"0123456789abcdef")
    other = tmp_path / "other"
    other.write_bytes(b"0123456789abcdeg")
    for salt in ("", "tenant"):
        for file, found in ((secret, 0), (secret, 112), (copy, 112), (other, 0)):
            told = await _ask(folder, valkey, cache_salt=salt, cache_secret_file=file)
            assert (stored, found) == told, (salt, file.name)
    assert (stored, 112) == await _ask(folder, valkey)
    assert (stored, 0) == await _ask(folder, valkey, cache_salt="tenant")
    assert (stored, 0) == await _ask(folder, valkey, cache_salt="another", cache_secret_file=secret)


@pytest.mark.parametrize(("has_secret", "num_lines"), [(True, 0), (False, 1)])
async def test_o17_salts_that_can_be_guessed_are_told_of(
    folder: Path, valkey: Valkey, secret: Path, *, has_secret: bool, num_lines: int
) -> None:
    """Who salts requests wants them apart; the log says once what that is worth."""
    stages = [load_stage(folder, layers=range(4), dtype="float32")]
    with capture_logs() as lines:
        async with cached_mesh(
            folder, stages, valkey.url, cache_secret_file=secret if has_secret else None
        ) as running:
            for salt in ("", "b", "c"):
                await running.generate(text="x", cache_salt=salt)
    found = [line for line in lines if "--cache-secret-file" in line["event"]]
    assert num_lines == len(found)


@pytest.mark.parametrize("borders", [(0, 1, 4), HALVES], ids=["another split", "a restart"])
async def test_o17_the_same_model(
    folder: Path, stored: list[int], valkey: Valkey, borders: Sequence[int]
) -> None:
    """Pages are keyed per layer, so another split finds them, and so does the same one later."""
    assert (stored, 112) == await _ask(folder, valkey, borders=borders)
