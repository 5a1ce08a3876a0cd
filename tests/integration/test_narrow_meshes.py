"""Meshes in two-byte types: scheduler, two stages, real links and the prefix cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from stage_worker.element_type import DtypeChoice
from stage_worker.model_stage import ModelStage, load_stage
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import CHUNK_TOKENS, Mesh, mesh
from tests.narrow_models import make_narrow
from tests.pipeline_of_stages import load_pipeline
from tests.random_ids import make_prompt
from tests.valkey import Valkey

NEW_TOKENS = 8
PROMPT = make_prompt(150, seed=5)


async def _ask(running: Mesh) -> tuple[list[int], int]:
    """Return the answer's ids and how many tokens came from the cache."""
    complete = await running.generate(
        input_ids=pb.TokenIds(ids=PROMPT),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
        ),
    )
    await running.at_rest()
    return list(complete.output_ids), complete.cached_tokens


def _stages(folder: Path, dtype: DtypeChoice) -> list[ModelStage]:
    return [load_stage(folder, layers=part, dtype=dtype) for part in (range(1), range(1, 4))]


@pytest.mark.parametrize(
    ("family", "dtype", "transport"),
    [("DeepseekV3", "bfloat16", "ucx"), ("Llama", "float16", "grpc")],
)
async def test_a_hit_equals_what_was_computed(
    tmp_path: Path, valkey: Valkey, family: str, dtype: str, transport: str
) -> None:
    """Narrow activations cross links and narrow pages the cache, byte for byte."""
    write_bytes_folder(tmp_path)
    make_narrow(tmp_path, family, dtype)
    alone = load_pipeline(tmp_path, (0, 4))
    expected = alone.generate(PROMPT, NEW_TOKENS, chunk_tokens=CHUNK_TOKENS)
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    stages = _stages(tmp_path, "auto")
    async with (
        hicache_running(settings, ping_s=0.05) as address,
        mesh(
            tmp_path, stages, redis_url=valkey.url, hicache_url=address, transport=transport
        ) as running,
    ):
        assert (expected, 0) == await _ask(running)
        assert (expected, 144) == await _ask(running)


async def test_types_never_share_pages(tmp_path: Path, valkey: Valkey) -> None:
    """One model in three types on one store: what another type computed is not found (O17)."""
    write_bytes_folder(tmp_path)
    make_narrow(tmp_path, "Llama", "bfloat16", initializer_range=0.21)
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    choices: tuple[DtypeChoice, ...] = ("bfloat16", "float16", "float32", "auto")
    cached = {}
    async with hicache_running(settings, ping_s=0.05) as address:
        for dtype in choices:
            stages = _stages(tmp_path, dtype)
            async with mesh(tmp_path, stages, redis_url=valkey.url, hicache_url=address) as running:
                _, cached[dtype] = await _ask(running)
    assert cached == {"bfloat16": 0, "float16": 0, "float32": 0, "auto": 144}
