"""One route: the workers that form it, how far they are, and what it has. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from enum import Enum

from scheduler.decisions import SendConnect, SendJoin
from scheduler.worker_hello import WorkerHello

TRUSTED_S = 10.0
"""What has stood for so long is no longer doubted for failures before."""


class Phase(Enum):
    """How far a route is."""

    JOINING = "joining"
    """Its workers make their pools and wait for each other."""
    CONNECTING = "connecting"
    """They dial the next one."""
    STANDING = "standing"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OutboundLink:
    """A stage's link to the next one, as it was when it was made."""

    transport: str
    rtt_us: int
    """Round trip of a small message."""


class Formation:
    """Owns the state of a route from its first Join on."""

    def __init__(
        self, epoch: int, stages: Sequence[WorkerHello], *, page_tokens: int, deadline_s: float
    ) -> None:
        """Begin with nobody having answered; it is to stand by deadline_s."""
        self.epoch = epoch
        self.stages = tuple(stages)
        self.worker_ids = tuple(each.worker_id for each in stages)
        """In the order of the stages."""
        self.num_pages = min(each.kv_capacity_tokens for each in stages) // page_tokens
        """That every stage has."""
        self.num_host_pages = min(each.host_capacity_tokens for each in stages) // page_tokens
        """That the host memory of every stage has room for."""
        self.phase = Phase.JOINING
        self.deadline_s = deadline_s
        self.stood_s: float | None = None
        """Since when it stands; None before."""
        self._has_proved_itself = False
        self.links: dict[str, OutboundLink] = {}
        """Of each stage that has told of its link."""
        self._answered: set[str] = set()

    @property
    def unanswered(self) -> set[str]:
        """Workers that the phase still waits for."""
        return set(self.worker_ids) - self._answered

    @property
    def link_latency_ms(self) -> float:
        """Half of the round trip on the slowest link; 0 if there is none."""
        return max((link.rtt_us for link in self.links.values()), default=0) / 2000

    def fingerprint(self) -> bytes:
        """Return the SHA-256 over the digests of the weights and the config."""
        first, last = self.stages[0], self.stages[-1]
        digests = [first.config_digest, first.embedding_digest, last.head_digest]
        digests += [digest for stage in self.stages for digest in stage.layer_digests]
        return hashlib.sha256(b"".join(digests)).digest()

    def joins(self, new_token: Callable[[], bytes]) -> Iterator[SendJoin]:
        """Yield each stage's place, with a new pairing token for each link."""
        tokens = [b"", *(new_token() for _ in self.stages[1:]), b""]
        addresses = [*(each.data_address for each in self.stages[1:]), ""]
        fingerprint = self.fingerprint()
        for index, stage in enumerate(self.stages):
            yield SendJoin(
                worker_id=stage.worker_id,
                epoch=self.epoch,
                stage_index=index,
                num_stages=len(self.stages),
                next_address=addresses[index],
                inbound_token=tokens[index],
                outbound_token=tokens[index + 1],
                num_pages=self.num_pages,
                fingerprint=fingerprint,
            )

    def join_ready(self, worker_id: str) -> list[SendConnect]:
        """Note that a stage is ready; the last one lets all connect."""
        if not self._is_last_answer(Phase.JOINING, worker_id):
            return []
        self.phase = Phase.CONNECTING
        return [SendConnect(worker_id=each, epoch=self.epoch) for each in self.worker_ids]

    def joined(self, worker_id: str, link: OutboundLink | None, now_s: float) -> bool:
        """Note that a stage is connected; True if it was the last one, so that the route stands."""
        if link is not None and worker_id in self.worker_ids:
            self.links[worker_id] = link
        if not self._is_last_answer(Phase.CONNECTING, worker_id):
            return False
        self.phase = Phase.STANDING
        self.stood_s = now_s
        return True

    def proves_itself(self, now_s: float) -> bool:
        """Return True once, when it has stood for so long that failures before no longer count."""
        if self._has_proved_itself or self.stood_s is None or now_s - self.stood_s < TRUSTED_S:
            return False
        self._has_proved_itself = True
        return True

    def _is_last_answer(self, phase: Phase, worker_id: str) -> bool:
        """Note an answer; True when it was the last one that the phase waits for."""
        if self.phase is not phase or worker_id not in self.worker_ids:
            return False
        self._answered.add(worker_id)
        if self.unanswered:
            return False
        self._answered.clear()
        return True
