"""A check that finds nothing proves nothing, so it is shown what it must find."""

from __future__ import annotations

import pytest

from tests.forbidden_code import forbidden


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import pickle as harmless",
        "from pickle import loads",
        "import marshal, os",
        "import yaml",
        "from torch import load",
        "import torch\ntorch.load(path)",
        "from torch.jit import load as read",
        "import numpy as np\nnp.load(path)",
        "eval(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "__import__(name)",
        "import os\nos.system(text)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "f(path, allow_pickle=True)",
        "f(path, weights_only=False)",
        "f(path, trust_remote_code=True)",
    ],
)
def test_what_runs_data_is_found(source: str) -> None:
    """In whatever form it is imported."""
    assert forbidden(source, "it") != []


@pytest.mark.parametrize(
    "source",
    ["import re\nre.compile(text)", "model.eval()", "import json\njson.load(file)", "retrieval(x)"],
)
def test_what_only_looks_like_it_is_not(source: str) -> None:
    """Names alone say nothing."""
    assert forbidden(source, "it") == []
