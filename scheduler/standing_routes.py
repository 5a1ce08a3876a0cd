"""The routes that stand, by epoch, and what the workers of lost ones still hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from chunkmesh.errors import InvariantViolated
from scheduler.cache_counts import CacheCounts
from scheduler.chunking import ChunkStrategy
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, Loaded, RouteFormed, Stored
from scheduler.kept_pages import KeptPages
from scheduler.observations import Observations
from scheduler.route import Route

MAX_REMEMBERED = 1024
"""Epochs that are told from those that never were. Messages of older ones come from streams that
have long ended."""


class StandingRoutes:
    """Owner of all routes."""

    def __init__(self, config: EngineConfig, chunks: ChunkStrategy | None) -> None:
        """Begin with none; cut by chunks if given, whatever config asks for."""
        self.counts = CacheCounts()
        self.observations = Observations()
        self.latest_epoch = 0
        """The highest that was formed."""
        self._config, self._chunks = config, chunks
        self.standing: tuple[Route, ...] = ()
        """The longest standing first."""
        self._by_epoch: dict[int, Route] = {}
        """In the order of forming."""
        self._formed: set[int] = set()
        """Epochs that stand or stood, the highest MAX_REMEMBERED."""
        self._forgotten_epoch = 0
        """The highest of those that are not among them any more."""
        self._fingerprint = b""
        """Of the model that ran last; empty as long as that is not known."""
        self._kept = KeptPages()

    def __len__(self) -> int:
        return len(self._by_epoch)

    def __iter__(self) -> Iterator[Route]:
        return iter(self.standing)

    @property
    def are_modelled(self) -> bool:
        """Whether the latency of all is known."""
        return all(route.pace.latency is not None for route in self)

    @property
    def most_pages(self) -> int:
        """Pages of the largest; 0 without any."""
        return max((route.pages.num_pages for route in self), default=0)

    def find(self, epoch: int | None) -> Route | None:
        """Return the route of an epoch, if it stands."""
        return None if epoch is None else self._by_epoch.get(epoch)

    def of(self, message: Acked | Loaded | Stored) -> Route | None:
        """Return the route that a stage speaks of, or None if that is gone.

        Raises:
            InvariantViolated: the epoch was never formed or has no such stage.
        """
        route = self._by_epoch.get(message.epoch)
        if route is None:
            self._check_was_formed(message.epoch)
            return None
        if not 0 <= message.stage < route.num_stages:
            raise InvariantViolated(
                f"message of stage {message.stage}, the route has {route.num_stages}"
            )
        return route

    def is_same_model(self, event: RouteFormed) -> bool:
        """Whether outputs of earlier routes can go on here: with other weights they are others."""
        return not self._fingerprint or event.fingerprint in {b"", self._fingerprint}

    def form(self, event: RouteFormed) -> Route:
        """Add a route, with the pages that its workers still hold of an earlier one.

        Raises:
            InvariantViolated: its epoch is used, or its latency is of another number of stages.
        """
        if event.epoch in self._formed or event.epoch in self._by_epoch:
            raise InvariantViolated(f"epoch {event.epoch} was formed before")
        if event.latency is not None and event.latency.num_stages != event.num_stages:
            raise InvariantViolated(
                f"latency of {event.latency.num_stages} stages, the route has {event.num_stages}"
            )
        tiers = self._kept.take(event)
        route = Route(event, self._config, self._chunks, tiers, self.counts, self.observations)
        self._remember(event.epoch)
        self.latest_epoch = max(self.latest_epoch, event.epoch)
        self._fingerprint = event.fingerprint or self._fingerprint
        self._by_epoch[event.epoch] = route
        self.standing = tuple(self._by_epoch.values())
        return route

    def lose(self, epoch: int) -> Route | None:
        """Remove a route and keep what its workers hold; None if it is gone already.

        Raises:
            InvariantViolated: it was never formed.
        """
        route = self._by_epoch.pop(epoch, None)
        if route is None:
            self._check_was_formed(epoch)
            return None
        self.standing = tuple(self._by_epoch.values())
        route.stores.abandon()
        self._kept.keep(route.pool_ids, route.tiers)
        return route

    def forget_cached(self) -> int:
        """Forget what workers hold of prompts; return how many device pages of routes that were."""
        self._kept.forget()
        return sum(route.tiers.forget() for route in self)

    def _remember(self, epoch: int) -> None:
        self._formed.add(epoch)
        if len(self._formed) > MAX_REMEMBERED:
            self._forgotten_epoch = min(self._formed)
            self._formed.remove(self._forgotten_epoch)

    def _check_was_formed(self, epoch: int) -> None:
        if epoch not in self._formed and epoch > self._forgotten_epoch:
            raise InvariantViolated(f"message of epoch {epoch}, the latest is {self.latest_epoch}")
