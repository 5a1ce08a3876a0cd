"""The index of stored pages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pytest

from chunkmesh.coverage import Coverage, layer_mask
from chunkmesh.errors import InvalidRequest, InvariantViolated
from chunkmesh.indexed_page import IndexedPage, PageLock, PagePlace
from chunkmesh.prefix_index import PrefixIndex
from tests.page_samples import NAMESPACE, chain, parents

OTHER_NAMESPACE = hashlib.sha256(b"another namespace").digest()


def covered(first: int = 0, last: int = 4, *, layer_bytes: int = 10) -> Coverage:
    """Layers [first, last) of a model of four."""
    return Coverage(layers=layer_mask(first, last), model_layers=4, layer_bytes=layer_bytes)


def place(digest: bytes, parent: bytes, *, namespace: bytes = NAMESPACE) -> PagePlace:
    """Return where a page stands."""
    return PagePlace(namespace=namespace, digest=digest, parent=parent)


def store(
    index: PrefixIndex, digests: tuple[bytes, ...], coverage: Coverage | None = None
) -> list[bool]:
    """Cover a prompt's pages; return which became visible."""
    return [
        index.cover(place(digest, parent), coverage or covered())[1]
        for digest, parent in zip(digests, parents(digests), strict=True)
    ]


def lock(index: PrefixIndex, digests: tuple[bytes, ...]) -> PageLock:
    """Lock known pages."""
    return index.lock(index.tree.known(digests))


def names(pages: Iterable[IndexedPage]) -> tuple[bytes, ...]:
    """Return digests."""
    return tuple(page.digest for page in pages)


def test_a_page_is_visible_once_all_layers_are_covered_by_any_split() -> None:
    """Two workers with a 2-way split and one of a 3-way split write the same page."""
    index, (page,) = PrefixIndex(), chain(1)
    assert store(index, (page,), covered(0, 2)) == [False]
    assert store(index, (page,), covered(1, 3)) == [False]
    assert (index.match([page]), index.num_pages, index.num_partial_pages) == ([], 0, 1)
    assert store(index, (page,), covered(2, 4)) == [True]
    assert (len(index.match([page])), index.num_pages, index.num_partial_pages) == (1, 1, 0)
    assert index.num_bytes == 40


@pytest.mark.parametrize("missing", range(4))
def test_a_page_that_lacks_any_one_layer_is_not_visible(missing: int) -> None:
    """Stages end their stores in any order: the last one's layers say nothing of the others'."""
    index, (page,) = PrefixIndex(), chain(1)
    for layer in sorted({0, 1, 2, 3} - {missing}, reverse=True):
        assert store(index, (page,), covered(layer, layer + 1)) == [False]
    assert index.peek([page]) == 0
    assert store(index, (page,), covered(missing, missing + 1)) == [True]
    assert index.peek([page]) == 1


def test_a_match_ends_at_the_first_hole() -> None:
    """O18: later pages never move up."""
    index, digests = PrefixIndex(), chain(6)
    store(index, digests[:2])
    store(index, digests[2:3], covered(0, 2))
    for digest, parent in zip(digests[3:], digests[2:], strict=False):
        index.cover(place(digest, parent), covered())
    assert digests[:2] == names(index.match(digests))


def test_a_page_whose_parent_comes_later_is_kept() -> None:
    """A rebuild finds pages in any order."""
    index, digests = PrefixIndex(), chain(3)
    for digest, parent in reversed(list(zip(digests, parents(digests), strict=True))):
        assert index.match(digests) == []
        index.cover(place(digest, parent), covered())
        index.check_integrity()
    assert digests == names(index.match(digests))


def test_a_page_of_another_chain_does_not_continue_a_match() -> None:
    """Digests that do not hang together are no prefix."""
    index, ours, other = PrefixIndex(), chain(2), chain(2, name="other")
    store(index, ours)
    store(index, other)
    assert names(index.match([ours[0], other[1]])) == (ours[0],)


def test_invalidation_takes_everything_below() -> None:
    """Pages behind a missing one cannot be reached any more."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    assert digests[2:] == names(index.invalidate(digests[2]))
    assert (len(index.match(digests)), index.num_bytes) == (2, 80)
    assert index.invalidate(digests[2]) == ()
    index.check_integrity()


def test_eviction_takes_the_end_of_a_chain_first() -> None:
    """O21: D before C before B before A."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    index.match(digests)
    assert digests[:0:-1] == names(index.evict(120))
    assert len(index.match(digests)) == 1


