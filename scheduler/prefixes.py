"""What outputs need not compute on one route: device pages first, host pages, stored ones. Pure.

Never the last known token: it is always computed. Devices and host memory are looked at when an
output begins to wait, when HiCache has answered, and when the output is admitted: pages come and
go. A load brings pages behind those that were on the devices when it began; if these are gone by
admission, or others have come that reach as far, it was in vain.
"""

from __future__ import annotations

from scheduler.actions import (
    Action,
    HeldPages,
    MatchPrefix,
    ReleaseLease,
    SendCancelLoad,
    SendCommitLoad,
)
from scheduler.cache_counts import CacheCounts
from scheduler.engine_config import EngineConfig
from scheduler.events import Acked, Loaded, Matched, RouteFormed
from scheduler.found_pages import FoundPages
from scheduler.latency_model import PipelineLatency
from scheduler.load_choice import LoadChoice, TierRates, Wanted
from scheduler.load_rates import HOST_PRIOR, LoadRates
from scheduler.loads import Load, Loads
from scheduler.request import Request, RequestState
from scheduler.stored_checks import StoredChecks
from scheduler.tiers import Tiers

MAX_EARLY_LOADS = 8
"""Loads of outputs that wait for a place: more would fill the stages' staging for those who come
late. The others begin theirs when they are admitted."""


