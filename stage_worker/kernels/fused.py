"""The fused operations of a layer in Triton, together; reference.py has the same names."""

from stage_worker.kernels.add_norm import add_norm
from stage_worker.kernels.gated_silu import gated_silu
from stage_worker.kernels.latent_store import latent_store, turn_queries
from stage_worker.kernels.rope_store import rope_store

__all__ = ["add_norm", "gated_silu", "latent_store", "rope_store", "turn_queries"]
