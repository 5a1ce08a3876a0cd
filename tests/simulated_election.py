"""Schedulers that stand for election, a Redis that fails, and workers that follow, on one clock.

Exchanges with Redis and the workers' attaching are those of the services; what is played is time,
the network and who is asleep.
"""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import ChunkMeshError
from scheduler import leadership as rules
from scheduler.leadership import Holder, Leadership, LeaseSeen
from scheduler.standby import check_follows

STEP_S = 0.1
SILENCE_S = 2.5


@dataclasses.dataclass(slots=True)
class PlayedRedis:
    """The three keys of a mesh."""

    is_up: bool = True
    holder: Holder | None = None
    until_s: float = 0.0
    left_until_s: float = 0.0
    term: int = 0

    def flush(self) -> None:
        """Lose everything."""
        self.holder, self.left_until_s, self.term = None, 0.0, 0

    def answer(self, action: rules.Exchange, name: str, now_s: float) -> rules.Event:
        """Do what is asked."""
        if now_s >= self.until_s:
            self.holder = None
        match action:
            case rules.TakeTerm(above=above):
                self.term = max(self.term, above) + 1
                return rules.TermTaken(term=self.term)
            case rules.SeizeLease(term=term):
                if self.holder is None or self.holder.name == name:
                    self.holder = Holder(name=name, term=term, users=name)
                    self.until_s, self.left_until_s = now_s + rules.TTL_S, 0.0
                return LeaseSeen(asked_s=now_s, holder=self.holder, left_s=rules.TTL_S)
            case rules.RenewLease():
                self.until_s = now_s + rules.TTL_S
                return LeaseSeen(asked_s=now_s, holder=self.holder, left_s=rules.TTL_S)
            case rules.LookAtLease():
                return LeaseSeen(
                    asked_s=now_s,
                    holder=self.holder,
                    left_s=self.until_s - now_s,
                    was_released=now_s < self.left_until_s,
                )
            case rules.ReleaseLease():
                if self.holder is not None and self.holder.name == name:
                    self.holder, self.left_until_s = None, now_s + 2 * rules.TTL_S
                return LeaseSeen(asked_s=now_s, holder=None, was_released=True)


class PlayedScheduler:
    """A scheduler process; stands in for the candidate and the registry of one."""

    def __init__(self, name: str, num_stages: int) -> None:
        self.name = name
        self.num_stages = num_stages
        self.leadership = Leadership(name)
        self.epoch = 0
        self.streams: set[PlayedWorker] = set()
        """Workers that it believes to be attached."""
        self.is_asleep = False
        self.sleeps_before_answer = False
        """Falls asleep once Redis has done what it asks next, before it hears of it."""
        self.is_cut_off = False
        """From Redis."""
        self.num_step_downs = 0
        self._asked: rules.Exchange | None = None
        self._answer: rules.Event | None = None

    def step(self, redis: PlayedRedis, now_s: float) -> None:
        """Let time pass for a process that is awake."""
        if self.is_asleep:
            return
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self.handle(answer, now_s)
        self.handle(rules.Tick(has_route=len(self.streams) == self.num_stages), now_s)
        while self._asked is not None:
            asked, self._asked = self._asked, None
            answer = rules.StoreFailed(reason="gone")
            if redis.is_up and not self.is_cut_off:
                answer = redis.answer(asked, self.name, now_s)
            if self.sleeps_before_answer:
                self.sleeps_before_answer, self.is_asleep, self._answer = False, True, answer
                return
            self.handle(answer, now_s)

    def handle(self, event: rules.Event, now_s: float) -> None:
        """Do what the rules say."""
        for action in self.leadership.handle(event, now_s):
            match action:
                case rules.Lead(term=term):
                    self.epoch = max(self.epoch, term << 32)
                case rules.StepDown() | rules.LetWorkersGo():
                    self.num_step_downs += isinstance(action, rules.StepDown)
                    for worker in self.streams:
                        worker.lose(self)
                    self.streams.clear()
                case _:
                    self._asked = action

    def attach(self, worker: PlayedWorker, now_s: float) -> None:
        """Take a worker in, if the real rules let it."""
        self.now_s = now_s
        check_follows(self, self.epoch, worker.seen_epoch)  # type: ignore[arg-type]
        self.epoch += 1
        self.streams.add(worker)
        worker.join(self, self.epoch)

    def hear_term(self, term: int) -> None:
        """Be told by check_follows."""
        self.handle(rules.TermHeard(term=term), self.now_s)

    def command(self) -> None:
        """Send something to every worker that it believes to be its own."""
        if not self.is_asleep and self.leadership.term is not None:
            for worker in self.streams:
                worker.hear_command(self)


class PlayedWorker:
    """A worker; checks what it is told."""

    def __init__(self) -> None:
        self.seen_epoch = 0
        self.scheduler: PlayedScheduler | None = None
        self.obeyed: list[tuple[int, str]] = []
        """Epoch and scheduler of each command that was accepted, without repetitions."""
        self._next = 0
        self._silent_s = 0.0

    def step(self, schedulers: list[PlayedScheduler], now_s: float) -> None:
        """Notice silence, dial the next scheduler."""
        if self.scheduler is not None:
            self._silent_s = self._silent_s + STEP_S if self.scheduler.is_asleep else 0.0
            if self._silent_s > SILENCE_S:
                self.scheduler = None
            return
        scheduler = schedulers[self._next % len(schedulers)]
        self._next += 1
        if not scheduler.is_asleep:
            try:
                scheduler.attach(self, now_s)
            except ChunkMeshError:
                return

    def join(self, scheduler: PlayedScheduler, epoch: int) -> None:
        """Follow a scheduler, which must not lead back."""
        assert epoch > self.seen_epoch, "a leader sends nothing that workers refuse"
        self.seen_epoch, self.scheduler, self._silent_s = epoch, scheduler, 0.0

    def lose(self, scheduler: PlayedScheduler) -> None:
        """Hear that a scheduler has given this worker up."""
        if self.scheduler is scheduler:
            self.scheduler = None

    def hear_command(self, scheduler: PlayedScheduler) -> None:
        """Obey only the stream that is open."""
        command = (self.seen_epoch, scheduler.name)
        if self.scheduler is scheduler and self.obeyed[-1:] != [command]:
            self.obeyed.append(command)


class PlayedMesh:
    """All of it."""

    def __init__(self, num_schedulers: int, num_workers: int) -> None:
        self.now_s = 0.0
        self.redis = PlayedRedis()
        self._num_restarts = 0
        self.schedulers = [
            PlayedScheduler(f"s{index}", num_workers) for index in range(num_schedulers)
        ]
        self.workers = [PlayedWorker() for _ in range(num_workers)]

    def run(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for scheduler in self.schedulers:
                scheduler.step(self.redis, self.now_s)
            for worker in self.workers:
                worker.step(self.schedulers, self.now_s)
            for scheduler in self.schedulers:
                scheduler.command()

    def leaders(self) -> list[PlayedScheduler]:
        """Return who believes to lead."""
        return [each for each in self.schedulers if each.leadership.term is not None]

    def restart(self, index: int) -> None:
        """Kill a scheduler and start it again, with nothing in its memory."""
        old = self.schedulers[index]
        for worker in self.workers:
            worker.lose(old)
        self._num_restarts += 1
        self.schedulers[index] = PlayedScheduler(f"{old.name}.{self._num_restarts}", old.num_stages)
