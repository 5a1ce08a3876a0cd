"""Chooses what computes a stage's operations, once at its start, and says why nothing faster does.

A kernel is used where the device, the packages, the element type and the model's shapes allow it;
plain torch does the rest.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Iterator
from typing import cast

import structlog
import torch

from stage_worker.kernels import reference
from stage_worker.kernels.availability import (
    BLOCK_GEMM,
    FLASH_PREFILL,
    LATENT_DECODE,
    TRITON,
    Needs,
    why_not,
)
from stage_worker.kernels.reference import GROUP_WIDTH
from stage_worker.latent_config import LatentConfig
from stage_worker.model_config import ModelConfig
from stage_worker.paged.attention import (
    Attention,
    FlashPrefill,
    FlashSequences,
    SplitDecode,
    SplitLatentDecode,
    TorchAttention,
)
from stage_worker.paged.operations import Fused, Operations
from stage_worker.paged.scratch import Scratch
from stage_worker.paged.waves import wave_tokens
from stage_worker.stage import Backend

_log = structlog.get_logger(__name__)
_NARROW = (torch.bfloat16, torch.float16)
_FLASH_MIN_DIM, _FLASH_MAX_DIM = 64, 256
_FLASH_DIMS = 8
"""Head sizes are multiples of it."""
_EXPANDED_DIMS = (192, 128)
"""Of keys and values that are made of latents: those of all DeepSeek models."""
_WIDEST_LATENT = 512


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What computes, and what is told of it."""

    operations: Operations
    backends: tuple[Backend, ...]
    chunk_alignment_tokens: int
    """Chunks of a multiple of it keep all of the device busy; 0 if no length is better."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What the choice depends on."""

    device: torch.device
    dtype: torch.dtype
    config: ModelConfig
    wants_fp8: bool

    def needs(self, needs: Needs) -> Iterator[str]:
        """Yield why kernels with these needs cannot run."""
        reason = why_not(needs, self.device)
        if reason is not None:
            yield reason

    def heads(self) -> Iterator[str]:
        """Yield why no kernel takes the heads."""
        if self.config.head_dim & (self.config.head_dim - 1):
            yield f"head_dim {self.config.head_dim} is not a power of two"

    def narrow(self) -> Iterator[str]:
        """Yield why no kernel takes the element type."""
        if self.dtype not in _NARROW:
            yield f"the element type is {self.dtype}"


def choose(
    config: ModelConfig, *, dtype: torch.dtype, device: torch.device, wants_fp8: bool
) -> Chosen:
    """Choose, and log each choice; on a GPU, plain torch is a warning.

    wants_fp8 is whether weights have eight bits.
    """
    about = _Subject(device=device, dtype=dtype, config=config, wants_fp8=wants_fp8)
    scale = _scale(config)
    prefill = _first(_why_not_flash(about))
    decode = _first(_why_not_split(about))
    fused = _first(_why_not_fused(about))
    block_gemm = _first(_why_not_block_gemm(about))
    plain, scratch = TorchAttention(scale), Scratch(device)
    expanded, absorbed = (", expanded", ", absorbed") if config.latent else ("", "")
    operations = Operations(
        fused=cast("Fused", reference if fused else _triton()),
        prefill=plain if prefill or config.latent else FlashPrefill(scale),
        decode=plain if decode else _split_decode(config, scale, scratch),
        sequences=None if prefill or not config.latent else FlashSequences(scale),
        scratch=scratch,
        dtype=dtype,
        device=device,
        has_block_gemm=not block_gemm,
    )
    backends = (
        _backend("prefill attention", f"FlashAttention-4{expanded}", prefill),
        _backend("decode attention", f"split-KV{absorbed}", decode),
        _backend("fused operations", "Triton", fused),
        _backend("matrix products", "DeepGEMM", block_gemm),
        *_special_layers(about, block_gemm),
    )
    _tell(backends, device)
    return Chosen(
        operations=operations,
        backends=backends,
        chunk_alignment_tokens=0 if prefill else _wave_tokens(config, device),
    )


def _wave_tokens(config: ModelConfig, device: torch.device) -> int:
    """Return the tokens of which FlashAttention-4 fills the GPU."""
    num_multiprocessors = torch.cuda.get_device_properties(device).multi_processor_count
    return wave_tokens(num_multiprocessors=num_multiprocessors, num_heads=config.num_heads)


