"""What `chunkmesh plan` was asked for, checked. Plain values."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from chunkmesh.cli.partition import Partition
from chunkmesh.errors import ConfigError
from chunkmesh.layers import LayerRange
from scheduler.pipeline_time import LinkTime
from scheduler.planning.cuts import ChunkSettings, Strategy
from scheduler.planning.token_text import parse_counts, parse_range

MAX_TOKENS = 1 << 24
MAX_STAGES = 1024
PICTURES = (".png", ".svg")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """What connects the stages."""

    gbits_per_s: float
    """> 0."""
    latency_us: float
    """>= 0."""

    def time(self, bytes_per_token: int | None) -> LinkTime:
        """Return how long activations travel; without their size only the latency counts."""
        latency_ms = self.latency_us / 1000
        if bytes_per_token is None:
            return LinkTime(latency_ms=latency_ms)
        return LinkTime.of_bandwidth(
            latency_ms=latency_ms,
            bytes_per_token=bytes_per_token,
            bytes_per_s=self.gbits_per_s * 1e9 / 8,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """One plan, or a sweep over several pipelines and prompts."""

    num_stages: tuple[int, ...]
    """Of each pipeline; ignored when layers are named."""
    layers: tuple[LayerRange, ...] | None
    partition: Partition
    prompt_tokens: tuple[int, ...]
    num_requests: int
    link: LinkOptions
    overhead_ms: float
    pp_async_batch_depth: int
    chunks: ChunkSettings
    strategies: tuple[Strategy, ...]
    element_bytes: int
    """Of a weight, an activation and an element of the cache."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SweepRanges:
    """Numbers of stages and prompt lengths to go through; None leaves it to the other flags."""

    num_stages: tuple[int, ...] | None = None
    prompt_tokens: tuple[int, ...] | None = None


def parse_sweep(text: str) -> SweepRanges:
    """Read stages=1..64,tokens=4K..4M; one of both is enough.

    Raises:
        ConfigError: something else stands there, or a number is out of range.
    """
    found: dict[str, tuple[int, ...]] = {}
    limits = {"stages": MAX_STAGES, "tokens": MAX_TOKENS}
    for part in text.split(","):
        name, _, numbers = part.partition("=")
        name = name.strip()
        if name not in limits or name in found:
            raise ConfigError(f"--sweep: {part!r} is not expected: write stages=1..8,tokens=4K..1M")
        found[name] = parse_range(numbers, flag=f"--sweep {name}", most=limits[name])
    return SweepRanges(num_stages=found.get("stages"), prompt_tokens=found.get("tokens"))


def parse_tokens(text: str) -> tuple[int, ...]:
    """Read prompt lengths such as 4096,128K,1M.

    Raises:
        ConfigError: one is no number, or out of range.
    """
    return parse_counts(text, flag="--tokens", most=MAX_TOKENS)


def check_picture(path: Path) -> Path:
    """Return the path of a picture that can be written.

    Raises:
        ConfigError: its ending is unknown, or its folder is not there.
    """
    if path.suffix.lower() not in PICTURES:
        raise ConfigError(f"--picture {path}: must end in {' or '.join(PICTURES)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--picture {path}: there is no folder {path.absolute().parent}")
    return path
