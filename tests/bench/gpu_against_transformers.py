"""One stage against Hugging Face transformers: time to the first token, in the same run on one GPU.

Ours is the stage as a worker serves it: chunks through a paged pool, launched ahead as its compute
thread does, in bf16 and with FP8 weights; no scheduler and no wire. Theirs is bf16 with SDPA, the
whole prompt in one forward that keeps its keys and values and makes logits of the last token only:
chunks would need a mask, with which torch's fast kernels do not attend. All models hold random
weights, and not the same ones: times are compared, not answers. All are on the GPU together and
take turns.
Run: python -m tests.bench.gpu_against_transformers [--json FILE]
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from torch.nn.attention import SDPBackend, sdpa_kernel

from stage_worker.completions import MOST_LAUNCHED
from stage_worker.launched import Launched
from stage_worker.paged.load import load_paged_stage
from stage_worker.weight_choice import Quantization, WeightChoice
from tests.bench import machine
from tests.bench.prompt_microbatch import PAGE_TOKENS, Ids, prompt_microbatch
from tests.bench.scaling_results import Clock, Results
from tests.bench.shape_folder import SHAPES, write_shape

UNTIMED_TOKENS = 8192
"""Of a first prompt, for which kernels are compiled."""
GROWTH = 2.0
"""Of a prompt's time with its length at most, as an exponent."""


class Prefill(Protocol):
    """Computes a prompt."""

    def __call__(self, ids_T: Ids) -> int:
        """Return the likeliest token behind it; blocks until that is on the host."""
        ...


class OurStage:
    """All layers on one stage."""

    def __init__(
        self,
        path: Path,
        device: torch.device,
        quantization: Quantization,
        arguments: argparse.Namespace,
    ) -> None:
        self._chunk = arguments.chunk
        self._stage = load_paged_stage(
            path,
            layers=range(_num_layers(arguments.shape)),
            device=device,
            choice=WeightChoice(load_format="dummy", quantization=quantization),
        )
        num_pages = -(-max(arguments.prompts) // PAGE_TOKENS)
        self._stage.allocate(num_pages=num_pages, page_tokens=PAGE_TOKENS)

    def __call__(self, ids_T: Ids) -> int:
        """See Prefill."""
        under_way: collections.deque[Launched] = collections.deque()
        for start in range(0, len(ids_T), self._chunk):
            if len(under_way) == MOST_LAUNCHED:
                under_way.popleft().wait()
            microbatch = prompt_microbatch(ids_T, start, self._chunk, seq_no=start)
            under_way.append(self._stage.launch(microbatch, None, None))
        *_, last = [each.wait() for each in under_way]
        self._stage.release(0)
        (found,) = last.output.sampled_ids
        return found


class Transformers:
    """The same shape in transformers; several may share a model."""

    def __init__(self, model: Any, backend: SDPBackend | None) -> None:
        """Attend by a backend of torch's, or by the one that it chooses."""
        self._model = model
        self._backend = backend

    @torch.inference_mode()
    def __call__(self, ids_T: Ids) -> int:
        """See Prefill."""
        ids_1T = torch.from_numpy(ids_T.astype(np.int64)).to(self._model.device)[None]
        chosen = contextlib.nullcontext() if self._backend is None else sdpa_kernel(self._backend)
        with chosen:
            said = self._model(ids_1T, use_cache=True, logits_to_keep=1)
        return int(said.logits[0, -1].argmax())


def load_transformers(path: Path, device: torch.device) -> Any:
    """Make a model with random weights on a device."""
    config = transformers.AutoConfig.from_pretrained(path)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa"
        )
    return model.eval()


