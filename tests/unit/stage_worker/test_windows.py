"""Sliding windows: which layers have one, and what a query sees through it."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from chunkmesh.errors import ConfigError
from stage_worker.batch import Context
from stage_worker.model_config import parse_model_config
from stage_worker.page_table import SlotRun
from tests.exactness import Expected, check_model
from tests.pipeline_of_stages import load_pipeline
from tests.random_ids import make_prompt
from tests.tiny_models import make_tiny

RAW: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "sliding_window": 8,
}
MISTRAL = {"architectures": ["MistralForCausalLM"]}
KINDS = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"use_sliding_window": False, "max_window_layers": 4}, (None,) * 4),
        ({"use_sliding_window": True, "max_window_layers": 4}, (None,) * 4),
        ({"use_sliding_window": True, "max_window_layers": 3}, (None, None, None, 8)),
        ({"use_sliding_window": True, "max_window_layers": 0}, (8,) * 4),
        ({"use_sliding_window": True, "layer_types": KINDS}, (None, 8, 8, None)),
        ({"use_sliding_window": True, "sliding_window": None}, (None,) * 4),
        (MISTRAL, (8,) * 4),
        (MISTRAL | {"sliding_window": None}, (None,) * 4),
        ({"architectures": ["LlamaForCausalLM"]}, (None,) * 4),
    ],
)
def test_layers_with_a_window(fields: dict[str, Any], expected: tuple[int | None, ...]) -> None:
    """The file decides, by the family's rule (O25)."""
    assert expected == parse_model_config(RAW | {"num_key_value_heads": 4} | fields).windows


def test_absent_window_of_mistral() -> None:
    """Its first release relies on the default."""
    raw = {key: value for key, value in RAW.items() if key != "sliding_window"}
    config = parse_model_config(raw | MISTRAL | {"num_key_value_heads": 4})
    assert config.windows == (4096,) * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"layer_types": KINDS},
        {"use_sliding_window": True, "layer_types": KINDS[:2]},
        {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 4},
        {"use_sliding_window": True, "layer_types": [["full_attention"]] * 4},
        {"use_sliding_window": True, "layer_types": 4},
    ],
)
def test_contradictory_layer_types(fields: dict[str, Any]) -> None:
    """A window that nobody sized, or a kind that is not computed."""
    with pytest.raises(ConfigError, match="layer_types"):
        parse_model_config(RAW | fields)


@pytest.mark.parametrize("window", [2, 3, 15, 16, 17, 70, 71, 200])
@pytest.mark.parametrize("chunk_tokens", [7, 16, 33, 1000])
def test_window_over_chunks(tmp_path: pathlib.Path, window: int, chunk_tokens: int) -> None:
    """The window spans prefix and chunk, shorter and longer than either."""
    make_tiny(tmp_path, "Mistral", sliding_window=window)
    expected = Expected(tmp_path, make_prompt(70, seed=1), 6)
    expected.check(load_pipeline(tmp_path, (0, 2, 4)), chunk_tokens=chunk_tokens)


def test_window_over_tiles(tmp_path: pathlib.Path) -> None:
    """A chunk larger than a tile, with a window smaller and larger than one."""
    for window in (40, 300):
        make_tiny(tmp_path, "Mistral", sliding_window=window)
        expected = Expected(tmp_path, make_prompt(700, seed=1), 6)
        expected.check(load_pipeline(tmp_path, (0, 4)), chunk_tokens=400)


def test_some_layers_with_a_window(tmp_path: pathlib.Path, prompt: list[int]) -> None:
    """Layers of one stage may look back differently."""
    make_tiny(tmp_path, "Qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=2)
    check_model(tmp_path, prompt, 20)


def test_window_off(tmp_path: pathlib.Path, prompt: list[int]) -> None:
    """A window in the file that is not used (O25)."""
    make_tiny(tmp_path, "Qwen2", use_sliding_window=False, sliding_window=8, max_window_layers=4)
    check_model(tmp_path, prompt, 40)


def test_tail_of_runs() -> None:
    """Leading runs are dropped, one is cut."""
    runs = (SlotRun(begin=0, end=4), SlotRun(begin=20, end=28))
    context = Context(num_tokens=12, runs=runs, page_ids=())
    assert context.tail(12, 4) is context
    assert context.tail(9, 4).runs == (SlotRun(begin=3, end=4), SlotRun(begin=20, end=28))
    assert context.tail(8, 4).runs == (SlotRun(begin=20, end=28),)
    assert context.tail(1, 4).runs == (SlotRun(begin=27, end=28),)


def test_tail_of_pages() -> None:
    """Leading pages are dropped, and tokens of the first one skipped."""
    context = Context(num_tokens=11, runs=(), page_ids=(5, 2, 9))
    tail = context.tail(6, 4)
    assert (tail.num_tokens, tail.page_ids, tail.skipped_tokens) == (6, (2, 9), 1)
    again = tail.tail(3, 4)
    assert (again.num_tokens, again.page_ids, again.skipped_tokens) == (3, (9,), 0)
