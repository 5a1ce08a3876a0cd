"""A folder of safetensors files, read tensor by tensor and memory-mapped.

Knows names, shapes and files, not what tensors mean. Only files that hold an asked-for tensor are
opened, so a worker's machine needs no other shards.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any, Self

import safetensors
import torch

from chunkmesh.errors import ConfigError
from chunkmesh.json_text import parse_json
from stage_worker.tensor_specs import TensorSpec, is_unknown, layer_of

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_STORED_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Checkpoint:
    """Open files of one model folder; a context manager that closes them."""

    def __init__(self, model_path: pathlib.Path) -> None:
        """Find out which file holds which tensor.

        Raises:
            ConfigError: no weights here, or an index that cannot be read.
        """
        self._path = model_path
        self._exit = contextlib.ExitStack()
        self._files: dict[str, Any] = {}
        self._names: dict[str, frozenset[str]] = {}
        if (model_path / _INDEX).exists():
            self._file_of = _read_index(model_path / _INDEX)
        elif (model_path / _SINGLE).exists():
            self._file_of = dict.fromkeys(self._open(_SINGLE)[1], _SINGLE)
        else:
            raise ConfigError(f"no weights in {model_path}: neither {_SINGLE} nor {_INDEX} exists")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.clear()
        self._exit.close()

    def read(self, spec: TensorSpec) -> torch.Tensor:
        """Return a tensor backed by its file, valid until the checkpoint is closed; only read it.

        Raises:
            ConfigError: its file or the tensor is missing, or its shape is not the expected one.
        """
        file_name = self._file_of.get(spec.name)
        if file_name is None:
            raise ConfigError(f"tensor {spec.name} is missing in {self._path}")
        file, names = self._open(file_name)
        if spec.name not in names:
            raise ConfigError(f"tensor {spec.name} is missing in {self._path / file_name}")
        tensor: torch.Tensor = file.get_tensor(spec.name)
        if tuple(tensor.shape) != spec.shape:
            raise ConfigError(
                f"tensor {spec.name} has shape {tuple(tensor.shape)}; "
                f"config.json asks for {spec.shape}"
            )
        if not tensor.is_floating_point():
            raise ConfigError(f"tensor {spec.name} has element type {tensor.dtype}, not a float")
        return tensor

    def stored_dtype(self, spec: TensorSpec) -> torch.dtype | None:
        """Return the type of a tensor; None if it is missing or of no type to compute in.

        Raises:
            ConfigError: its file is missing.
        """
        file_name = self._file_of.get(spec.name)
        if file_name is None:
            return None
        file, names = self._open(file_name)
        if spec.name not in names:
            return None
        return _STORED_DTYPES.get(file.get_slice(spec.name).get_dtype())

    def holds(self, spec: TensorSpec) -> bool:
        """Say whether the index, or the only file, names a tensor."""
        return spec.name in self._file_of

    def check_accounted(self, expected: frozenset[str], first_layer: int, last_layer: int) -> None:
        """Refuse tensors of layers [first, last) or of none that nobody reads, or held twice.

        Looks into the files opened so far and into the index.

        Raises:
            ConfigError: naming such a tensor.
        """
        for name, file_name in self._all_names():
            layer = layer_of(name)
            is_own = layer is not None and first_layer <= layer < last_layer
            if not (is_own or name in expected or is_unknown(name)):
                continue
            if name not in expected:
                raise ConfigError(f"tensor {name} in {file_name} is not part of this architecture")
            if self._file_of.get(name) != file_name:
                raise ConfigError(
                    f"tensor {name} is in {file_name} as well as in {self._file_of.get(name)}"
                )

    def layers_from(self, first_layer: int) -> tuple[int, ...]:
        """Return the layers >= first_layer that the files and the index seen so far name."""
        layers = {layer_of(name) for name, _ in self._all_names()}
        return tuple(sorted(n for n in layers if n is not None and n >= first_layer))

    def _all_names(self) -> Iterator[tuple[str, str]]:
        yield from self._file_of.items()
        for file_name, names in self._names.items():
            yield from ((name, file_name) for name in names)

    def _open(self, file_name: str) -> tuple[Any, frozenset[str]]:
        if file_name not in self._files:
            path = self._path / file_name
            try:
                file = self._exit.enter_context(safetensors.safe_open(path, framework="pt"))
            except FileNotFoundError as error:
                raise ConfigError(f"weights file {path} is missing") from error
            except (OSError, safetensors.SafetensorError) as error:
                raise ConfigError(f"weights file {path} cannot be read: {error}") from error
            self._files[file_name] = file
            self._names[file_name] = frozenset(file.keys())
        return self._files[file_name], self._names[file_name]


def _read_index(path: pathlib.Path) -> dict[str, str]:
    try:
        weight_map = parse_json(path.read_text(encoding="utf-8"))["weight_map"]
        files = {str(name): str(file_name) for name, file_name in weight_map.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} is not an index of safetensors files: {error!r}") from error
    for file_name in files.values():
        if pathlib.PurePath(file_name).name != file_name:
            raise ConfigError(f"{path} names a file outside its folder: {file_name!r}")
    return files
