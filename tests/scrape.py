"""Reads what a service tells in /metrics, as Prometheus would."""

from __future__ import annotations

import asyncio
import http.client
from collections.abc import Mapping
from typing import ClassVar

from prometheus_client.parser import text_string_to_metric_families

from chunkmesh.address import HostPort


class Scrape:
    """The samples of one look, those of ChunkMesh only."""

    asked: ClassVar[set[str]] = set()
    """Names that any test of this process has asked for."""

    def __init__(self, samples: Mapping[tuple[str, frozenset[tuple[str, str]]], float]) -> None:
        self._samples = samples

    def value(self, name: str, **labels: str) -> float:
        """Return a sample by its name without chunkmesh_; 0 where there is none."""
        self.asked.add(f"chunkmesh_{name}")
        return self._samples.get((f"chunkmesh_{name}", frozenset(labels.items())), 0.0)

    def series(self, name: str) -> dict[tuple[str, ...], float]:
        """Return all samples of a name by the values of their labels, ordered by label."""
        self.asked.add(f"chunkmesh_{name}")
        return {
            tuple(value for _, value in sorted(labels)): sample
            for (each, labels), sample in self._samples.items()
            if each == f"chunkmesh_{name}"
        }

    def since(self, before: Scrape) -> Scrape:
        """Return how much each sample has grown."""
        grown = {key: value - before._samples.get(key, 0) for key, value in self._samples.items()}
        return Scrape(grown)


async def scrape(address: HostPort) -> Scrape:
    """Look at the side door at an address."""
    text = await asyncio.to_thread(_read, address)
    return Scrape(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("chunkmesh_")
        }
    )


def _read(address: HostPort) -> str:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=5)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()