def _why_not_flash(about: _Subject) -> Iterator[str]:
    yield from about.narrow()
    yield from about.needs(FLASH_PREFILL)
    if about.config.latent is not None:
        yield from _why_not_expanded(about.config.latent)
        return
    head_dim = about.config.head_dim
    if not _FLASH_MIN_DIM <= head_dim <= _FLASH_MAX_DIM or head_dim % _FLASH_DIMS:
        yield f"head_dim {head_dim} is not a multiple of 8 from 64 to 256"


def _why_not_expanded(latent: LatentConfig) -> Iterator[str]:
    widths = (latent.plain_dim + latent.rope_dim, latent.value_dim)
    if widths != _EXPANDED_DIMS:
        yield f"keys and values of heads are {widths} wide, not {_EXPANDED_DIMS}"


def _why_not_split(about: _Subject) -> Iterator[str]:
    yield from about.narrow()
    yield from about.needs(LATENT_DECODE if about.config.latent else TRITON)
    if about.config.latent is not None:
        yield from _why_not_split_latents(about.config.latent)
        return
    yield from about.heads()
    if about.config.head_dim < 16:
        yield f"head_dim {about.config.head_dim} is less than 16"


def _why_not_split_latents(latent: LatentConfig) -> Iterator[str]:
    widths = (latent.rank, latent.rope_dim)
    if any(width & (width - 1) or not 16 <= width <= _WIDEST_LATENT for width in widths):
        yield f"latents of {widths[0]} and {widths[1]} are not powers of two from 16 to 512"


def _why_not_fused(about: _Subject) -> Iterator[str]:
    yield from about.needs(TRITON)
    if about.config.latent is None:
        yield from about.heads()


def _why_not_block_gemm(about: _Subject) -> Iterator[str]:
    if not about.wants_fp8:
        yield f"weights are {about.dtype}"
        return
    yield from about.needs(BLOCK_GEMM)
    yield from about.needs(TRITON)
    if about.dtype != torch.bfloat16:
        yield f"the element type is {about.dtype}, not torch.bfloat16"
    if about.config.fp8_block not in {None, (GROUP_WIDTH, GROUP_WIDTH)}:
        yield f"weights are scaled by blocks of {about.config.fp8_block}"


def _why_not_block_experts(about: _Subject) -> Iterator[str]:
    config = about.config
    assert config.experts is not None, "asked for models with experts only"
    widths = (config.hidden_size, config.experts.intermediate_size)
    if any(width % GROUP_WIDTH for width in widths):
        yield f"experts of {widths[0]} x {widths[1]} are not of whole blocks of {GROUP_WIDTH}"


def _special_layers(about: _Subject, why_no_block_gemm: str) -> Iterator[Backend]:
    config = about.config
    if any(window is not None for window in config.windows):
        yield Backend(
            operation="attention of limited reach",
            name="torch",
            reason="no kernel here looks back a limited way",
        )
    if config.experts is not None:
        reason = why_no_block_gemm or _first(_why_not_block_experts(about))
        yield _backend("products of experts", "DeepGEMM, grouped", reason)


def _scale(config: ModelConfig) -> float:
    """Return what scores are multiplied by."""
    latent = config.latent
    head_dim = config.head_dim if latent is None else latent.plain_dim + latent.rope_dim
    factor = 1.0 if latent is None else config.rope.score_factor
    return factor / math.sqrt(head_dim)


def _split_decode(config: ModelConfig, scale: float, scratch: Scratch) -> Attention:
    if config.latent is not None:
        return SplitLatentDecode(scale, scratch)
    return SplitDecode(scale, scratch)


def _first(reasons: Iterator[str]) -> str:
    return next(reasons, "")


def _backend(operation: str, name: str, why_torch: str) -> Backend:
    return Backend(operation=operation, name="torch" if why_torch else name, reason=why_torch)


def _tell(backends: tuple[Backend, ...], device: torch.device) -> None:
    for each in backends:
        is_slow = each.name == "torch" and each.reason and device.type == "cuda"
        is_usual = each.reason.startswith("weights are torch")
        tell = _log.warning if is_slow and not is_usual else _log.info
        tell("back end chosen", operation=each.operation, name=each.name, reason=each.reason)


def _triton() -> object:
    return importlib.import_module("stage_worker.kernels.fused")
