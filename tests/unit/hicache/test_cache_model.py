"""The cache against the naive list of prefixes, under random histories of all that can happen."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from chunkmesh.coverage import Coverage
from chunkmesh.errors import NotFound
from chunkmesh.page_record import PageFormat, PageRecord
from chunkmesh.stored_page import StoredPage
from hicache.cache import PrefixCache
from hicache.changes import Change, ChangeKind
from hicache.eviction_policy import PolicyName
from hicache.selection import Below, Everything, Idle, InNamespace, Prompt, Selection
from tests.cache_samples import over_quota
from tests.naive_cache import (
    FULL,
    LAYERS,
    NAMESPACES,
    NaiveCache,
    Path,
    digest,
    prefixes,
)

_NAMESPACES = st.sampled_from(NAMESPACES)
_PATHS = st.sampled_from(
    [
        (0, 0, 0, 0, 0),
        (0, 0, 0, 1),
        (0, 0, 1, 0, 0),
        (0, 1),
        (0, 0),
        (1, 0, 0, 0),
        (1, 0, 0, 1),
        (1, 1, 0),
    ]
)
"""Few, so that prompts meet."""
_MASKS = st.integers(1, FULL)
_LAYER_BYTES = st.integers(0, 3)
_PRIORITIES = st.integers(-1, 2)
_TTLS_S = st.sampled_from([0.5, 1.0, 5.0, 1e6])
_ENDS_S = st.sampled_from([0.5, 3.0, None])


class CacheMachine(RuleBasedStateMachine):
    """Does everything to both and compares."""

    policy: PolicyName = "lru"

    @initialize(budget_bytes=st.sampled_from([0, 20, 45]))
    def start(self, budget_bytes: int) -> None:
        """Begin empty."""
        self.now_s = 100.0
        self.changes: list[Change] = []
        self.naive = NaiveCache(policy=self.policy, budget_bytes=budget_bytes)
        self.cache = PrefixCache(
            name="a",
            budget_bytes=budget_bytes,
            policy=self.policy,
            on_change=self.changes.append,
        )

    def digests(self, paths: Sequence[Path]) -> list[bytes]:
        """Return digests."""
        return [digest(path) for path in paths]

    def chosen(self, kind: str, path: Path) -> tuple[Selection, set[Path]]:
        """Return a selection, and what it means."""
        known = self.naive.pages
        if kind == "below" and path in known:
            return Below(prefix=digest(path)[:9]), set(self.naive.below(path))
        if kind == "prompt":
            prompt = Prompt(digests=self.digests(prefixes(path)))
            return prompt, set(self.naive.known_prefix(path))
        if kind == "namespace":
            own = {other for other in known if other[0] == path[0]}
            return InNamespace(namespace=digest(path[:1])), own
        if kind == "idle":
            idle = {other for other in known if known[other].used_s <= self.now_s - 1.5}
            return Idle(idle_s=1.5), idle
        return Everything(), set(known)

    @rule(path=_PATHS, priority=_PRIORITIES)
    def commit_prompt(self, path: Path, priority: int) -> None:
        """Store all of a prompt."""
        self.commit(path, 0, FULL, 2, priority)

    @rule(path=_PATHS, ttl_s=_TTLS_S)
    def use_prompt(self, path: Path, ttl_s: float) -> None:
        """Store a prompt and lease it."""
        self.commit(path, 0, FULL, 1, 0)
        self.match(path, ttl_s)

    @rule(
        path=_PATHS,
        first=st.integers(0, 3),
        layers=_MASKS,
        layer_bytes=_LAYER_BYTES,
        priority=_PRIORITIES,
    )
    def commit(self, path: Path, first: int, layers: int, layer_bytes: int, priority: int) -> None:
        """Store layers of the end of a prompt; what is before it may be missing."""
        paths = prefixes(path)[first:]
        coverage = Coverage(layers=layers, model_layers=LAYERS, layer_bytes=layer_bytes)
        num_visible = self.cache.commit(
            digest(path[:1]),
            [(digest(page), digest(page[:-1]), priority) for page in paths],
            coverage,
            now_s=self.now_s,
        )
        visible = self.naive.store(paths, layers, layer_bytes, priority=priority, now_s=self.now_s)
        assert len(visible) == num_visible

    @rule(paths=st.lists(_PATHS, min_size=1, max_size=3), layers=_MASKS, layer_bytes=_LAYER_BYTES)
    def adopt(self, paths: list[Path], layers: int, layer_bytes: int) -> None:
        """Find pages in any order by a scan."""
        coverage = Coverage(layers=layers, model_layers=LAYERS, layer_bytes=layer_bytes)
        found = [_stored(path, coverage) for path in paths]
        assert self.cache.adopt(found, now_s=self.now_s) == 0
        for path in paths:
            self.naive.find(path, layers, layer_bytes, self.now_s)
        self.naive.settle(paths, self.now_s)

    @rule(path=_PATHS, ttl_s=st.one_of(st.just(0.0), _TTLS_S))
    def match(self, path: Path, ttl_s: float) -> None:
        """Use a prompt, and lease it or not."""
        hit = self.cache.match(self.digests(prefixes(path)), lease_ttl_s=ttl_s, now_s=self.now_s)
        found = self.naive.match(path, self.now_s)
        assert len(found) == hit.num_pages
        assert bool(found and ttl_s) == bool(hit.lease_id)
        if hit.lease_id:
            self.naive.lease(hit.lease_id, found, self.now_s + min(ttl_s, 3600.0))

    @precondition(lambda self: self.naive.leases)
    @rule(choice=st.integers(0, 100))
    def release(self, choice: int) -> None:
        """End a lease, twice."""
        lease_id = sorted(self.naive.leases)[choice % len(self.naive.leases)]
        self.cache.release(lease_id, now_s=self.now_s)
        self.naive.release(lease_id, self.now_s)
        self.cache.release(lease_id, now_s=self.now_s)

    @rule(ttl_s=_TTLS_S, every=st.integers(1, 3))
    def renew(self, ttl_s: float, every: int) -> None:
        """Renew some leases and one that never was."""
        lease_ids = [*sorted(self.naive.leases)[::every], "never"]
        ended = self.cache.renew(lease_ids, ttl_s=ttl_s, now_s=self.now_s)
        live = [name for name in lease_ids if self.naive.renew(name, ttl_s, self.now_s)]
        assert [name for name in lease_ids if name not in live] == list(ended)

    @rule(step_s=st.sampled_from([0.0, 0.5, 1.0, 2.0, 10.0]))
    def tick(self, step_s: float) -> None:
        """Let time pass."""
        self.now_s += step_s
        self.cache.tick(self.now_s)
        self.naive.tick(self.now_s)

    @rule(step_s=st.sampled_from([0.5, 1.0]))
    def wait(self, step_s: float) -> None:
        """Let time pass without a tick: what ends meanwhile protects nothing from what follows."""
        self.now_s += step_s

    @rule(path=_PATHS)
    def invalidate(self, path: Path) -> None:
        """Lose a page."""
        num_pages = self.naive.invalidate(path, self.now_s)
        assert self.cache.invalidate([digest(path)]) == num_pages

    @rule(kind=st.sampled_from(["below", "prompt", "namespace", "idle"]), path=_PATHS)
    def evict(self, kind: str, path: Path) -> None:
        """Delete by hand, after asking what that would do."""
        self.naive.end_by_time(self.now_s)
        selection, chosen = self.chosen(kind, path)
        going = self.naive.removable(chosen)
        num_bytes = sum(self.naive.pages[other].num_bytes for other in going)
        asked = self.cache.evict(selection, now_s=self.now_s, dry_run=True)
        assert asked == self.cache.evict(selection, now_s=self.now_s, dry_run=False)
        assert (len(going), num_bytes) == (asked.num_pages, asked.num_bytes)
        assert len(chosen) - len(going) == asked.num_held_pages
        self.naive.remove(going, self.now_s)

    @rule(kind=st.sampled_from(["below", "prompt", "idle"]), path=_PATHS, ttl_s=_ENDS_S)
    def pin(self, kind: str, path: Path, ttl_s: float | None) -> None:
        """Keep pages, for a time or for good."""
        self.naive.end_by_time(self.now_s)
        selection, chosen = self.chosen(kind, path)
        until_s = None if ttl_s is None else self.now_s + ttl_s
        amount = self.cache.pin(selection, until_s=until_s, now_s=self.now_s, dry_run=False)
        assert len(chosen) == amount.num_pages
        self.naive.pins.update(dict.fromkeys(chosen, until_s))

    @rule(kind=st.sampled_from(["below", "prompt", "namespace", "all"]), path=_PATHS)
    def unpin(self, kind: str, path: Path) -> None:
        """Keep pages no more."""
        self.naive.end_by_time(self.now_s)
        selection, chosen = self.chosen(kind, path)
        pinned = chosen & self.naive.pins.keys()
        amount = self.cache.unpin(selection, now_s=self.now_s, dry_run=False)
        assert len(pinned) == amount.num_pages
        everything = isinstance(selection, Everything)
        if everything:
            self.cache.all_pins.end_waiting(digest(other) for other in self.naive.pins)
        for other in list(self.naive.pins) if everything else pinned:
            del self.naive.pins[other]
        self.naive.keep_limits({other[0] for other in pinned}, self.now_s)

    @rule(namespace=_NAMESPACES, max_bytes=st.sampled_from([0, 10, 20, 30]))
    def set_quota(self, namespace: int, max_bytes: int) -> None:
        """Bound a namespace, after asking what that would do."""
        self.naive.end_by_time(self.now_s)
        name, excess = digest((namespace,)), self.naive.excess(namespace, max_bytes)
        asked = over_quota(self.cache, max_bytes, namespace=name, now_s=self.now_s)
        self.cache.set_quota(name, max_bytes, now_s=self.now_s)
        num_bytes = self.naive.num_bytes(namespace)
        self.naive.quotas.pop(namespace, None)
        if max_bytes:
            self.naive.quotas[namespace] = max_bytes
        self.naive.keep_limits([namespace], self.now_s)
        if self.naive.budget_bytes == 0 or not excess:
            assert num_bytes - self.naive.num_bytes(namespace) == sum(asked)

    @rule(num_pages=st.integers(1, 5))
    def unlink(self, num_pages: int) -> None:
        """Take doomed pages away as the shell does."""
        due = {
            digest(path): path for path, due_s in self.naive.doomed.items() if due_s <= self.now_s
        }
        doomed = self.cache.doomed(num_pages, now_s=self.now_s)
        assert min(num_pages, len(due)) == len(doomed)
        self.cache.unlinked(doomed)
        for gone in doomed:
            del self.naive.doomed[due[gone]]

    @precondition(lambda self: len(self.naive.pages) > 12)
    @rule()
    def forget(self) -> None:
        """Lose Redis."""
        self.cache.forget()
        self.naive.forget()

    @rule(path=_PATHS)
    def look(self, path: Path) -> None:
        """Look at a prompt without a trace; a page that is not there is not found."""
        found = self.naive.visible_prefix(path)
        assert len(found) == self.cache.peek(self.digests(prefixes(path)))
        if path not in self.naive.pages:
            with pytest.raises(NotFound):
                self.cache.selecting(Below(prefix=digest(path)[:8]), now_s=self.now_s)

    @invariant()
    def agrees(self) -> None:
        """Pages, bytes, leases, pins and namespaces are those of the model."""
        naive, cache = self.naive, self.cache
        cache.check_integrity()
        pages = naive.pages
        assert {digest(path) for path in pages} == cache.known()
        assert naive.num_bytes() == cache.num_bytes
        assert sum(page.layers == FULL for page in pages.values()) == cache.num_pages
        assert len(naive.leases) == cache.num_leases
        pins = dict(cache.all_pins.all())
        assert {digest(path): until for path, until in naive.pins.items()} == pins
        states = {state.namespace: state for state in cache.namespaces()}
        for namespace in NAMESPACES:
            own = {path: page for path, page in pages.items() if path[0] == namespace}
            if own:
                state = states[digest((namespace,))]
                union = 0
                for page in own.values():
                    union |= page.layers
                assert (union, naive.num_bytes(namespace)) == (state.layers, state.num_bytes)
                assert len(own) == state.num_pages + state.num_partial_pages
                assert naive.hits[namespace] == state.num_hits
                assert len(own.keys() & naive.pins.keys()) == state.num_pinned_pages

    @invariant()
    def lists_every_page_once(self) -> None:
        """Selections name parents first; runs cover all pages and keep their order."""
        order = list(self.cache.selecting(Everything(), now_s=self.now_s))
        place = {name: index for index, name in enumerate(order)}
        assert len(self.naive.pages) == len(order)
        for path in self.naive.pages:
            if path[:-1] in self.naive.pages:
                assert place[digest(path[:-1])] < place[digest(path)]
        runs = list(self.cache.runs(namespace=None, below=None, max_depth=0, now_s=self.now_s))
        assert sum(run.num_pages for run in runs) == len(order)
        assert sum(run.num_bytes for run in runs) == self.cache.num_bytes

    @invariant()
    def tells_what_went(self) -> None:
        """Whoever adds up the changes knows what is there."""
        gone = {ChangeKind.INVALIDATED, ChangeKind.EVICTED, ChangeKind.DELETED}
        assert all(change.num_pages for change in self.changes if change.kind in gone)


def _stored(path: Path, coverage: Coverage) -> StoredPage:
    form = PageFormat(
        model_layers=LAYERS,
        dtype="float32",
        page_tokens=16,
        layer_bytes=coverage.layer_bytes,
    )
    record = PageRecord(
        format=form,
        namespace=digest(path[:1]),
        parent=digest(path[:-1]),
        page_index=len(path) - 2,
    )
    return StoredPage(digest=digest(path), record=record, coverage=coverage)


@pytest.mark.parametrize("policy", ["lru", "lfu", "priority"])
def test_it_agrees_with_a_list_of_prefixes(policy: PolicyName) -> None:
    """Every rule at once: matches, leases, pins, limits, selections, splits and lost parents."""

    class Machine(CacheMachine):
        pass

    Machine.policy = policy
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=60,
            stateful_step_count=100,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
