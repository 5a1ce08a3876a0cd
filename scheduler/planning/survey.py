"""Plans everything that was asked for: each pipeline, prompt length and strategy. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from chunkmesh.cli.partition import Partition, stage_ranges
from scheduler.pipeline_time import LinkTime
from scheduler.planning.balanced_partition import LayerCosts, balanced_partition
from scheduler.planning.cluster import Cluster, PromptLoad
from scheduler.planning.cuts import ChunkSettings, Strategy, cut_prompts
from scheduler.planning.latency_source import Subject
from scheduler.planning.model_latency import ModelLatency
from scheduler.planning.options import PlanOptions
from scheduler.planning.plan import Plan, make_plan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """All plans, and what they are of."""

    subject: Subject
    options: PlanOptions
    latency: ModelLatency
    """The subject's, with the mesh's own time."""
    plans: tuple[Plan, ...]
    """By pipeline, then prompt length, then strategy, as given."""
    skipped_stages: tuple[int, ...]
    """Numbers of stages that the model has too few layers for; only of several."""

    @property
    def link(self) -> LinkTime:
        """The links of all pipelines."""
        return _link(self.subject, self.options)

    def groups(self) -> Iterator[tuple[Plan, ...]]:
        """Yield the plans of one pipeline and prompt length, in the order of the strategies."""
        size = len(self.options.strategies)
        for first in range(0, len(self.plans), size):
            yield self.plans[first : first + size]


def survey(
    subject: Subject,
    options: PlanOptions,
    *,
    simulate: bool = True,
    on_cell: Callable[[int, int], None] | None = None,
) -> Survey:
    """Make all plans; simulate those that are not too large for it, if asked to.

    on_cell hears of each number of stages and prompt length that is done.

    Raises:
        ConfigError: layers cannot be split so, or chunks would be too many to plan.
    """
    latency = subject.latency.with_overhead(options.overhead_ms)
    num_stages = options.num_stages
    if len(num_stages) > 1:
        num_stages = tuple(count for count in num_stages if count <= latency.num_layers)
    plans = []
    for count in num_stages or options.num_stages[:1]:
        for cluster, load in _cells(subject, options, latency, count):
            plans += [
                make_plan(strategy, cluster, load, options.chunks, simulate=simulate)
                for strategy in options.strategies
            ]
            if on_cell is not None:
                on_cell(count, load.prompt_tokens)
    return Survey(
        subject=subject,
        options=options,
        latency=latency,
        plans=tuple(plans),
        skipped_stages=tuple(n for n in options.num_stages if n > latency.num_layers),
    )


def _cells(
    subject: Subject, options: PlanOptions, latency: ModelLatency, num_stages: int
) -> Iterator[tuple[Cluster, PromptLoad]]:
    """Yield a pipeline with each of the prompt lengths."""
    loads = [
        PromptLoad(prompt_tokens=tokens, num_requests=options.num_requests)
        for tokens in options.prompt_tokens
    ]
    ranges = stage_ranges(latency.num_layers, num_stages=num_stages, named=options.layers)
    cluster = Cluster.of(
        latency,
        ranges,
        _link(subject, options),
        pp_async_batch_depth=options.pp_async_batch_depth,
    )
    if options.partition is Partition.AUTO:
        longest = max(loads, key=lambda load: load.prompt_tokens)
        cluster = balanced(latency, cluster, longest, options.chunks)
    for load in loads:
        yield cluster, load


def balanced(
    latency: ModelLatency, even: Cluster, load: PromptLoad, settings: ChunkSettings
) -> Cluster:
    """Split the layers anew for what they, the embedding and the head take for some prompts.

    What is paid for each microbatch counts as often as the given split has optimal chunks. Where a
    faster slowest stage gains nothing, because others were better placed, the given split stays.
    """
    cuts = cut_prompts(Strategy.OPTIMAL, even, load, settings)
    edges, num_chunks = latency.edges, cuts.num_chunks
    stops = np.concatenate([np.asarray(own, dtype=np.float64) for own in cuts.ends])
    starts = np.concatenate([np.asarray((0, *own[:-1]), dtype=np.float64) for own in cuts.ends])
    costs = LayerCosts(
        layers=[float(layer.chunks_ms(starts, stops).sum()) for layer in latency.layers],
        first=edges.first_ms * num_chunks + edges.embedding_ms_per_token * load.total_tokens,
        last=edges.last_ms * num_chunks + edges.head_ms * load.num_requests,
    )
    ranges = balanced_partition(costs, even.num_stages)
    split = dataclasses.replace(even, ranges=ranges, stages=latency.pipeline(ranges))
    new_cuts = cut_prompts(Strategy.OPTIMAL, split, load, settings)
    return split if split.finish_ms(new_cuts.ends) < even.finish_ms(cuts.ends) else even


def _link(subject: Subject, options: PlanOptions) -> LinkTime:
    """Return what an activation of the model takes."""
    shape = subject.shape
    return options.link.time(None if shape is None else shape.hidden_size * options.element_bytes)
