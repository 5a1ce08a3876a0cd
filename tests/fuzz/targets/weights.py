"""Files of weights: safetensors, their index, and GGUF."""

from __future__ import annotations

import json
import math
import random
import struct
from typing import Any

import torch
from rich.progress import Progress
from safetensors.torch import save

from chunkmesh.demo_model.convert import read_gguf
from chunkmesh.errors import ConfigError
from stage_worker.checkpoint import Checkpoint
from stage_worker.tensor_specs import TensorSpec
from stage_worker.weight_digest import WeightDigest
from tests.fuzz.json_mutation import mutated_json
from tests.fuzz.mutation import Draw, mutated
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.target import Target, refused
from tests.gguf_file import gguf_bytes

_FOLDER = scratch_folder()
_NAMES = ("model.embed_tokens.weight", "model.layers.0.input_layernorm.weight", "other")
_TENSORS = {name: torch.arange(6.0).reshape(2, 3) for name in _NAMES}
_WEIGHTS: bytes = save(_TENSORS)
_SPECS = tuple(TensorSpec(role="r", name=name, shape=(2, 3)) for name in _NAMES)
_INDEX = {"metadata": {"total_size": 72}, "weight_map": dict.fromkeys(_NAMES, "a.safetensors")}
_DTYPES = (
    *("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL", "U16", "U32", "U64"),
    *("F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "F6_E3M2", "C64", "NONE"),
)
_HUGE_NUMBER = "model.layers." + "9" * 5000 + ".input_layernorm.weight"


def _read_all(checkpoint: Checkpoint) -> bool:
    """Read as a stage does; a tensor that is read is float, of its shape, and can be digested."""
    found = 0
    for spec in _SPECS:
        try:
            checkpoint.stored_dtype(spec)
            tensor = checkpoint.read(spec)
        except ConfigError as error:
            refused(error)
            continue
        assert spec.shape == tuple(tensor.shape)
        assert tensor.numel() == math.prod(spec.shape)
        digest = WeightDigest()
        digest.add(spec.name, tensor)
        found += 1
    checkpoint.layers_from(1)
    checkpoint.check_accounted(frozenset(_NAMES), 0, 1)
    return found == len(_SPECS)


def _check_weights(data: bytes) -> bool:
    folder = _FOLDER / "single"
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(data)
    try:
        with Checkpoint(folder) as checkpoint:
            return _read_all(checkpoint)
    except ConfigError as error:
        return refused(error)


def _check_index(data: bytes) -> bool:
    folder = _FOLDER / "sharded"
    folder.mkdir(exist_ok=True)
    (folder / "a.safetensors").write_bytes(_WEIGHTS)
    (_FOLDER / "a.safetensors").write_bytes(_WEIGHTS)  # outside, and not to be read
    (folder / "model.safetensors.index.json").write_bytes(data)
    try:
        with Checkpoint(folder) as checkpoint:
            is_read = _read_all(checkpoint)
    except ConfigError as error:
        return refused(error)
    assert all("/" not in str(file) for file in json.loads(data)["weight_map"].values())
    return is_read


def _check_gguf(data: bytes) -> bool:
    path = _FOLDER / "model.gguf"
    path.write_bytes(data)
    try:
        _, tensors = read_gguf(path, Progress(disable=True))
    except ConfigError as error:
        return refused(error)
    assert all(tensor.nbytes <= 8 * len(data) for tensor in tensors.values())
    return True


def _mutated_weights() -> Draw:
    """Return what changes the JSON of the header as often as bytes, and keeps the rest in place."""
    (size,) = struct.unpack_from("<Q", _WEIGHTS)
    header: dict[str, Any] = json.loads(_WEIGHTS[8 : 8 + size])
    by_bytes = mutated(_WEIGHTS)
    by_value = mutated_json(header, values=(*_DTYPES, [2, 3], [0, 24], [6], [24, 0], [2**62, 4]))

    def draw(random_: random.Random) -> bytes:
        if random_.random() < 0.3:
            return by_bytes(random_)
        text = by_value(random_)
        if random_.random() < 0.1:
            text = text.replace(b"other", _HUGE_NUMBER.encode())
        return struct.pack("<Q", len(text)) + text + _WEIGHTS[8 + size :]

    return draw


_GGUF = gguf_bytes()

TARGETS = (
    Target(
        name="safetensors",
        seeds=(_WEIGHTS,),
        check=_check_weights,
        values=_mutated_weights(),
        examples=1000,
    ),
    Target(
        name="safetensors index",
        seeds=(json.dumps(_INDEX).encode(),),
        check=_check_index,
        values=mutated_json(
            _INDEX, values=("../a.safetensors", ".", "a\0", "b.safetensors", "x" * 300, "/")
        ),
        examples=1000,
    ),
    Target(name="GGUF", seeds=(_GGUF,), check=_check_gguf, values=mutated(_GGUF), examples=300),
)
