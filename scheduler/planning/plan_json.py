"""The object that `chunkmesh plan --json` prints. Pure; keys are only ever added."""

from __future__ import annotations

import dataclasses
import json
from typing import TypeAlias

from chunkmesh.layers import LayerRange
from scheduler.planning.communication import Communication
from scheduler.planning.footprint import Footprint
from scheduler.planning.plan import Plan
from scheduler.planning.survey import Survey

Fields: TypeAlias = dict[str, object]


def as_json(survey: Survey) -> str:
    """Return the object in one line."""
    fields: Fields = {
        "model": _model(survey),
        "latency": _latency(survey),
        "link": {
            "gbits_per_s": survey.options.link.gbits_per_s,
            "latency_us": survey.options.link.latency_us,
        },
        "plans": [_plan(survey, plan) for plan in survey.plans],
        "communication": [_communication(survey, *cell) for cell in _cells(survey)],
        "skipped_stages": list(survey.skipped_stages),
    }
    return json.dumps(fields)


def _model(survey: Survey) -> Fields:
    """Describe the model; sizes are null where only times are known."""
    shape, element_bytes = survey.subject.shape, survey.options.element_bytes
    return {
        "name": survey.subject.name,
        "num_layers": survey.latency.num_layers,
        "hidden_size": shape and shape.hidden_size,
        "context_length": shape and shape.context_tokens,
        "parameters": shape and shape.parameters(shape.whole),
        "active_parameters": shape and shape.active_parameters(),
        "kv_bytes_per_token": shape and shape.cache_width(shape.whole) * element_bytes,
    }


def _latency(survey: Survey) -> Fields:
    """Say where times come from, and what all layers as one stage take."""
    latency = survey.latency
    return {
        "origin": latency.origin,
        "is_estimate": latency.is_estimate,
        "overhead_ms": survey.options.overhead_ms,
        "head_ms": latency.edges.head_ms,
        "whole_model": dataclasses.asdict(latency.whole()),
    }


def _plan(survey: Survey, plan: Plan) -> Fields:
    """Describe one plan; bytes are those of one prompt."""
    options, shape = survey.options, survey.subject.shape
    bytes_of = shape and Footprint.of(
        plan,
        shape,
        page_tokens=options.chunks.page_tokens,
        element_bytes=options.element_bytes,
    )
    return {
        "strategy": plan.cuts.strategy.value,
        "stages": plan.cluster.num_stages,
        "layers": [_inclusive(layers) for layers in plan.cluster.ranges],
        "tokens": plan.load.prompt_tokens,
        "num_requests": plan.load.num_requests,
        "parameters": dict(plan.cuts.parameters),
        "chunks": list(plan.chunk_tokens),
        "num_chunks": len(plan.chunk_tokens),
        "largest_chunk_tokens": plan.largest_chunk_tokens,
        "ttft_ms": round(plan.ttft_ms, 3),
        "finish_ms": round(plan.finish_ms, 3),
        "throughput_tokens_s": round(plan.throughput_tokens_s, 1),
        "bubble_ratio": round(plan.bubble_ratio, 5),
        "equal_bubble_ratio": round(plan.equal_bubble_ratio, 5),
        "speedup": round(plan.speedup, 4),
        "efficiency": round(plan.efficiency, 5),
        "link_bytes": bytes_of and bytes_of.link_bytes,
        "kv_bytes_per_stage": bytes_of and list(bytes_of.kv_bytes),
        "weight_bytes_per_stage": bytes_of and list(bytes_of.weight_bytes),
        "is_simulated": plan.simulation is not None,
    }


def _cells(survey: Survey) -> list[tuple[int, int]]:
    """Return prompt lengths and numbers of stages of a model whose sizes are known."""
    if survey.subject.shape is None:
        return []
    cells = ((p.load.prompt_tokens, p.cluster.num_stages) for p in survey.plans)
    return list(dict.fromkeys(cells))


def _communication(survey: Survey, prompt_tokens: int, num_devices: int) -> Fields:
    """Return what each way of splitting one prompt moves."""
    shape = survey.subject.shape
    assert shape is not None
    moved = Communication.of(
        shape,
        prompt_tokens=prompt_tokens,
        num_devices=num_devices,
        element_bytes=survey.options.element_bytes,
    )
    return dataclasses.asdict(moved)


def _inclusive(layers: LayerRange) -> str:
    return f"{layers.first}-{layers.last - 1}"
