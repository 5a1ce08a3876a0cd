"""Which workers there are, and which of them form the route. Pure: the shell sends what it returns.

A route is one worker for every layer range of an exact tiling of the model. Identical ranges are
replicas: the first is used, the others are spares. A range that partly overlaps an attached one is
refused. Forming: Join to all, JoinReady from all, Connect to all, Joined from all, RouteStands.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable
from enum import Enum

from chunkmesh import PROTOCOL_VERSION
from chunkmesh.layers import LayerRange, check_tiling
from scheduler.latency_fit import LatencyPoint

_FORMING_S = 15.0
"""Time for a route to form; dialling a dead --peer first is part of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendName:
    """What computes one kind of operation on a worker."""

    operation: str
    name: str
    reason: str
    """Why nothing faster computes it; may be empty."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerHello:
    """What a worker says of itself when it attaches."""

    worker_id: str
    """Its incarnation: random, new at every process start."""
    protocol_version: int
    layers: LayerRange
    model_layers: int
    layer_digests: tuple[bytes, ...]
    embedding_digest: bytes
    head_digest: bytes
    config_digest: bytes
    dtype: str
    """Of activations and KV, such as float32."""
    hidden_size: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    host_capacity_tokens: int = 0
    """Of its host memory for pages."""
    data_address: str
    transport: str
    device: str
    profile: tuple[LatencyPoint, ...] = ()
    """What it measured of its layers; empty if it did not."""
    backends: tuple[BackendName, ...] = ()
    """What computes its operations, to be told."""
    chunk_alignment_tokens: int = 0
    """Chunks of a multiple of it keep all of its device busy; 0 if no length is better."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendJoin:
    """Make a worker a stage of a new epoch."""

    worker_id: str
    epoch: int
    stage_index: int
    num_stages: int
    next_address: str
    inbound_token: bytes
    outbound_token: bytes
    num_pages: int
    fingerprint: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SendConnect:
    """Let a stage dial the next one."""

    worker_id: str
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteStands:
    """Every stage is connected."""

    epoch: int
    worker_ids: tuple[str, ...]
    """In the order of the stages."""
    pool_ids: tuple[str, ...]
    """Names of the memory that the stages' pages lie in: of the same name, the same contents."""
    num_pages: int
    num_host_pages: int
    fingerprint: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteBroke:
    """The standing route is gone."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """What a worker's pages lie in."""

    pool_id: str
    num_pages: int


Decision = SendJoin | SendConnect | RouteStands | RouteBroke


class Phase(Enum):
    """How far the route is."""

    NONE = "no route"
    JOINING = "joining"
    CONNECTING = "connecting"
    STANDING = "standing"


class Refused(Exception):
    """A worker cannot be part of this mesh; the text says why."""


