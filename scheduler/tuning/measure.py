"""Runs one prompt on a mesh and says how long it took; blocking, on the users' port."""

from __future__ import annotations

import secrets

import numpy as np

from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.timeline import Timeline
from chunkmesh.errors import ChunkMeshError
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.tuning.candidates import Candidate
from scheduler.tuning.race import TunedRun

CACHE_SALT = "chunkmesh-tune"
"""What the prompts leave in the cache can be evicted by it; no other request finds it."""


class NotMeasured(ChunkMeshError):
    """The mesh did not do what was to be measured."""


class PromptRuns:
    """Prompts of one length, each new to every cache."""

    def __init__(self, client: GenerationClient, *, prompt_tokens: int, vocab_size: int) -> None:
        """Draw from all ids of the vocabulary."""
        self._client = client
        self._prompt_tokens = prompt_tokens
        self._vocab_size = vocab_size
        self._rng = np.random.default_rng(secrets.randbits(64))

    def run(self, candidate: Candidate) -> TunedRun:
        """Run one prompt to its first token.

        Raises:
            NotMeasured: it was cached, preempted, or cut otherwise than asked for.
            ChunkMeshError: the mesh refused it or failed.
        """
        ids = self._rng.integers(self._vocab_size, size=self._prompt_tokens, dtype=np.uint32)
        request = pb.GenerateRequest(
            input_ids_le=ids.astype("<u4").tobytes(),
            sampling_params=pb.SamplingParams(temperature=0, max_new_tokens=1, ignore_eos=True),
            chunk_tokens=candidate.chunk_tokens,
            return_timeline=True,
            cache_salt=CACHE_SALT,
        )
        *_, last = self._client.generate(request)
        complete = last.complete
        if complete.cached_tokens:
            raise NotMeasured(f"{complete.cached_tokens} tokens of a new prompt were cached")
        if complete.num_preemptions:
            raise NotMeasured("other requests took the pages: tune a mesh that is idle")
        asked = candidate.chunk_tokens
        if asked and complete.chunk_tokens[0] != min(asked[0], self._prompt_tokens):
            raise NotMeasured(
                f"a chunk of {asked[0]} tokens was asked for and {complete.chunk_tokens[0]} were"
                " run: the scheduler is of a version that does not know chunk_tokens"
            )
        return _run(complete)


def _run(complete: pb.GenerateComplete) -> TunedRun:
    timeline = Timeline.of(complete)
    stages = range(timeline.num_stages)
    works = timeline.works(timeline.chunks)
    shares = [timeline.busy_share(stage) for stage in stages]
    return TunedRun(
        ttft_ms=complete.ttft_ms,
        num_chunks=len(timeline.chunks),
        bubble_ratio=max(0.0, 1 - sum(shares) / len(shares)) if shares else 0.0,
        stage_ms=tuple(
            1000 * sum(work.end_s - work.start_s for work in works if work.stage_index == stage)
            for stage in stages
        ),
    )
