"""From the flags of `chunkmesh bench serve` to prompts, arrivals and a workload's description."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from chunkmesh.bench.arrivals import arrival_times
from chunkmesh.bench.prompt_file import parse_prompts
from chunkmesh.bench.prompts import (
    BenchPrompt,
    Lengths,
    SharedPrefixes,
    Vocabulary,
    digest,
    random_prompts,
    shared_prefix_prompts,
)
from chunkmesh.cli.bench_flags import DatasetName, DatasetOptions, LoadOptions
from chunkmesh.cli.generate_request import read_prompt
from chunkmesh.errors import ConfigError
from chunkmesh.v1 import generation_pb2 as pb

_DEFAULT_NUM_PROMPTS = 100
_FLAGS: Mapping[DatasetName, tuple[str, ...]] = {
    DatasetName.RANDOM: ("random_input_len", "random_output_len", "random_range_ratio"),
    DatasetName.SHARED_PREFIX: (
        *("gsp_num_groups", "gsp_system_prompt_len", "gsp_question_len", "gsp_output_len"),
    ),
    DatasetName.FILE: ("output_len",),
}
"""The flags of each dataset alone."""
_PROMPTS, _ARRIVALS = range(2)
"""Streams of random numbers: the arrivals stay the same where the prompts change."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is sent, when, and how that is called."""

    prompts: tuple[BenchPrompt, ...]
    due_s: tuple[float, ...]
    """Since the first, ascending; one a prompt."""
    description: dict[str, Any]
    """Alike in two results if, and only if, they may be compared."""


def check_load(load: LoadOptions) -> None:
    """Check what typer cannot.

    Raises:
        ConfigError: a value is none.
    """
    for flag, value in (("request-rate", load.request_rate), ("burstiness", load.burstiness)):
        if not value > 0:
            raise ConfigError(f"--{flag} {value:g}: must be above 0, or inf")
    if not 0 <= load.temperature < math.inf:
        raise ConfigError(f"--temperature {load.temperature:g}: must be at least 0")


def make_workload(
    dataset: DatasetOptions, load: LoadOptions, model: pb.GetModelInfoResponse
) -> Workload:
    """Make the prompts for a model, and say when they are due.

    Raises:
        ConfigError: a flag is of another dataset, the file cannot be read or holds too few prompts,
            or the context is too short.
    """
    _check_flags(dataset)
    prompts = _prompts(dataset, model)
    _check_context(prompts, model.context_length)
    due_s = arrival_times(
        len(prompts),
        rate=load.request_rate,
        burstiness=load.burstiness,
        rng=np.random.default_rng([dataset.seed, _ARRIVALS]),
    )
    description = {
        "dataset": _dataset(dataset),
        "num_prompts": len(prompts),
        "seed": dataset.seed,
        "request_rate": _number(load.request_rate),
        "burstiness": _number(load.burstiness),
        "max_concurrency": load.max_concurrency,
        "duration_s": load.duration,
        "temperature": load.temperature,
        "ignore_eos": not load.disable_ignore_eos,
        "cache": "of its own" if load.cache_salt is None else "shared with others",
        "prompts_sha256": digest(prompts),
    }
    return Workload(prompts=prompts, due_s=tuple(due_s.tolist()), description=description)


def requests_of(
    prompts: Sequence[BenchPrompt], load: LoadOptions, *, salt: str
) -> list[pb.GenerateRequest]:
    """Return a streamed request for each prompt."""
    return [_request(prompt, load, salt) for prompt in prompts]


def _check_flags(dataset: DatasetOptions) -> None:
    """Refuse what would be passed over in silence: flags of the other datasets."""
    defaults, chosen = DatasetOptions(), dataset.dataset_name
    for name, flags in _FLAGS.items():
        for flag in flags if name is not chosen else ():
            if getattr(dataset, flag) != getattr(defaults, flag):
                own = ", ".join(map(_flag_text, _FLAGS[chosen]))
                wrong = f"{_flag_text(flag)} is of --dataset-name {name}"
                raise ConfigError(f"{wrong}; {chosen} has {own}")


def _flag_text(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _check_context(prompts: Sequence[BenchPrompt], context_tokens: int) -> None:
    """Refuse outputs that the end of the context would cut; of texts the length is not known."""
    for prompt in prompts:
        if isinstance(prompt.content, bytes):
            input_tokens = len(prompt.content) // 4
            if input_tokens + prompt.output_tokens > context_tokens:
                raise ConfigError(
                    f"a prompt of {input_tokens} tokens and {prompt.output_tokens} of output:"
                    f" the context holds {context_tokens}"
                )


def _request(prompt: BenchPrompt, load: LoadOptions, salt: str) -> pb.GenerateRequest:
    request = pb.GenerateRequest(
        sampling_params=pb.SamplingParams(
            temperature=load.temperature,
            max_new_tokens=prompt.output_tokens,
            ignore_eos=not load.disable_ignore_eos,
        ),
        stream=True,
        cache_salt=salt,
    )
    if isinstance(prompt.content, str):
        request.text = prompt.content
    else:
        request.input_ids_le = prompt.content
    return request


def _prompts(dataset: DatasetOptions, model: pb.GetModelInfoResponse) -> tuple[BenchPrompt, ...]:
    if dataset.dataset_name is DatasetName.FILE:
        return _file_prompts(dataset)
    if dataset.dataset_path is not None:
        raise ConfigError("--dataset-path needs --dataset-name file")
    number = dataset.num_prompts or _DEFAULT_NUM_PROMPTS
    vocabulary = Vocabulary.of(model.vocab_size, without=model.eos_token_ids)
    rng = np.random.default_rng([dataset.seed, _PROMPTS])
    if dataset.dataset_name is DatasetName.SHARED_PREFIX:
        shape = SharedPrefixes(
            num_groups=dataset.gsp_num_groups,
            prefix_tokens=dataset.gsp_system_prompt_len,
            question_tokens=dataset.gsp_question_len,
            output_tokens=dataset.gsp_output_len,
        )
        return shared_prefix_prompts(number, shape, vocabulary, rng)
    inputs, outputs = (
        Lengths(mean=mean, range_ratio=dataset.random_range_ratio)
        for mean in (dataset.random_input_len, dataset.random_output_len)
    )
    return random_prompts(number, inputs, outputs, vocabulary, rng)


def _file_prompts(dataset: DatasetOptions) -> tuple[BenchPrompt, ...]:
    path = dataset.dataset_path
    if path is None:
        raise ConfigError("--dataset-name file needs --dataset-path")
    found = parse_prompts(
        read_prompt(path), output_tokens=dataset.output_len, name=f"--dataset-path {path}"
    )
    number = dataset.num_prompts or len(found)
    if number > len(found):
        # Sent twice, a prompt would be found in the cache.
        raise ConfigError(f"--num-prompts {number}: {path} holds {len(found)}")
    return found[:number]


def _dataset(dataset: DatasetOptions) -> dict[str, Any]:
    """Return the flags that matter to this dataset."""
    name = dataset.dataset_name
    flags = () if name is DatasetName.FILE else _FLAGS[name]
    return {"name": str(name)} | {flag: getattr(dataset, flag) for flag in flags}


def _number(value: float) -> float | str:
    """Return what JSON can hold."""
    return "inf" if math.isinf(value) else value
