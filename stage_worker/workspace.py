"""Scratch memory of the forward pass, allocated once and reused by every layer and microbatch.

Fresh tensors of this size would come from the operating system each time, page by page.

Shapes: T rows, D hidden size, H query heads, J query and kv heads, K kv heads, d head_dim,
I intermediate size; where keys are latent, p plain and r turned part of a head, v value width.
"""

from __future__ import annotations

import dataclasses

import torch

from stage_worker.latent_expansion import ExpansionMemory
from stage_worker.model_config import ModelConfig
from stage_worker.rope import Heads, heads

_MAX_VIEWS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """What a merged projection writes to."""

    qkv_TN: torch.Tensor
    """Its output; qk and the buffers' v_1KTd are views of it."""
    qk: Heads
    roped: Heads
    """[T, J, d]; the buffers' q_THd and k_1KTd are views of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LatentBuffers:
    """What latent attention needs besides."""

    query_TN: torch.Tensor
    """Queries as heads have them; plain_THp and rope are views of it."""
    plain_THp: torch.Tensor
    rope: Heads
    """[T, H, r], not yet turned."""
    turned: Heads
    """[T, H, r], what rope becomes: the last columns of the buffers' q_THd."""
    value_TN: torch.Tensor
    """What the heads attended to, as values; the same memory as value_THv."""
    value_THv: torch.Tensor
    expansion: ExpansionMemory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Buffers:
    """Views for T rows; everything is overwritten by the next user."""

    hidden_TD: torch.Tensor
    normed_TD: torch.Tensor
    merged: Merged | None
    """None where keys are latent."""
    latent: LatentBuffers | None
    """None where they are not."""
    q_THd: torch.Tensor
    """Where keys are latent, the turned part of all rows, and the rest of absorbed ones only."""
    k_1KTd: torch.Tensor
    v_1KTd: torch.Tensor
    """The same memory as k_1KTd where keys are latent."""
    attended_THd: torch.Tensor
    attended_TN: torch.Tensor
    """The same memory as attended_THd."""
    gate_up_TI: torch.Tensor
    gate_TI: torch.Tensor
    up_TI: torch.Tensor
    """gate_TI and up_TI are views of gate_up_TI."""
    inner_TI: torch.Tensor


class Workspace:
    """Owner of a stage's scratch memory; grows to the largest microbatch seen."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        self._config = config
        self._dtype = dtype
        self._capacity = 0
        self._memory: dict[str, torch.Tensor] = {}
        self._views: dict[int, Buffers] = {}
        self._expansion: ExpansionMemory | None = None
        if config.latent is not None:
            width = config.latent.expanded_dim
            self._expansion = ExpansionMemory(config.num_heads, width)

    def rows(self, num_rows: int) -> Buffers:
        """Return buffers of num_rows rows."""
        buffers = self._views.get(num_rows)
        if buffers is not None and num_rows <= self._capacity:
            return buffers
        if num_rows > self._capacity:
            self._grow(num_rows)
        if len(self._views) >= _MAX_VIEWS:
            self._views.clear()
        buffers = self._views[num_rows] = self._slice(num_rows)
        return buffers

    def _grow(self, num_rows: int) -> None:
        config = self._config
        num_joint = config.num_heads + config.num_kv_heads
        widths = {
            "hidden": config.hidden_size,
            "normed": config.hidden_size,
            "qkv": 0 if config.latent else (num_joint + config.num_kv_heads) * config.head_dim,
            "roped": num_joint * config.head_dim,
            "attended": config.num_heads * config.head_dim,
            "gate_up": 2 * config.intermediate_size,
            "inner": config.intermediate_size,
        }
        if config.latent is not None:
            query_dim = config.latent.plain_dim + config.latent.rope_dim
            widths["query"] = config.num_heads * query_dim
            widths["value"] = config.num_heads * config.latent.value_dim
        self._views.clear()
        self._memory = {
            name: torch.empty(num_rows, width, dtype=self._dtype) for name, width in widths.items()
        }
        self._capacity = num_rows

    def _slice(self, num_rows: int) -> Buffers:
        config = self._config
        memory = {name: tensor[:num_rows] for name, tensor in self._memory.items()}
        num_joint = config.num_heads + config.num_kv_heads
        roped_TJd = memory["roped"].view(num_rows, num_joint, config.head_dim)
        k_1KTd = roped_TJd[:, config.num_heads :].transpose(0, 1)[None]
        q_THd = roped_TJd[:, : config.num_heads]
        merged, v_1KTd = None, k_1KTd
        if config.latent is None:
            num_all = num_joint + config.num_kv_heads
            qkv_TGd = memory["qkv"].view(num_rows, num_all, config.head_dim)
            qk, roped = heads(qkv_TGd[:, :num_joint]), heads(roped_TJd)
            merged = Merged(qkv_TN=memory["qkv"], qk=qk, roped=roped)
            v_1KTd = qkv_TGd[:, num_joint:].transpose(0, 1)[None]
        gate_TI, up_TI = memory["gate_up"].chunk(2, dim=-1)
        return Buffers(
            hidden_TD=memory["hidden"],
            normed_TD=memory["normed"],
            merged=merged,
            latent=self._latent(memory, q_THd),
            q_THd=q_THd,
            k_1KTd=k_1KTd,
            v_1KTd=v_1KTd,
            attended_THd=memory["attended"].view(num_rows, config.num_heads, config.head_dim),
            attended_TN=memory["attended"],
            gate_up_TI=memory["gate_up"],
            gate_TI=gate_TI,
            up_TI=up_TI,
            inner_TI=memory["inner"],
        )

    def _latent(self, memory: dict[str, torch.Tensor], q_THd: torch.Tensor) -> LatentBuffers | None:
        config = self._config.latent
        if config is None or self._expansion is None:
            return None
        num_rows, num_heads = q_THd.shape[:2]
        query_dim = config.plain_dim + config.rope_dim
        query_THn = memory["query"].view(num_rows, num_heads, query_dim)
        return LatentBuffers(
            query_TN=memory["query"],
            plain_THp=query_THn[:, :, : config.plain_dim],
            rope=heads(query_THn[:, :, config.plain_dim :]),
            turned=heads(q_THd[:, :, config.rank :]),
            value_TN=memory["value"],
            value_THv=memory["value"].view(num_rows, num_heads, config.value_dim),
            expansion=self._expansion,
        )
