"""Every tensor of a stage is found, checked and digested, or loading fails by name."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Callable

import pytest
import safetensors.torch
import torch

from chunkmesh.errors import ConfigError
from stage_worker.model_stage import load_stage
from tests.pipeline_of_stages import load_pipeline
from tests.reference import Reference
from tests.tiny_models import edit_config

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copied(tmp_path: pathlib.Path, tiny_llama: pathlib.Path) -> pathlib.Path:
    """A private copy of tiny_llama."""
    return pathlib.Path(shutil.copytree(tiny_llama, tmp_path / "model"))


@pytest.fixture
def sharded(tmp_path: pathlib.Path, tied_llama: pathlib.Path) -> pathlib.Path:
    """A private copy of tied_llama."""
    return pathlib.Path(shutil.copytree(tied_llama, tmp_path / "model"))


def _rewrite(file: pathlib.Path, change: Callable[[Tensors], object]) -> None:
    tensors = safetensors.torch.load(file.read_bytes())
    change(tensors)
    safetensors.torch.save_file(tensors, file)


def test_tied_and_sharded(tied_llama: pathlib.Path, prompt: list[int]) -> None:
    """The last stage takes its head from the embedding (O24 a)."""
    expected = Reference(tied_llama).generate(prompt, 12)
    assert expected == load_pipeline(tied_llama, (0, 4)).generate(prompt, 12)
    assert expected == load_pipeline(tied_llama, (0, 2, 4)).generate(prompt, 12)


def test_missing_shard(sharded: pathlib.Path) -> None:
    """A shard that is in the index but not on disk stops the worker (O24 b)."""
    shard = sorted(sharded.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(ConfigError, match=shard.name):
        load_stage(sharded, layers=range(4))


def test_shards_of_other_layers_need_not_be_there(sharded: pathlib.Path) -> None:
    """A machine may hold only the files of its own layers, and only they are opened."""
    file_of = json.loads((sharded / INDEX).read_text())["weight_map"]
    needed = {file for name, file in file_of.items() if name.startswith("model.layers.1.")}
    others = set(file_of.values()) - needed
    assert others
    for file in others:
        (sharded / file).unlink()
    assert load_stage(sharded, layers=range(1, 2)).description.first_layer == 1


def test_tensor_missing_in_its_shard(sharded: pathlib.Path) -> None:
    """In the index, but not in the file (O24 c)."""
    name = "model.layers.2.mlp.up_proj.weight"
    file = json.loads((sharded / INDEX).read_text())["weight_map"][name]
    _rewrite(sharded / file, lambda tensors: tensors.pop(name))
    with pytest.raises(ConfigError, match=name):
        load_stage(sharded, layers=range(2, 3))


def test_tensor_missing_in_the_index(sharded: pathlib.Path) -> None:
    """Not even the index knows it."""
    name = "model.layers.2.mlp.up_proj.weight"
    index = json.loads((sharded / INDEX).read_text())
    del index["weight_map"][name]
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(ConfigError, match=name):
        load_stage(sharded, layers=range(2, 3))


def test_untied_head_missing(copied: pathlib.Path) -> None:
    """Without a head there are no tokens; only the last stage cares."""
    _rewrite(copied / SINGLE, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(ConfigError, match=r"lm_head\.weight"):
        load_stage(copied, layers=range(2, 4))
    load_stage(copied, layers=range(2))


def test_wrong_shape(copied: pathlib.Path) -> None:
    """A weight of another model is named with both shapes."""
    name = "model.layers.0.self_attn.k_proj.weight"
    _rewrite(copied / SINGLE, lambda tensors: tensors.update({name: torch.zeros(16, 64)}))
    with pytest.raises(ConfigError, match=r"k_proj.*\(16, 64\).*\(32, 64\)"):
        load_stage(copied, layers=range(1))


def test_wrong_element_type(copied: pathlib.Path) -> None:
    """Packed integers are not weights that this code can use."""
    name = "model.layers.0.mlp.down_proj.weight"
    zeros = torch.zeros(64, 160, dtype=torch.int32)
    _rewrite(copied / SINGLE, lambda tensors: tensors.update({name: zeros}))
    with pytest.raises(ConfigError, match=r"down_proj.*int32"):
        load_stage(copied, layers=range(1))


def test_unknown_tensor_of_an_own_layer(copied: pathlib.Path) -> None:
    """A bias that nobody adds would change the answer in silence."""
    name = "model.layers.3.self_attn.q_proj.bias"
    _rewrite(copied / SINGLE, lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(ConfigError, match=r"q_proj\.bias"):
        load_stage(copied, layers=range(2, 4))
    load_stage(copied, layers=range(2))


@pytest.mark.parametrize("name", ["lm_head.bias", "model.norm.bias", "model.embed_norm.weight"])
def test_unknown_tensor_outside_the_layers(copied: pathlib.Path, name: str) -> None:
    """What a model adds before its first layer or behind its last one counts as well."""
    _rewrite(copied / SINGLE, lambda tensors: tensors.update({name: torch.ones(64)}))
    for layers in (range(1), range(1, 2), range(3, 4)):
        with pytest.raises(ConfigError, match=rf"{name} .*not part"):
            load_stage(copied, layers=layers)


@pytest.mark.parametrize("cuts", [(0, 4), (0, 2, 4)])
def test_a_head_of_its_own_goes_before_the_tie(
    copied: pathlib.Path, prompt: list[int], cuts: tuple[int, ...]
) -> None:
    """A head was trained apart, and config.json still calls it tied; transformers uses the head."""
    edit_config(copied, tie_word_embeddings=True)
    expected = Reference(copied).generate(prompt, 12)
    assert expected == load_pipeline(copied, cuts).generate(prompt, 12)


def test_derived_tensors_are_ignored(copied: pathlib.Path) -> None:
    """Old files hold rope frequencies, which follow from the config."""
    names = ("model.layers.0.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")
    _rewrite(
        copied / SINGLE,
        lambda tensors: tensors.update({name: torch.zeros(8) for name in names}),
    )
    load_stage(copied, layers=range(1))


def test_tensor_in_two_files(sharded: pathlib.Path) -> None:
    """Which of two would be right cannot be known."""
    file_of = json.loads((sharded / INDEX).read_text())["weight_map"]
    name = "model.layers.1.mlp.up_proj.weight"
    other = next(file for file in file_of.values() if file != file_of[name])
    _rewrite(sharded / other, lambda tensors: tensors.update({name: torch.zeros(160, 64)}))
    with pytest.raises(ConfigError, match=rf"{name}.*as well as"):
        load_stage(sharded, layers=range(4))


def test_norm_in_two_files(sharded: pathlib.Path) -> None:
    """The same holds of a tensor that belongs to no layer."""
    file_of = json.loads((sharded / INDEX).read_text())["weight_map"]
    name = "model.norm.weight"
    other = next(file for file in file_of.values() if file != file_of[name])
    _rewrite(sharded / other, lambda tensors: tensors.update({name: torch.zeros(64)}))
    with pytest.raises(ConfigError, match=rf"{name}.*as well as"):
        load_stage(sharded, layers=range(4))


def test_no_weights(copied: pathlib.Path) -> None:
    """The folder and the names looked for stand in the error."""
    (copied / SINGLE).unlink()
    with pytest.raises(ConfigError, match=SINGLE):
        load_stage(copied, layers=range(4))


def test_damaged_files(copied: pathlib.Path) -> None:
    """Neither a truncated file nor a broken index is a crash."""
    (copied / SINGLE).write_bytes(b"\x10" + bytes(7) + b"{")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_stage(copied, layers=range(4))
    (copied / INDEX).write_text("{}")
    with pytest.raises(ConfigError, match="not an index"):
        load_stage(copied, layers=range(4))
    (copied / INDEX).write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    with pytest.raises(ConfigError, match="outside"):
        load_stage(copied, layers=range(4))


def test_digests_do_not_depend_on_the_split(tiny_llama: pathlib.Path) -> None:
    """A spare with another range must agree layer by layer."""
    whole = load_stage(tiny_llama, layers=range(4)).description
    last = load_stage(tiny_llama, layers=range(2, 4)).description
    assert whole.layer_digests[2:] == last.layer_digests
    assert whole.head_digest == last.head_digest
    assert len(set(whole.layer_digests)) == 4


def test_digests_see_a_changed_weight(tiny_llama: pathlib.Path, copied: pathlib.Path) -> None:
    """One changed number makes another layer, and no other layer different."""

    def change(tensors: Tensors) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 5] += 1

    _rewrite(copied / SINGLE, change)
    before = load_stage(tiny_llama, layers=range(4)).description
    after = load_stage(copied, layers=range(4)).description
    equal = [a == b for a, b in zip(before.layer_digests, after.layer_digests, strict=True)]
    assert equal == [True, False, True, True]
    assert before.embedding_digest == after.embedding_digest


def test_progress(tiny_llama: pathlib.Path) -> None:
    """Readiness shows how far loading is; it ends at all of all."""
    seen: list[tuple[int, int]] = []
    load_stage(tiny_llama, layers=range(4), progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (6, 6)
    assert seen == sorted(seen)