def _contestants(arguments: argparse.Namespace, device: torch.device) -> dict[str, Prefill]:
    """Load all; those whose first prompt cannot be computed are left out, and it is said why."""
    with tempfile.TemporaryDirectory() as folder:
        write_shape(Path(folder), arguments.shape)
        model = load_transformers(Path(folder), device)
        all_of_them: dict[str, Prefill] = {
            "transformers": Transformers(model, None),
            "transformers, flash": Transformers(model, SDPBackend.FLASH_ATTENTION),
            "transformers, cuDNN": Transformers(model, SDPBackend.CUDNN_ATTENTION),
            "ours, bf16": OurStage(Path(folder), device, "auto", arguments),
            "ours, FP8": OurStage(Path(folder), device, "fp8", arguments),
        }
    able: dict[str, Prefill] = {}
    for name, prefill in all_of_them.items():
        begun_s = time.monotonic()
        try:
            prefill(_prompt(min(UNTIMED_TOKENS, *arguments.prompts)))
        except RuntimeError as error:
            print(f"{name}: {error}".partition("\n")[0], flush=True)
        else:
            able[name] = prefill
            print(f"{name}: first prompt in {time.monotonic() - begun_s:.1f} s", flush=True)
    return able


def measure(
    contestants: dict[str, Prefill], arguments: argparse.Namespace, results: Results, clock: Clock
) -> None:
    """Let them compute prompts of each length in turn, and compare the medians."""
    last: dict[str, tuple[int, float]] = {}
    for num_tokens, rounds in zip(arguments.prompts, arguments.rounds, strict=True):
        runs: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(rounds):
            for name, prefill in contestants.items():
                known_tokens, known_s = last.get(name, (num_tokens, 0.0))
                if not clock.allows(known_s * (num_tokens / known_tokens) ** GROWTH):
                    continue
                prompt = _prompt(num_tokens)
                begun_s = time.perf_counter()
                prefill(prompt)
                runs[name].append(time.perf_counter() - begun_s)
                last[name] = (num_tokens, runs[name][-1])
        _tell(num_tokens, runs, results)
        slower = _slower_peers(runs)
        contestants = {name: each for name, each in contestants.items() if name not in slower}
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _tell(num_tokens: int, runs: Mapping[str, list[float]], results: Results) -> None:
    """Compare with the fastest of transformers'."""
    medians = {name: statistics.median(times) for name, times in runs.items() if times}
    peers = [median for name, median in medians.items() if _is_peer(name)]
    for name, median_s in medians.items():
        results.add(
            what="prefill",
            prompt=num_tokens,
            who=name,
            median_s=median_s,
            best_s=min(runs[name]),
            runs=len(runs[name]),
            tokens_per_s=num_tokens / median_s,
            times_transformers=min(peers) / median_s if peers else None,
        )


def _slower_peers(runs: Mapping[str, list[float]]) -> set[str]:
    """Return ways of transformers' that need not be measured with longer prompts."""
    peers = [name for name, times in runs.items() if _is_peer(name) and times]
    return set(peers) - set(sorted(peers, key=lambda name: statistics.median(runs[name]))[:1])


def _is_peer(name: str) -> bool:
    return name.startswith("transformers")


def _prompt(num_tokens: int) -> Ids:
    return np.random.default_rng().integers(0, 256, num_tokens, dtype=np.uint32)


def _num_layers(shape: str) -> int:
    return int(SHAPES[shape]["num_hidden_layers"])


def main() -> None:
    """Print the table and write it as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gpu_against_transformers")
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-8b")
    parser.add_argument("--prompts", type=int, nargs="+", default=[32768, 131072])
    parser.add_argument("--rounds", type=int, nargs="+", default=[3, 2], help="of each length")
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument(
        "--limit-s", type=float, default=130.0, help="no run is begun that ends behind it"
    )
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = Clock(arguments.limit_s)
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    about = {
        "command": " ".join(["python -m tests.bench.gpu_against_transformers", *sys.argv[1:]]),
        "machine": f"{name}, {machine.describe()}",
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
    }
    results = Results(arguments.json, about)
    contestants = _contestants(arguments, device)
    measure(contestants, arguments, results, clock)


if __name__ == "__main__":
    main()
