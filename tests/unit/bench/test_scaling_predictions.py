"""Predictions for more stages than there are GPUs to measure."""

from __future__ import annotations

import pytest

from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb
from tests.bench.scaling_predictions import Cuts, cut, link_latency_s, predicted, told_model

TERMS = pb.LatencyTerms(ms_per_token=0.02, ms_per_pair=4e-7, edge_ms=1.0)
FIXED = Cuts(chunk_tokens=2048, is_planned=False)
PLANNED = Cuts(chunk_tokens=2048, is_planned=True, alignment_tokens=512)


def _fit(first: int, last: int) -> pb.StageFit:
    return pb.StageFit(layers=common_pb2.LayerRange(first=first, last=last), terms=TERMS)


def test_one_stage_takes_the_sum_of_its_chunks() -> None:
    """What was measured must come back before anything else is believed."""
    model = told_model([_fit(0, 36)])
    assert model is not None
    found = predicted(cut(model, 1), 65536, FIXED, 0.0)
    ms = 32 * 1.0 + 65536 * 0.02 + 65536**2 * 4e-7
    assert found.num_chunks == 32
    assert found.ttft_s == pytest.approx(ms / 1000, rel=1e-3)


def test_more_stages_are_faster_but_not_by_more_than_their_number() -> None:
    """Fill and drain and what every microbatch costs keep it from the ideal."""
    model = told_model([_fit(0, 18), _fit(18, 36)])
    assert model is not None
    times = [predicted(cut(model, n), 65536, PLANNED, 0.0).ttft_s for n in (1, 2, 4)]
    assert times[0] / 2 < times[1] < 0.65 * times[0]
    assert times[0] / 4 < times[2] < 0.65 * times[1]


def test_links_take_their_time() -> None:
    """Half a round trip of the slowest link, once a stage at least."""
    model = told_model([_fit(0, 36)])
    assert model is not None
    workers = [pb.WorkerInfo(outbound=pb.LinkInfo(rtt_us=each)) for each in (100, 8000)]
    link_s = link_latency_s([*workers, pb.WorkerInfo()])
    assert link_s == 0.004
    alone = predicted(cut(model, 4), 65536, FIXED, 0.0)
    linked = predicted(cut(model, 4), 65536, FIXED, link_s)
    assert linked.ttft_s - alone.ttft_s == pytest.approx(3 * link_s, rel=0.01)


def test_stages_without_a_fit_predict_nothing() -> None:
    """Made up figures would look like measured ones."""
    assert told_model([]) is None
    assert told_model([_fit(0, 18), pb.StageFit()]) is None
