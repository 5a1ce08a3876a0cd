"""A pipeline of stages answers what transformers answers, however work is cut."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
import torch

from chunkmesh.errors import ConfigError, InvariantViolated
from stage_worker.model_stage import ModelStage, load_stage
from stage_worker.orders import Entry, Microbatch
from tests.pipeline_of_stages import Work, decode_work, load_pipeline, sampling_row
from tests.random_ids import make_prompt
from tests.reference import Reference

WHOLE = (0, 4)


@pytest.mark.parametrize("borders", [(0, 4), (0, 2, 4), (0, 1, 3, 4), (0, 1, 2, 3, 4)])
def test_split_equals_whole(
    tiny_llama: pathlib.Path, reference: Reference, prompt: list[int], borders: tuple[int, ...]
) -> None:
    """Where the layers are cut must not show in the answer."""
    pipeline = load_pipeline(tiny_llama, borders)
    assert reference.generate(prompt, 20) == pipeline.generate(prompt, 20)


@pytest.mark.parametrize("page_tokens", [16, 64])
@pytest.mark.parametrize("chunk_tokens", [1, 15, 16, 17, 63, 64, 65])
def test_chunked_equals_unchunked(
    tiny_llama: pathlib.Path,
    reference: Reference,
    prompt: list[int],
    page_tokens: int,
    chunk_tokens: int,
) -> None:
    """Chunks may end anywhere, one before, at and one behind a page border."""
    pipeline = load_pipeline(tiny_llama, (0, 2, 4), page_tokens=page_tokens)
    answer = pipeline.generate(prompt, 8, chunk_tokens=chunk_tokens)
    assert reference.generate(prompt, 8) == answer


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 31, 32, 33])
def test_prompt_lengths_around_page_borders(
    tiny_llama: pathlib.Path, reference: Reference, num_tokens: int
) -> None:
    """The first decode step may be the one that needs a new page (O15)."""
    prompt = make_prompt(num_tokens, seed=num_tokens)
    pipeline = load_pipeline(tiny_llama, WHOLE)
    assert reference.generate(prompt, 8) == pipeline.generate(prompt, 8)


@pytest.mark.parametrize("chunk_tokens", [100, 300, 4096])
def test_long_prompt(tiny_llama: pathlib.Path, reference: Reference, chunk_tokens: int) -> None:
    """Rounding must not add up over thousands of cached positions."""
    prompt = make_prompt(2100, seed=3)
    pipeline = load_pipeline(tiny_llama, (0, 2, 4), num_pages=40, page_tokens=64)
    answer = pipeline.generate(prompt, 12, chunk_tokens=chunk_tokens)
    assert reference.generate(prompt, 12) == answer


@pytest.mark.parametrize("step", [3, -1])
def test_scattered_pages(
    tiny_llama: pathlib.Path, reference: Reference, prompt: list[int], step: int
) -> None:
    """Pages in any order are read right: few runs in place, many runs gathered."""
    pipeline = load_pipeline(tiny_llama, (0, 2, 4))
    short, long = prompt[:20], prompt * 3
    scattered = list(range(64))[::step] + list(range(1, 64, 3))
    assert reference.generate(short, 8) == pipeline.generate(short, 8, page_ids=scattered)
    answer = pipeline.generate(long, 8, chunk_tokens=48, page_ids=scattered)
    assert reference.generate(long, 8) == answer


def test_mixed_microbatch(tiny_llama: pathlib.Path, reference: Reference) -> None:
    """Chunks and decode rows of different requests in one microbatch do not touch each other."""
    prompts = [make_prompt(length, seed=length) for length in (5, 33, 70)]
    expected = [reference.generate(prompt, 3) for prompt in prompts]
    pipeline = load_pipeline(tiny_llama, (0, 2, 4))
    a, b, c = prompts
    [a0] = pipeline.run(_chunk(0, a, 0, 5, pages=(9,)))
    [a1, b0] = pipeline.run(
        decode_work(0, 5, a0),
        _chunk(1, b, 0, 33, pages=(3, 1, 2)),
        dataclasses.replace(_chunk(2, c, 0, 40, pages=(20, 21, 22, 24, 25)), sampling=None),
    )
    [b1, c0, a2] = pipeline.run(
        decode_work(1, 33, b0), _chunk(2, c, 40, 70, pages=()), decode_work(0, 6, a1)
    )
    [c1, b2] = pipeline.run(decode_work(2, 70, c0), decode_work(1, 34, b1))
    [c2] = pipeline.run(decode_work(2, 71, c1))
    assert expected == [[a0, a1, a2], [b0, b1, b2], [c0, c1, c2]]


def test_copied_prefix(tiny_llama: pathlib.Path, reference: Reference, prompt: list[int]) -> None:
    """A prefix that travels as page bytes into other pools gives the same answer."""
    source = load_pipeline(tiny_llama, (0, 2, 4))
    target = load_pipeline(tiny_llama, (0, 4))
    source.generate(prompt, 1)
    page_ids = list(range(30, 50))
    for stage in source.stages:
        for layer in range(stage.description.first_layer, stage.description.last_layer):
            for index, page_id in enumerate(page_ids[:4]):
                data = stage.read_page(layer, index)
                assert stage.page_layer_bytes() == data.nbytes
                target.stages[0].write_page(layer, page_id, data)
    answer = target.generate(prompt, 8, first_position=64, page_ids=page_ids)
    assert reference.generate(prompt, 8) == answer


def test_page_bytes_are_keys_then_values(tiny_llama: pathlib.Path) -> None:
    """Stored pages outlive a process: K, then V, each [page_tokens, kv heads, head_dim]."""
    stage = load_stage(tiny_llama, layers=range(4))
    stage.allocate(num_pages=3, page_tokens=16)
    values = np.arange(2 * 16 * 2 * 16, dtype=np.float32)
    stage.write_page(3, 1, values.view(np.uint8))
    pool = stage._owned_pool()._pool_LPHSD
    k, v = values.reshape(2, 16, 2, 16)
    assert np.array_equal(k[5, 1], pool[3, 0, 1, 16 + 5].numpy())
    assert np.array_equal(v[5, 1], pool[3, 1, 1, 16 + 5].numpy())
    assert np.array_equal(values.view(np.uint8), stage.read_page(3, 1))


def test_row_is_reused_after_release(
    tiny_llama: pathlib.Path, reference: Reference, prompt: list[int]
) -> None:
    """A new request in an old row must not see the old one's pages."""
    pipeline = load_pipeline(tiny_llama, (0, 2, 4))
    pipeline.generate(make_prompt(50, seed=9), 4)
    answer = pipeline.generate(prompt, 8, page_ids=range(20, 40))
    assert reference.generate(prompt, 8) == answer


