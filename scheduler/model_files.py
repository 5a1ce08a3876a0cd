"""Reads the small files of a Hugging Face model folder that the scheduler needs. No weights.

Says at start-up what is missing or wrong, by name, instead of failing at the first request.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from chunkmesh.coverage import MAX_MODEL_LAYERS
from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.json_text import parse_json
from scheduler.sampling_params import SamplingDefaults, check_defaults

_REQUIRED = ("config.json", "tokenizer.json", "tokenizer_config.json")
_MOST = 2**24
"""Of a size, as for the workers; longer contexts are no model's."""
Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """What the files say, checked."""

    architecture: str
    """First entry of config.json's architectures."""
    num_layers: int
    vocab_size: int
    """Rows of the embedding; may differ from what the tokenizer knows."""
    context_length: int
    """Longest prompt and output together that the model was made for, in tokens."""
    eos_ids: frozenset[int]
    """Ids that end the output; empty if no file names any."""
    rope: str
    """Canonical text of the rope settings, part of the key of cached pages."""
    sampling_defaults: SamplingDefaults
    tokenizer_path: Path
    tokenizer_config: Json
    chat_template: str | None


def read_model_files(folder: Path) -> ModelFiles:
    """Read and check a model folder.

    Raises:
        ConfigError: the folder or required files are missing, or one holds an unusable value.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"model path {folder} is no folder (`chunkmesh model path` prints the demo model's)"
        )
    missing = [name for name in _REQUIRED if not (folder / name).is_file()]
    if missing:
        raise ConfigError(f"model folder {folder} lacks {', '.join(missing)}")
    config = _read_json(folder / "config.json")
    generation = _read_optional_json(folder / "generation_config.json")
    tokenizer_config = _read_json(folder / "tokenizer_config.json")
    vocab_size = _positive(config, "vocab_size", folder)
    return ModelFiles(
        architecture=_architecture(config, folder),
        num_layers=_positive(config, "num_hidden_layers", folder, most=MAX_MODEL_LAYERS),
        vocab_size=vocab_size,
        context_length=_positive(config, "max_position_embeddings", folder),
        eos_ids=_eos_ids(generation, config, vocab_size, folder),
        rope=_rope(config),
        sampling_defaults=_sampling_defaults(generation, folder),
        tokenizer_path=folder / "tokenizer.json",
        tokenizer_config=tokenizer_config,
        chat_template=_chat_template(folder, tokenizer_config),
    )


def _read_json(path: Path) -> Json:
    try:
        content = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is no JSON object")
    return content


def _read_optional_json(path: Path) -> Json:
    return _read_json(path) if path.exists() else {}


def _architecture(config: Json, folder: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        raise ConfigError(f"{folder / 'config.json'}: architectures must name the model class")
    return names[0]


def _positive(config: Json, key: str, folder: Path, *, most: int = _MOST) -> int:
    value = config.get(key)
    path = folder / "config.json"
    if type(value) is not int or value < 1:
        raise ConfigError(f"{path}: {key} is {value!r}, must be an integer >= 1")
    if value > most:
        raise ConfigError(f"{path}: {key} is {value}, must be at most {most}")
    return value


def _eos_ids(generation: Json, config: Json, vocab_size: int, folder: Path) -> frozenset[int]:
    """Take the end tokens of generation_config.json; only without any, those of config.json."""
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        value = content.get("eos_token_id")
        if value is None:
            continue
        ids = value if isinstance(value, list) else [value]
        if not all(type(id_) is int and 0 <= id_ < vocab_size for id_ in ids):
            raise ConfigError(
                f"{folder / name}: eos_token_id is {value!r}, must be ids below {vocab_size}"
            )
        return frozenset(ids)
    return frozenset()


def _sampling_defaults(generation: Json, folder: Path) -> SamplingDefaults:
    """Take what generation_config.json sets; `"do_sample": false` means greedy."""
    path = folder / "generation_config.json"
    do_sample = generation.get("do_sample")
    if not isinstance(do_sample, bool | None):
        raise ConfigError(f"{path}: do_sample is {do_sample!r}, must be true or false")
    defaults = SamplingDefaults(
        temperature=0.0 if do_sample is False else generation.get("temperature"),
        top_p=generation.get("top_p"),
        top_k=generation.get("top_k"),
        min_p=generation.get("min_p"),
        repetition_penalty=generation.get("repetition_penalty"),
    )
    try:
        return check_defaults(defaults)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from error


def _chat_template(folder: Path, tokenizer_config: Json) -> str | None:
    """Return the template file's text, else the field's; of several the one named default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {reason_of(error)}") from error
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        items = [item for item in value if isinstance(item, dict)]
        value = next(
            (item.get("template") for item in items if item.get("name") == "default"), None
        )
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{folder / 'tokenizer_config.json'}: chat_template is no text")
    return value


def _rope(config: Json) -> str:
    """Write all rope settings as canonical JSON."""
    settings = {key: value for key, value in config.items() if key.startswith("rope")}
    return json.dumps(settings, sort_keys=True, separators=(",", ":"))