def test_the_last_page_of_a_match_is_locked_too() -> None:
    """O21: locking only its ancestors let the matched page go under a running request."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    held = lock(index, digests)
    assert index.evict(40) == ()
    index.unlock(held)
    assert (digests[3],) == names(index.evict(40))
    index.check_integrity()


def test_a_locked_prefix_leaves_the_rest_evictable() -> None:
    """A lease on a short match must not hold the long tail of another prompt."""
    index, digests = PrefixIndex(), chain(4)
    store(index, digests)
    lock(index, digests[:2])
    assert (digests[3], digests[2]) == names(index.evict(1000))


def test_a_locked_page_holds_what_is_above_it_not_what_branches_off() -> None:
    """A page without its prefix is worth nothing; a neighbour is another's."""
    index, digests, (twig,) = PrefixIndex(), chain(3), chain(1, name="twig")
    store(index, digests)
    index.cover(place(twig, digests[1]), covered())
    lock(index, digests[2:])
    assert (twig,) == names(index.evict(1000))


def test_a_pinned_page_stays_until_it_is_unpinned() -> None:
    """Pins are locks without an owner."""
    index, digests = PrefixIndex(), chain(2)
    store(index, digests)
    page = index.tree.known(digests)[1]
    index.pin(page, pinned=True)
    assert index.evict(1000) == ()
    assert index.namespaces[NAMESPACE].num_pinned_pages == 1
    index.pin(page, pinned=False)
    index.check_integrity()
    assert digests[::-1] == names(index.evict(1000))


def test_the_least_recently_used_branch_goes_first() -> None:
    """A match protects its pages by recency, not only while it is leased."""
    index, old, new = PrefixIndex(), chain(2, name="a"), chain(2, name="b")
    store(index, old)
    store(index, new)
    index.match(old)
    assert (new[1], new[0], old[1]) == names(index.evict(101))


def test_a_dry_run_names_the_victims_and_spares_them() -> None:
    """An admin who asks first must get what then happens."""
    index, old, new = PrefixIndex(), chain(2, name="a"), chain(3, name="b")
    store(index, old)
    store(index, new)
    asked = [page for page in index.evicting(110, namespace=NAMESPACE) if page is not None]
    index.check_integrity()
    assert (old[1], old[0], new[2]) == names(asked)
    assert tuple(asked) == index.evict(110, namespace=NAMESPACE)


def test_an_eviction_in_parts_is_what_it_is_in_one() -> None:
    """The index serves requests between the parts."""
    victims = []
    for most_pages in (None, 1, 2):
        index = PrefixIndex()
        for name in ("a", "b", "c"):
            store(index, chain(3, name=name))
        index.match(chain(2, name="a"))
        gone: tuple[bytes, ...] = ()
        while part := index.evict(7 * 40 - len(gone) * 40, most_pages=most_pages):
            assert len(part) <= (most_pages or 7)
            gone += names(part)
        index.check_integrity()
        victims.append(gone)
    assert victims[0] == victims[1] == victims[2]
    assert len(victims[0]) == 7


def test_leaves_of_a_namespace_are_gathered_while_pages_come_and_go() -> None:
    """A leaf that was overlooked would never make room for its tenant again."""
    index, digests, other = PrefixIndex(), chain(3), chain(3, name="other")
    store(index, digests)
    store(index, other)
    assert not index.gather_leaves(NAMESPACE, 1)
    late = chain(4, name="other")
    index.cover(place(late[3], late[2]), covered())
    index.invalidate(digests[2])
    held = lock(index, digests[:2])
    while not index.gather_leaves(NAMESPACE, 1):
        index.check_integrity()
    index.check_integrity()
    assert late[::-1] == names(index.evict(1000, namespace=NAMESPACE))
    index.unlock(held)
    assert digests[1::-1] == names(index.evict(1000, namespace=NAMESPACE))


def test_a_namespace_makes_room_from_its_own_pages() -> None:
    """A quota must not be paid by the neighbours, however old their pages are."""
    index, ours, other = PrefixIndex(), chain(1), chain(3, name="other")
    store(index, ours)
    for digest, parent in zip(other, (OTHER_NAMESPACE, *other), strict=False):
        index.cover(place(digest, parent, namespace=OTHER_NAMESPACE), covered())
    assert (other[2], other[1]) == names(index.evict(41, namespace=OTHER_NAMESPACE))
    index.check_integrity()
    assert (index.namespaces[NAMESPACE].num_bytes, index.num_bytes) == (40, 80)
    assert index.evict(1, namespace=bytes(32)) == ()


def test_a_namespace_counts_its_pages() -> None:
    """What people see of a namespace is kept up to date page by page."""
    index, digests = PrefixIndex(), chain(3)
    store(index, digests[:2])
    store(index, digests, covered(1, 3))
    index.match(digests)
    counts = index.namespaces[NAMESPACE]
    assert (counts.num_pages, counts.num_partial_pages, counts.num_bytes) == (2, 1, 100)
    assert (counts.layers, counts.num_hits) == (0b1111, 1)
    index.invalidate(digests[0])
    assert index.namespaces == {}


def test_a_lock_outlives_the_page() -> None:
    """A damaged page is forgotten while leased, stored again, and the old lease ends."""
    index, digests = PrefixIndex(), chain(1)
    store(index, digests)
    held = lock(index, digests)
    index.invalidate(digests[0])
    store(index, digests)
    index.unlock(held)
    index.check_integrity()
    assert digests == names(index.evict(1))


