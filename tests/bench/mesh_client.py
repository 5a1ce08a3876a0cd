"""Requests of known size against a mesh of real processes; each prompt is new to every cache."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.v1 import generation_pb2 as pb

_seeds = itertools.count(1)
_VOCAB = 40_000


def new_prompt(num_tokens: int) -> list[int]:
    """Return random ids that no earlier call has returned."""
    rng = random.Random(next(_seeds))  # noqa: S311 - nothing secret
    return [rng.randrange(_VOCAB) for _ in range(num_tokens)]


def complete(
    mesh: LocalMesh,
    prompt: Sequence[int],
    new_tokens: int,
    *,
    timeline: bool = False,
    chunk_tokens: Sequence[int] = (),
) -> pb.GenerateComplete:
    """Run one greedy request of exactly new_tokens; chunk_tokens are as in GenerateRequest."""
    request = pb.GenerateRequest(
        input_ids=pb.TokenIds(ids=prompt),
        sampling_params=pb.SamplingParams(
            temperature=0, max_new_tokens=new_tokens, ignore_eos=True
        ),
        return_timeline=timeline,
        chunk_tokens=chunk_tokens,
    )
    with GenerationClient(HostPort.parse(mesh.scheduler_address)) as client:
        *_, last = client.generate(request)
    assert last.complete.cached_tokens == 0, "a bench prompt was cached"
    assert last.complete.completion_tokens == new_tokens
    return last.complete


def ttft_s(mesh: LocalMesh, num_tokens: int) -> float:
    """Return the time to the first token of a new prompt."""
    return complete(mesh, new_prompt(num_tokens), 1).ttft_ms / 1000


def itl_s(answer: pb.GenerateComplete) -> float:
    """Return the mean gap between the tokens of one request."""
    return (answer.e2e_ms - answer.ttft_ms) / 1000 / (answer.completion_tokens - 1)


def output_rate(
    mesh: LocalMesh, *, num_requests: int, prompt_tokens: int, new_tokens: int
) -> float:
    """Return the output tokens per second of requests that decode at the same time.

    From the last first token to the first last token, so that only decoding counts.
    """
    answers: list[tuple[float, float]] = []
    barrier = threading.Barrier(num_requests)

    def run() -> None:
        prompt = new_prompt(prompt_tokens)
        barrier.wait()
        answer = complete(mesh, prompt, new_tokens)
        answers.append((answer.ttft_ms / 1000, answer.e2e_ms / 1000))

    threads = [threading.Thread(target=run) for _ in range(num_requests)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rates = [(new_tokens - 1) / (end - begin) for begin, end in answers]
    return sum(rates)
