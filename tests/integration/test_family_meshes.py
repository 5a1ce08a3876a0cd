"""Meshes of every family: scheduler, two stages and the prefix cache give transformers' ids."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from scheduler.model_files import read_model_files
from stage_worker.model_stage import load_stage
from stage_worker.paged.load import load_paged_stage
from stage_worker.stage import Stage
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.reference import Reference
from tests.tiny_models import FAMILIES, make_tiny, make_tiny_llama
from tests.valkey import Valkey

NEW_TOKENS = 8


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Write a tiny model of each family, with the BYTES tokenizer."""
    write_bytes_folder(tmp_path)
    make_tiny(tmp_path, request.param)
    return tmp_path


async def _ask(running: Mesh, prompt: list[int]) -> pb.GenerateComplete:
    return await running.generate(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
    )


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    """Write a tiny Llama without a head of its own, in three shards."""
    write_bytes_folder(tmp_path)
    make_tiny_llama(tmp_path, tie_word_embeddings=True, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) == 3
    return tmp_path


async def test_o24_tied_embeddings_in_shards_are_served_by_one_stage_and_by_two(tied: Path) -> None:
    """The last of two stages needs the embedding of the first."""
    prompt = make_prompt(40, seed=8)
    expected = Reference(tied).generate(prompt, NEW_TOKENS)
    for parts in ((range(4),), (range(2), range(2, 4))):
        stages = [load_stage(tied, layers=part) for part in parts]
        async with mesh(tied, stages) as running:
            assert expected == list((await _ask(running, prompt)).output_ids)


async def test_a_hit_equals_what_was_computed(folder: Path, valkey: Valkey) -> None:
    """Whatever a family caches travels through HiCache and gives the same ids."""
    prompt = make_prompt(100, seed=5)
    expected = Reference(folder).generate(prompt, NEW_TOKENS)
    stages = [load_stage(folder, layers=range(1)), load_stage(folder, layers=range(1, 4))]
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with (
        hicache_running(settings, ping_s=0.05) as address,
        mesh(folder, stages, redis_url=valkey.url, hicache_url=address) as running,
    ):
        first = await _ask(running, prompt)
        await running.at_rest()
        second = await _ask(running, prompt)
    assert (expected, 0) == (list(first.output_ids), first.cached_tokens)
    assert (expected, 96) == (list(second.output_ids), second.cached_tokens)


async def test_stages_of_both_kinds_make_one_mesh(folder: Path, valkey: Valkey) -> None:
    """Paged operations and the CPU's give the same activations, pages and ids, in any order."""
    prompt = make_prompt(100, seed=6)
    expected = Reference(folder).generate(prompt, NEW_TOKENS)
    stages: list[Stage] = [
        load_paged_stage(folder, layers=range(1), device=torch.device("cpu")),
        load_stage(folder, layers=range(1, 3)),
        load_paged_stage(folder, layers=range(3, 4), device=torch.device("cpu")),
    ]
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with (
        hicache_running(settings, ping_s=0.05) as address,
        mesh(folder, stages, redis_url=valkey.url, hicache_url=address) as running,
    ):
        first = await _ask(running, prompt)
        await running.at_rest()
        second = await _ask(running, prompt)
        info = await running.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (expected, 0) == (list(first.output_ids), first.cached_tokens)
    assert (expected, 96) == (list(second.output_ids), second.cached_tokens)
    names = [next(each.name for each in worker.backends) for worker in info.workers]
    assert names == ["torch", "torch on the CPU", "torch"]


def test_the_scheduler_reads_every_family(folder: Path) -> None:
    """It needs layers, context and rope settings, wherever a family's file has them."""
    files = read_model_files(folder)
    assert (files.num_layers, files.vocab_size, files.context_length) == (4, 264, 4096)
    assert files.architecture.removesuffix("ForCausalLM") in FAMILIES
    assert "10000.0" in files.rope