def test_allocate_keeps_pages_and_drops_rows(
    tiny_llama: pathlib.Path, reference: Reference, prompt: list[int]
) -> None:
    """A new epoch begins with empty rows, but cached pages stay valid."""
    pipeline = load_pipeline(tiny_llama, WHOLE)
    pipeline.run(dataclasses.replace(_chunk(0, prompt, 0, 64, pages=(0, 1, 2, 3)), sampling=None))
    pipeline.stages[0].allocate(num_pages=64, page_tokens=16)
    assert reference.generate(prompt, 4) == pipeline.generate(prompt, 4, first_position=64)


def test_several_samples_of_one_entry(tiny_llama: pathlib.Path, prompt: list[int]) -> None:
    """Rows that share logits but not seeds draw different tokens, each always the same one."""
    stage = load_stage(tiny_llama, layers=range(4))
    stage.allocate(num_pages=8, page_tokens=16)
    rows = tuple(sampling_row(seed=seed, temperature=5.0) for seed in (1, 2, 3, 1))
    microbatch = Microbatch(
        epoch=1,
        seq_no=0,
        entries=(Entry(row=0, start=0, num_tokens=70, new_page_ids=(0, 1, 2, 3, 4)),),
        token_ids=np.array(prompt, dtype=np.uint32),
        sampling=rows,
    )
    sampled = stage.forward(microbatch, None, None).sampled_ids
    assert sampled[0] == sampled[3]
    assert len(set(sampled)) > 1


def test_activation_is_only_read(tiny_llama: pathlib.Path, prompt: list[int]) -> None:
    """The inbound slot belongs to the link and may be sent again."""
    stage = load_stage(tiny_llama, layers=range(1, 3))
    stage.allocate(num_pages=8, page_tokens=16)
    hidden_in = torch.randn(70, 64)
    before = hidden_in.clone()
    hidden_out = torch.empty(70, 64)
    entry = Entry(row=0, start=0, num_tokens=70, new_page_ids=(0, 1, 2, 3, 4))
    microbatch = Microbatch(epoch=1, seq_no=0, entries=(entry,), token_ids=None, sampling=())
    assert stage.forward(microbatch, hidden_in, hidden_out).sampled_ids == ()
    assert torch.equal(before, hidden_in)
    assert not torch.equal(before, hidden_out)


@pytest.mark.parametrize("layers", [range(2, 5), range(4, 5), range(3, 3), range(-1, 2)])
def test_layers_outside_the_model_are_refused(tiny_llama: pathlib.Path, layers: range) -> None:
    """The operator learns which layers exist."""
    with pytest.raises(ConfigError, match=r"4 layers, 0-3"):
        load_stage(tiny_llama, layers=layers)


def test_description(tiny_llama: pathlib.Path) -> None:
    """Hello says what the stage holds."""
    first = load_stage(tiny_llama, layers=range(3)).description
    last = load_stage(tiny_llama, layers=range(3, 4)).description
    assert (first.is_first, first.is_last) == (True, False)
    assert (last.is_first, last.is_last) == (False, True)
    assert first.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert (len(first.layer_digests), len(last.layer_digests)) == (3, 1)
    assert (first.head_digest, last.embedding_digest) == (b"", b"")
    assert first.config_digest == last.config_digest


@pytest.mark.parametrize(
    ("token", "pages", "text"),
    [(264, (0,), "token id 264"), (1, (8,), "page 8"), (1, (), "position 0")],
)
def test_orders_that_do_not_fit_are_bugs(
    tiny_llama: pathlib.Path, token: int, pages: tuple[int, ...], text: str
) -> None:
    """Memory behind the embedding or the pool is never read."""
    pipeline = load_pipeline(tiny_llama, WHOLE, num_pages=8)
    work = Work(row=0, start=0, token_ids=(token,), new_page_ids=pages, sampling=None)
    with pytest.raises(InvariantViolated, match=text):
        pipeline.run(work)


def test_forward_before_allocate_is_a_bug(tiny_llama: pathlib.Path) -> None:
    """Pages exist only after a Join."""
    stage: ModelStage = load_stage(tiny_llama, layers=range(4))
    with pytest.raises(InvariantViolated, match="not allocated"):
        stage.page_layer_bytes()


def _chunk(row: int, prompt: list[int], start: int, end: int, pages: tuple[int, ...]) -> Work:
    return Work(
        row=row,
        start=start,
        token_ids=tuple(prompt[start:end]),
        new_page_ids=pages,
        sampling=sampling_row(),
    )
