"""What is cached in each namespace, and what a namespace stands for. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping

from chunkmesh.namespace_counts import NamespaceCounts

MAX_TEXT_CHARACTERS = 1000
"""Most characters of a namespace's texts; those of a model's settings are far shorter."""
_MIN_INFOS = 1024


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceInfo:
    """What the pages of a namespace have in common, for people to read."""

    fingerprint: bytes
    """SHA-256 over the digests of all weights and the config, 32 bytes."""
    model: str
    """Name under which the model was served."""
    kv_dtype: str
    page_tokens: int
    """0 <= page_tokens < 2**32"""
    rope: str
    """Canonical text of the rope settings."""
    adapter: str
    """Name of a weight adapter; empty if none."""
    salted: bool
    """Whether a cache_salt or a tenant went into the namespace."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceState:
    """What is cached in one namespace."""

    namespace: bytes
    info: NamespaceInfo | None
    """None if nobody said so yet."""
    model_layers: int
    """Layers of the whole model; 0 while there are no pages."""
    layers: int
    """Mask of layers that are stored of at least one page."""
    num_pages: int
    """Pages stored for all layers."""
    num_partial_pages: int
    num_bytes: int
    num_pinned_pages: int
    quota_bytes: int
    """Most bytes that it may take; 0 means no limit."""
    num_hits: int
    """Matches that used one of its pages, since it last had none."""


class NamespaceInfos:
    """Owner of what is known of namespaces; of unused ones it forgets some when they are many."""

    def __init__(self) -> None:
        self._infos: dict[bytes, NamespaceInfo] = {}
        self._sweep_at = _MIN_INFOS

    @property
    def all(self) -> Mapping[bytes, NamespaceInfo]:
        """What is known, by namespace; to look at only."""
        return self._infos

    def add(self, namespace: bytes, info: NamespaceInfo, *, used: Container[bytes]) -> None:
        """Take note of a namespace, where used tells those that have pages."""
        if len(self._infos) >= self._sweep_at:
            self._infos = {name: known for name, known in self._infos.items() if name in used}
            self._sweep_at = max(_MIN_INFOS, 2 * len(self._infos))
        self._infos[namespace] = info


def namespace_states(
    counted: Mapping[bytes, NamespaceCounts],
    *,
    quotas: Mapping[bytes, int],
    infos: Mapping[bytes, NamespaceInfo],
) -> tuple[NamespaceState, ...]:
    """Return the state of each namespace that has pages or a quota, by bytes, largest first."""
    empty = NamespaceCounts(model_layers=0)
    states = []
    for namespace in {**counted, **quotas}:
        counts = counted.get(namespace, empty)
        states.append(
            NamespaceState(
                namespace=namespace,
                info=infos.get(namespace),
                model_layers=counts.model_layers,
                layers=counts.layers,
                num_pages=counts.num_pages,
                num_partial_pages=counts.num_partial_pages,
                num_bytes=counts.num_bytes,
                num_pinned_pages=counts.num_pinned_pages,
                quota_bytes=quotas.get(namespace, 0),
                num_hits=counts.num_hits,
            )
        )
    return tuple(sorted(states, key=lambda state: (-state.num_bytes, state.namespace)))