class Prefixes:
    """Owner of a route's loads, and of who takes which of its pages."""

    def __init__(
        self,
        config: EngineConfig,
        tiers: Tiers,
        formed: RouteFormed,
        counts: CacheCounts,
        checks: StoredChecks,
    ) -> None:
        """Begin with no load on a route that was formed."""
        page_bytes = formed.known_page_bytes
        self.loads = Loads(num_stages=formed.num_stages, epoch=formed.epoch)
        self._epoch = formed.epoch
        self.rates = TierRates(
            redis=LoadRates(page_bytes), host=LoadRates(page_bytes, prior=HOST_PRIOR)
        )
        self._config = config
        self._pages, self._host = tiers.device, tiers.host
        self._found = FoundPages(tiers, page_tokens=config.page_tokens)
        self._counts, self._checks = counts, checks
        self._choice = LoadChoice(
            page_tokens=config.page_tokens,
            chunk_tokens=config.chunked_prefill_tokens,
            min_tokens=config.load_min_tokens,
        )

    def ask(self, request: Request, latency: PipelineLatency | None, now_s: float) -> list[Action]:
        """Ask for what is stored; an output is QUEUED at once if that could be of no use to it."""
        num_pages = request.most_hit_pages(self._config.page_tokens)
        digests = request.leading_digests(num_pages, self._config.page_tokens)
        if self._found.num_pages(request) == num_pages:
            request.move(RequestState.QUEUED)
            checks = self._checks.ask(digests, now_s)
            return [*self._choose(request, latency, now_s), *checks]
        return [MatchPrefix(request_id=request.request_id, child=request.child, digests=digests)]

    def matched(
        self, request: Request, matched: Matched, latency: PipelineLatency | None, now_s: float
    ) -> list[Action]:
        """Take HiCache's answer; begin to load what is worth it."""
        request.take_match(matched, page_tokens=self._config.page_tokens)
        return self._choose(request, latency, now_s)

    def _choose(
        self, request: Request, latency: PipelineLatency | None, now_s: float
    ) -> list[Action]:
        """Decide what is loaded for an output that begins to wait for a place.

        A load from Redis begins now; one that copies host pages would gain nothing by that.
        """
        wanted = self._found.wanted(request)
        if not wanted.pages:
            return release_lease(request)
        timeout_s = self._config.load_limit_s(len(wanted.pages) - wanted.num_host)
        num_pages = self._choice.num_pages(
            wanted, self.rates, latency, timeout_s=timeout_s, now_s=now_s
        )
        if not num_pages:
            self._counts.loads["recomputed"] += 1
            return release_lease(request)
        request.load_end = wanted.pages.start + num_pages
        if num_pages <= wanted.num_host:
            return release_lease(request)
        num_early = sum(load.request.state is RequestState.QUEUED for load in self.loads)
        if num_early >= MAX_EARLY_LOADS:
            return []
        return self._start(request, wanted.pages[:num_pages], now_s)

    def num_held_tokens(self, request: Request) -> int:
        """Return how many leading tokens of an output the workers hold, on devices or hosts."""
        return self._found.num_pages(request) * self._config.page_tokens

    def has_room(self, request: Request, *, num_pages: int, spare_pages: int) -> bool:
        """Whether an output that needs num_pages can have them, and spare_pages are left free.

        Pages on the devices that others hold need no room; idle ones do.
        """
        lacking = num_pages + spare_pages - self._pages.num_free
        if lacking <= 0:
            return True
        num_found = self._count_usable(request)
        if lacking > num_found:
            return False
        found = self._pages.cached.page_ids(request.digests[:num_found])
        return lacking <= num_found - self._pages.num_idle(found)

    def take_pages(self, request: Request, num_pages: int) -> tuple[int, ...]:
        """Hold num_pages pages for an output that has room: those on the devices come first.

        Behind them those that some devices have: whoever lacks them loads them, or all compute them
        in their place.
        """
        num_found = self._count_usable(request)
        found = self._pages.cached.page_ids(request.digests[:num_found])
        self._pages.take_cached(found)
        table = request.table
        table.num_device_pages, table.generation = num_found, self._pages.generation
        self._count_queries(request, num_found)
        self._counts.device_hit_tokens += num_found * self._config.page_tokens
        partial, table.lacking_stages = self._found.partial_run(request, num_found)
        self._pages.take_cached(partial)
        table.num_partial_pages = len(partial)
        rest = self._pages.allocate(num_pages - num_found - len(partial))
        return (*found, *partial, *rest)

    def admitted(
        self, request: Request, latency: PipelineLatency | None, now_s: float
    ) -> tuple[list[Action], int | None]:
        """Return what the stages are told of an output with pages, and its hit's pages.

        None instead of the hit says that its load still runs.
        """
        load, num_found = self.loads.find(request), request.table.num_device_pages
        if load is None or not load.fits(request):
            dropped = self.cancel(request) if load is not None else []
            pages = self._pages_at_admission(request, latency, now_s)
            if pages:
                return [*dropped, *self._start(request, pages, now_s)], None
            return [*dropped, *release_lease(request)], num_found
        if load.num_usable is not None:
            return self.use(load)
        ends = self.loads.end(load, now_s) if self._config.load_policy == "best_effort" else []
        return [*ends], None

    def _pages_at_admission(
        self, request: Request, latency: PipelineLatency | None, now_s: float
    ) -> range:
        """Return which pages of an output with a place are loaded, if no load of it runs.

        Those that were wanted when it began to wait, as far as they are left; or the host pages, if
        these reach further by now, because they have been evicted from the devices. With
        best_effort nothing is read from Redis any more.
        """
        wanted = self._found.wanted(request)
        num_wanted = max(0, request.load_end - wanted.pages.start)
        if self._config.load_policy == "best_effort":
            num_wanted = min(num_wanted, wanted.num_host)
        if wanted.num_host > num_wanted:
            in_host = Wanted(pages=wanted.pages[: wanted.num_host], num_host=wanted.num_host)
            num_wanted = self._choice.num_pages(
                in_host, self.rates, latency, timeout_s=None, now_s=now_s
            )
        return wanted.pages[:num_wanted]

    def loaded(self, event: Loaded, now_s: float) -> Load | None:
        """Take one stage's answer; return the load if it is known now what it has brought."""
        self.rates.redis.measured(
            event.stage, num_bytes=event.num_bytes, took_s=event.took_s, now_s=now_s
        )
        return self.loads.loaded(event, now_s)

    def restored(self, acked: Acked, now_s: float) -> None:
        """Take what one stage says of its copies from host memory."""
        self.rates.host.measured(
            acked.stage, num_bytes=acked.restored_bytes, took_s=acked.restore_s, now_s=now_s
        )

    def use(self, load: Load) -> tuple[list[Action], int]:
        """Let the stages use what a load has brought; return its request's hit in pages, too."""
        request, pages = load.request, load.expected
        self._close(load)
        self._counts.loads[load.outcome] += 1
        self._counts.timed_out_loads += load.is_late
        if not pages:
            dropped = SendCancelLoad(epoch=self._epoch, load_id=load.load_id)
            return [dropped], request.table.num_device_pages
        num_host_pages = load.num_host_pages
        num_redis_pages = len(pages) - num_host_pages
        self._counts.host_hit_tokens += num_host_pages * self._config.page_tokens
        self._counts.redis_hit_tokens += num_redis_pages * self._config.page_tokens
        page_ids = tuple(request.table.page_ids[pages.start : pages.stop])
        commit = SendCommitLoad(
            epoch=self._epoch, load_id=load.load_id, page_ids=page_ids, held=load.held
        )
        return [commit], pages.stop

    def cancel(self, request: Request) -> list[Action]:
        """Let the stages drop the load of an output that will not use it, if it has one."""
        request.load_end = 0
        load = self.loads.find(request)
        if load is None:
            return []
        self._close(load)
        self._counts.loads["dropped"] += 1
        return [SendCancelLoad(epoch=self._epoch, load_id=load.load_id)]

    def _start(self, request: Request, pages: range, now_s: float) -> list[Action]:
        """Begin to load pages of an output."""
        request.load_end = 0
        num_host = min(len(pages), max(0, self._found.in_host(request) - pages.start))
        partial, lacking = self._host.partial_run(
            request.digests[: pages.stop], pages.start + num_host
        )
        end = pages.start + num_host + len(partial)
        host_ids = self._host.hold(request.digests[pages.start : end])
        num_held, lacking_device = self._found.held_by_some(request, pages)
        held = None
        if lacking := lacking | lacking_device:
            held = HeldPages(lacking=tuple(sorted(lacking)), num_pages=num_held, num_host=num_host)
        timeout_s = self._config.load_limit_s(len(pages))
        return [
            self.loads.start(request, pages, host_ids, held=held, timeout_s=timeout_s, now_s=now_s)
        ]

    def _close(self, load: Load) -> None:
        """Forget a load; what it has ordered of host pages stands before any later order."""
        self.loads.close(load)
        self._host.release(load.host_ids)

    def _count_queries(self, request: Request, num_found: int) -> None:
        """Count what an output asks of each tier, num_found pages being on the devices."""
        if request.needs_whole_prompt:
            return
        page_tokens = self._config.page_tokens
        lacking = request.known_tokens - num_found * page_tokens
        self._counts.device_query_tokens += request.known_tokens
        if self._host.num_pages:
            self._counts.host_query_tokens += lacking
        if request.was_matched:
            in_host = max(num_found, self._found.in_host(request)) * page_tokens
            self._counts.redis_query_tokens += request.known_tokens - in_host

    def _count_usable(self, request: Request) -> int:
        """Count the leading pages that an output would take from the devices now.

        Those behind the begin of its load it leaves, if the load reaches further.
        """
        num_found, load = self._found.on_devices(request), self.loads.find(request)
        is_in_load = load is not None and num_found in load.expected
        return load.pages.start if load is not None and is_in_load else num_found


def release_lease(request: Request) -> list[Action]:
    """Let go of an output's lease, if it has one."""
    lease_id = request.take_lease()
    return [] if lease_id is None else [ReleaseLease(lease_id=lease_id)]
