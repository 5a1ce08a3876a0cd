"""chunkmesh.cli.bench_workload: from flags to what is sent."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from chunkmesh.cli.bench_flags import DatasetName, DatasetOptions, LoadOptions
from chunkmesh.cli.bench_workload import Workload, check_load, make_workload
from chunkmesh.errors import ConfigError
from chunkmesh.v1 import generation_pb2 as pb

_MODEL = pb.GetModelInfoResponse(vocab_size=100, eos_token_ids=[3], context_length=1200)


def _made(dataset: DatasetOptions, load: LoadOptions | None = None) -> Workload:
    return make_workload(dataset, load or LoadOptions(), _MODEL)


def test_the_same_flags_make_the_same_workload() -> None:
    """Two results are held against each other by its description alone."""
    options = DatasetOptions(num_prompts=5, random_input_len=64, random_range_ratio=0.5)
    one, other = _made(options), _made(options)
    assert one == other
    assert len(one.description["prompts_sha256"]) == 64


def test_the_description_is_json_and_names_what_matters_to_the_dataset() -> None:
    """An endless rate has no number in JSON; flags of other datasets would only differ in vain."""
    found = json.loads(json.dumps(_made(DatasetOptions(num_prompts=1)).description))
    assert ("inf", "of its own", True) == (
        found["request_rate"],
        found["cache"],
        found["ignore_eos"],
    )
    assert {"name", "random_input_len", "random_output_len", "random_range_ratio"} == set(
        found["dataset"]
    )


def test_arrivals_stay_where_prompts_change() -> None:
    """Lengths are varied under the same bursts."""
    load = LoadOptions(request_rate=3.0)
    short = _made(DatasetOptions(num_prompts=20, random_input_len=8), load)
    long = _made(DatasetOptions(num_prompts=20, random_input_len=900), load)
    assert short.due_s == long.due_s
    assert short.prompts != long.prompts


def test_prompts_hold_no_end_token() -> None:
    """The model's own are known."""
    (prompt,) = _made(DatasetOptions(num_prompts=1)).prompts
    assert isinstance(prompt.content, bytes)
    used = set(np.frombuffer(prompt.content, dtype="<u4").tolist())
    assert 3 not in used
    assert max(used) < 100


def test_outputs_that_the_context_would_cut_are_refused() -> None:
    """They would end early, and look fast."""
    fits = DatasetOptions(num_prompts=1, random_input_len=1000, random_output_len=200)
    assert len(_made(fits).prompts) == 1
    with pytest.raises(ConfigError, match="the context holds 1200"):
        _made(DatasetOptions(num_prompts=1, random_input_len=1001, random_output_len=200))


def test_flags_of_another_dataset_are_refused() -> None:
    """Passed over, they leave outputs of 128 tokens where two were asked for."""
    options = DatasetOptions(
        dataset_name=DatasetName.SHARED_PREFIX, num_prompts=1, random_output_len=2
    )
    with pytest.raises(ConfigError, match=r"--random-output-len is of .* random; .*gsp-output-len"):
        _made(options)


def test_a_file_is_cut_to_the_number_that_is_wanted(tmp_path: Path) -> None:
    """From its begin; without a number, all."""
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    name = DatasetName.FILE
    assert 2 == len(_made(DatasetOptions(dataset_name=name, dataset_path=path)).prompts)
    options = DatasetOptions(dataset_name=name, dataset_path=path, num_prompts=1)
    assert ["a"] == [prompt.content for prompt in _made(options).prompts]


@pytest.mark.parametrize(
    "load",
    [
        LoadOptions(request_rate=0.0),
        LoadOptions(request_rate=math.nan),
        LoadOptions(burstiness=-1.0),
        LoadOptions(temperature=math.inf),
    ],
)
def test_loads_that_are_none_are_refused(load: LoadOptions) -> None:
    """Typer knows no open ranges."""
    with pytest.raises(ConfigError, match=r"^--"):
        check_load(load)
