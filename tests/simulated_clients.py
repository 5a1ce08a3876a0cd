"""What the clients of simulated meshes know, and what may come to them.

Nothing comes late, twice or out of order, and in the end every answer is the one that it must be.
"""

from __future__ import annotations

import numpy as np

from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.pages import extend_chain
from scheduler.actions import Failed, Finished, MatchPrefix, Output, Progress, PromptLogprobs
from scheduler.events import RequestSpec
from tests.simulated_stage import PAGE_TOKENS, log_probs, next_token

News = Output | Progress | PromptLogprobs | Finished | Failed


class SimulatedClients:
    """All of one mesh."""

    def __init__(self) -> None:
        """Begin without requests."""
        self.specs: dict[str, RequestSpec] = {}
        self.finished: dict[tuple[str, int], Finished] = {}
        """By request and child."""
        self.failed: dict[str, Failed] = {}
        self.cancelled: set[str] = set()
        self.outputs: dict[tuple[str, int], list[int]] = {}
        self._processed: dict[str, int] = {}
        """Prompt tokens that a client knows to be computed."""
        self._prompt_told: dict[str, int] = {}
        """Prompt tokens behind the first whose log-probabilities a client knows."""

    def ask(self, spec: RequestSpec) -> None:
        """Let a client make a request."""
        self.specs[spec.request_id] = spec
        self.outputs |= {(spec.request_id, child): [] for child in range(spec.num_outputs)}
        self._processed[spec.request_id] = self._prompt_told[spec.request_id] = 0

    def give_up(self, request_id: str) -> None:
        """Note that a client wants nothing more."""
        if request_id in self.specs and not self._has_ended(request_id):
            self.cancelled.add(request_id)

    def hear(self, news: News) -> None:
        """Take what comes."""
        request_id = news.request_id
        assert not self._has_ended(request_id)
        match news:
            case Output():
                assert (request_id, news.child) not in self.finished
                self._check_logprobs(news)
                self.outputs[request_id, news.child] += news.token_ids
            case Progress(processed=processed):
                assert news.chunk_index <= news.chunks_planned
                assert news.eta_s >= 0
                if processed == news.total:
                    assert (news.chunk_index, news.eta_s) == (news.chunks_planned, 0)
                assert processed > self._processed[request_id]
                assert not self.outputs[request_id, 0]
                self._processed[request_id] = processed
            case PromptLogprobs(start=start, logprobs=logprobs):
                assert start == self._prompt_told[request_id] + 1
                self._prompt_told[request_id] += len(logprobs)
                spec = self.specs[request_id]
                ids = spec.prompt_ids.tolist()
                told = ids[start : start + len(logprobs)]
                _check_equal(logprobs, log_probs(ids[:start], told, spec.prompt_top_logprobs or 0))
            case Finished(child=child):
                assert (request_id, child) not in self.finished
                self.finished[request_id, child] = news
            case Failed():
                self.failed[request_id] = news

    def check_match(self, match: MatchPrefix) -> None:
        """The pages asked for are known, and leave at least one token to compute."""
        spec = self.specs[match.request_id]
        known = self._known(match.request_id, match.child)
        assert 0 < len(match.digests) * PAGE_TOKENS < len(known)
        ids = np.array(known, dtype=np.uint32)
        chain = extend_chain(spec.namespace, ids, PAGE_TOKENS)
        assert match.digests == chain[: (len(known) - 1) // PAGE_TOKENS]
        if spec.prompt_top_logprobs is not None:
            assert self._prompt_told[match.request_id] == len(spec.prompt_ids) - 1

    def check_end(self) -> None:
        """All have their end, and the right answer."""
        assert all(self._has_ended(request_id) for request_id in self.specs)
        for (request_id, child), end in self.finished.items():
            output = self.outputs[request_id, child]
            expected = _expected(self.specs[request_id], child)
            if end.reason == "abort":
                assert request_id in self.cancelled
                assert output == expected[: len(output)]
                continue
            spec = self.specs[request_id]
            assert output == expected
            assert end.cached_tokens + sum(end.chunk_tokens) == len(spec.prompt_ids)
            if spec.prompt_top_logprobs is not None:
                assert end.cached_tokens == 0 or end.num_recoveries
                assert self._prompt_told[request_id] == len(spec.prompt_ids) - 1

    def _has_ended(self, request_id: str) -> bool:
        """Whether nothing more may come of a request."""
        num_outputs = self.specs[request_id].num_outputs
        ends = [(request_id, child) in self.finished for child in range(num_outputs)]
        return request_id in self.failed or all(ends)

    def _known(self, request_id: str, child: int) -> list[int]:
        """Return prompt and output so far."""
        return [*self.specs[request_id].prompt_ids.tolist(), *self.outputs[request_id, child]]

    def _check_logprobs(self, output: Output) -> None:
        """Log-probabilities come with each token exactly if they were asked for."""
        num_top = self.specs[output.request_id].sampling.top_logprobs
        if num_top is None or not output.token_ids:
            assert output.logprobs is None
            return
        assert output.logprobs is not None
        known = self._known(output.request_id, output.child)
        _check_equal(output.logprobs, log_probs(known, output.token_ids, num_top))


def _expected(spec: RequestSpec, child: int) -> list[int]:
    """Return the whole output that a request must have."""
    context: list[int] = spec.prompt_ids.tolist()
    outputs: list[int] = []
    while len(outputs) < spec.max_new_tokens:
        forbidden = sorted(spec.end_ids) if len(outputs) < spec.min_new_tokens else []
        outputs.append(next_token(context + outputs, forbidden, child))
        if outputs[-1] in spec.end_ids:
            break
    return outputs


def _check_equal(told: TokenLogprobs, expected: TokenLogprobs) -> None:
    """Compare log-probabilities."""
    assert np.array_equal(told.logprobs_T, expected.logprobs_T)
    assert np.array_equal(told.top_ids_Tk, expected.top_ids_Tk)
    assert np.array_equal(told.top_logprobs_Tk, expected.top_logprobs_Tk)