def test_a_lock_ends_once() -> None:
    """A second unlock would free somebody else's page."""
    index, digests = PrefixIndex(), chain(1)
    store(index, digests)
    held = lock(index, digests)
    index.unlock(held)
    with pytest.raises(InvariantViolated):
        index.unlock(held)


def test_contradictions_are_refused() -> None:
    """A digest fixes parent, model and namespace; anything else is a mistake of the caller."""
    index, (page, other) = PrefixIndex(), chain(2)
    store(index, (page,))
    with pytest.raises(InvalidRequest, match="named"):
        index.cover(place(page, other), covered())
    with pytest.raises(InvalidRequest, match="named"):
        index.cover(place(page, NAMESPACE, namespace=OTHER_NAMESPACE), covered())
    wrong_model = Coverage(layers=1, model_layers=5, layer_bytes=1)
    with pytest.raises(InvalidRequest, match="5 layers"):
        index.cover(place(page, NAMESPACE), wrong_model)
    with pytest.raises(InvalidRequest, match="5 are named"):
        index.cover(place(other, page), wrong_model)
    with pytest.raises(InvalidRequest, match="below itself"):
        index.cover(place(other, other), covered())
    with pytest.raises(InvalidRequest, match="hangs together"):
        index.cover(place(other, page, namespace=OTHER_NAMESPACE), covered())
    index.check_integrity()
    assert index.num_bytes == 40


def test_a_ring_of_pages_is_refused() -> None:
    """No prompt has one, and nothing could ever evict it."""
    index, digests = PrefixIndex(), chain(3)
    index.cover(place(digests[0], digests[2]), covered())
    index.cover(place(digests[1], digests[0]), covered())
    with pytest.raises(InvalidRequest, match="below itself"):
        index.cover(place(digests[2], digests[1]), covered())
    index.check_integrity()


def test_only_matches_count_as_hits() -> None:
    """An admin's look must not change what is evicted."""
    index, digests = PrefixIndex(), chain(2)
    store(index, digests)
    index.match(digests)
    assert (index.peek(digests), len(index.match(digests))) == (2, 2)
    assert [index.info(digest).num_hits for digest in digests] == [2, 2]
    assert index.info(NAMESPACE).layers == 0


def test_a_scan_that_finds_a_known_page_is_no_use_of_it() -> None:
    """Otherwise every scan would make all pages equally recent."""
    index, old, new = PrefixIndex(), chain(1, name="a"), chain(1, name="b")
    store(index, old)
    store(index, new)
    index.cover(place(old[0], NAMESPACE), covered(), now_s=9, is_use=False)
    assert index.tree.known(old)[0].used_s == 0
    assert old == names(index.evict(1))


def test_a_page_knows_its_index_from_its_parent() -> None:
    """Commits name no index; a record does."""
    index, digests = PrefixIndex(), chain(5)
    store(index, digests[:2])
    far = PagePlace(namespace=NAMESPACE, digest=digests[3], parent=digests[2], page_index=3)
    index.cover(far, covered())
    index.cover(place(digests[4], digests[3]), covered())
    known = index.tree.known(digests)
    assert [page.page_index for page in known] == [0, 1, 3, 4]


def test_the_queue_does_not_grow_with_pages_that_are_gone() -> None:
    """Without a budget nothing is ever taken from it."""
    index = PrefixIndex()
    for number in range(5000):
        (digest,) = chain(1, name=str(number))
        store(index, (digest,))
        index.invalidate(digest)
    assert len(index._leaves._heap) <= 1024


def test_clear_forgets_everything_and_old_locks_still_end() -> None:
    """Redis was flushed while requests hold leases."""
    index, digests = PrefixIndex(), chain(3)
    store(index, digests)
    held = lock(index, digests)
    index.clear()
    index.unlock(held)
    assert (index.match(digests), index.num_pages, index.num_bytes) == ([], 0, 0)
    index.check_integrity()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda index: setattr(index, "num_bytes", 1),
        lambda index: setattr(index.namespaces[NAMESPACE], "num_partial_pages", 1),
        lambda index: index.namespaces[NAMESPACE].masks.clear(),
        lambda index: setattr(index.tree.known(chain(1))[0], "visible", False),
        lambda index: setattr(index.tree.known(chain(1))[0], "pinned", True),
        lambda index: index._tree._starts.clear(),
        lambda index: index._tree._anchors.clear(),
        lambda index: index._leaves.pop(),
    ],
)
def test_the_check_of_integrity_finds_what_is_wrong(spoil: object) -> None:
    """A check that passes anything would prove nothing."""
    index = PrefixIndex()
    store(index, chain(2))
    index.check_integrity()
    assert callable(spoil)
    spoil(index)
    with pytest.raises(InvariantViolated, match="wrong"):
        index.check_integrity()