class Registry:
    """Owns the attached workers and the route."""

    def __init__(
        self, *, model_layers: int, page_tokens: int, new_token: Callable[[], bytes], retry_s: float
    ) -> None:
        """Start empty; a route that failed to form is tried again after retry_s."""
        self.workers: dict[str, WorkerHello] = {}
        """Attached workers by id, in the order they came."""
        self.route: tuple[str, ...] = ()
        """Workers of the route that stands or forms, by stage."""
        self.phase = Phase.NONE
        self.epoch = 0
        """Of the newest route; only ever grows."""
        self.links: dict[str, tuple[str, int]] = {}
        """Transport and round trip in microseconds of each stage's outbound link."""
        self._pools: dict[str, _Pool] = {}
        """Of attached workers, as the last Join has made them."""
        self._model_layers = model_layers
        self.page_tokens = page_tokens
        self._new_token = new_token
        self._retry_s = retry_s
        self._answered: set[str] = set()
        self._not_before_s = 0.0
        self._deadline_s = 0.0

    def lead(self, term: int) -> None:
        """Begin every epoch from now on with this term or a later one."""
        self.epoch = max(self.epoch, term << 32)

    def attach(self, hello: WorkerHello, now_s: float) -> list[Decision]:
        """Take in a worker.

        Raises:
            Refused: it does not fit this mesh; nothing has changed.
        """
        self.check(hello)
        self.workers[hello.worker_id] = hello
        return self._form(now_s)

    def lose(self, worker_id: str, reason: str, now_s: float) -> list[Decision]:
        """Forget a worker whose stream has ended or fallen silent."""
        if self.workers.pop(worker_id, None) is None:
            return []
        self._pools.pop(worker_id, None)
        if worker_id not in self.route:
            return []
        return self._dissolve(reason) + self._form(now_s)

    def fault(self, worker_id: str, epoch: int, reason: str, now_s: float) -> list[Decision]:
        """A living worker cannot go on in this epoch; the same workers may form again later."""
        if epoch != self.epoch or worker_id not in self.route:
            return []
        self._not_before_s = now_s + self._retry_s
        return self._dissolve(reason)

    def join_ready(self, worker_id: str, epoch: int) -> list[Decision]:
        """A worker answered Join."""
        if not self._all_answered(Phase.JOINING, worker_id, epoch):
            return []
        self.phase = Phase.CONNECTING
        return [SendConnect(worker_id=each, epoch=epoch) for each in self.route]

    def link_latency_ms(self) -> float:
        """Return half of the round trip on the route's slowest link; 0 if it has none."""
        rtts_us = [self.links[worker_id][1] for worker_id in self.route if worker_id in self.links]
        return max(rtts_us, default=0) / 2000

    def joined(self, worker_id: str, epoch: int, transport: str, rtt_us: int) -> list[Decision]:
        """A worker answered Connect."""
        if epoch == self.epoch and transport:
            self.links[worker_id] = (transport, rtt_us)
        if not self._all_answered(Phase.CONNECTING, worker_id, epoch):
            return []
        self.phase = Phase.STANDING
        return [
            RouteStands(
                epoch=epoch,
                worker_ids=self.route,
                pool_ids=tuple(self._pools[each].pool_id for each in self.route),
                num_pages=self._num_pages(),
                num_host_pages=self._num_host_pages(),
                fingerprint=self.fingerprint(),
            )
        ]

    def tick(self, now_s: float) -> list[Decision]:
        """Try again to form a route if one is due, or if the one that forms takes too long."""
        if self.phase in (Phase.JOINING, Phase.CONNECTING) and now_s >= self._deadline_s:
            self._not_before_s = now_s + self._retry_s
            return self._dissolve("its stages did not connect in time")
        return self._form(now_s)

    def missing(self) -> tuple[LayerRange, ...]:
        """Layers that no attached worker holds."""
        ranges = {each.layers for each in self.workers.values()}
        return check_tiling(ranges, self._model_layers).missing

    def reason(self) -> str:
        """Why no route stands, in words; empty if one does."""
        if self.phase is Phase.STANDING:
            return ""
        missing = self.missing()
        if missing:
            return "no worker holds layers " + ", ".join(map(str, missing))
        return f"the route is {self.phase.value}" if self.route else "the route forms again soon"

    def fingerprint(self) -> bytes:
        """SHA-256 over the digests of the route's weights and config; empty without a route."""
        if not self.route:
            return b""
        stages = [self.workers[each] for each in self.route]
        digests = [stages[0].config_digest, stages[0].embedding_digest, stages[-1].head_digest]
        digests += [digest for stage in stages for digest in stage.layer_digests]
        return hashlib.sha256(b"".join(digests)).digest()

    def check(self, hello: WorkerHello) -> None:
        """Look whether a worker fits the model and the workers already here.

        Raises:
            Refused: it does not.
        """
        if hello.protocol_version != PROTOCOL_VERSION:
            raise Refused(
                f"protocol version {hello.protocol_version}, this scheduler speaks "
                f"{PROTOCOL_VERSION}: run the same ChunkMesh version everywhere"
            )
        if hello.model_layers != self._model_layers:
            raise Refused(
                f"its model has {hello.model_layers} layers, the scheduler's has "
                f"{self._model_layers}: give both the same --model-path"
            )
        if hello.kv_capacity_tokens < self.page_tokens:
            raise Refused(
                f"KV capacity of {hello.kv_capacity_tokens} tokens is less than one page of "
                f"{self.page_tokens}"
            )
        for other in self.workers.values():
            _check_agree(hello, other)

    def _form(self, now_s: float) -> list[Decision]:
        """Begin a new epoch if there is no route and the workers tile the model."""
        if self.phase is not Phase.NONE or now_s < self._not_before_s:
            return []
        route = self._tiling()
        if route is None:
            return []
        self.route = route
        self.phase = Phase.JOINING
        self.epoch += 1
        self._deadline_s = now_s + _FORMING_S
        self._name_pools()
        self._answered.clear()
        self.links.clear()
        return self._joins()

    def _tiling(self) -> tuple[str, ...] | None:
        """Return workers whose ranges tile the model, the longest attached first."""
        by_first: dict[int, str] = {}
        for worker_id, hello in self.workers.items():
            by_first.setdefault(hello.layers.first, worker_id)
        route: list[str] = []
        layer = 0
        while layer < self._model_layers:
            if layer not in by_first:
                return None
            route.append(by_first[layer])
            layer = self.workers[route[-1]].layers.last
        return tuple(route)

    def _joins(self) -> list[Decision]:
        """Give every stage of the new route its place and its pairing tokens."""
        tokens = [b"", *(self._new_token() for _ in self.route[1:]), b""]
        addresses = [self.workers[each].data_address for each in self.route[1:]] + [""]
        return [
            SendJoin(
                worker_id=worker_id,
                epoch=self.epoch,
                stage_index=index,
                num_stages=len(self.route),
                next_address=addresses[index],
                inbound_token=tokens[index],
                outbound_token=tokens[index + 1],
                num_pages=self._num_pages(),
                fingerprint=self.fingerprint(),
            )
            for index, worker_id in enumerate(self.route)
        ]

    def _name_pools(self) -> None:
        """Note whose pages lose their contents by the Joins: another size makes a new pool."""
        num_pages = self._num_pages()
        for worker_id in self.route:
            pool = self._pools.get(worker_id)
            if pool is None or pool.num_pages != num_pages:
                pool_id = f"{worker_id}/{self.epoch}"
                self._pools[worker_id] = _Pool(pool_id=pool_id, num_pages=num_pages)

    def _num_pages(self) -> int:
        """Pages that every stage of the route has."""
        capacity = min(self.workers[each].kv_capacity_tokens for each in self.route)
        return capacity // self.page_tokens

    def _num_host_pages(self) -> int:
        """Pages that the host memory of every stage of the route has room for."""
        capacity = min(self.workers[each].host_capacity_tokens for each in self.route)
        return capacity // self.page_tokens

    def _all_answered(self, phase: Phase, worker_id: str, epoch: int) -> bool:
        """Note an answer; True when it was the last one that the phase waits for."""
        if self.phase is not phase or epoch != self.epoch or worker_id not in self.route:
            return False
        self._answered.add(worker_id)
        if self._answered != set(self.route):
            return False
        self._answered.clear()
        return True

    def _dissolve(self, reason: str) -> list[Decision]:
        """Drop the route; its workers stay attached."""
        stood = self.phase is Phase.STANDING
        self.route = ()
        self.phase = Phase.NONE
        self.links.clear()
        return [RouteBroke(reason=reason)] if stood else []


def _check_agree(hello: WorkerHello, other: WorkerHello) -> None:
    """Raise Refused unless two workers can serve one model together."""
    mine, theirs = hello.layers, other.layers
    if mine != theirs and mine.first < theirs.last and theirs.first < mine.last:
        raise Refused(
            f"layers {mine} partly overlap layers {theirs} of an attached worker: "
            "ranges must be the same or apart"
        )
    for name in ("dtype", "hidden_size", "transport"):
        mine_has, theirs_has = getattr(hello, name), getattr(other, name)
        if mine_has != theirs_has:
            raise Refused(
                f"its {name.replace('_', ' ')} is {mine_has}, that of the worker with layers "
                f"{theirs} is {theirs_has}: start both with the same model and settings"
            )
    if hello.config_digest != other.config_digest:
        raise Refused(
            f"its config.json says something else than that of the worker with layers {theirs}: "
            "start both with the same model"
        )
    if mine == theirs and hello.layer_digests != other.layer_digests:
        raise Refused(f"its weights of layers {mine} differ from those of an attached worker")
