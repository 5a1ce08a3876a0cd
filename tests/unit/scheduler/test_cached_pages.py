"""CachedPages and PageAllocator together: what is found, and what goes when room is needed."""

from __future__ import annotations

import random

import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.pages import PageAllocator

NAMESPACE = b"n" * 32


def _chain(name: str, num_pages: int) -> list[bytes]:
    """Return digests; names with a common beginning share as many pages."""
    return [name[: index + 1].ljust(index + 1, ".").encode() for index in range(num_pages)]


def _cached(pages: PageAllocator, name: str, num_pages: int) -> tuple[int, ...]:
    """Let a prompt be computed and end; return its pages."""
    ids = pages.allocate(num_pages)
    pages.keep(NAMESPACE, _chain(name, num_pages), ids)
    pages.release(ids)
    return ids


def _found(pages: PageAllocator, name: str, num_pages: int) -> tuple[int, ...]:
    """Return where the leading pages of a prompt lie."""
    digests = _chain(name, num_pages)
    return pages.cached.page_ids(digests[: pages.cached.count(digests, num_pages)])


def test_a_prompt_finds_its_leading_pages() -> None:
    """Up to where the prompts part, or to where the other one ended."""
    pages = PageAllocator(16)
    ids = _cached(pages, "abcd", 4)
    assert _found(pages, "abcd", 3) == ids[:3]
    assert _found(pages, "abxy", 4) == ids[:2]
    assert _found(pages, "abcdef", 6) == ids
    assert _found(pages, "x", 1) == ()
    assert (pages.num_free, len(pages.cached), pages.cached.num_idle) == (16, 4, 4)


def test_eviction_takes_the_end_of_a_chain_first() -> None:
    """O21: D before C before B before A; what hangs on nothing could never be found."""
    pages = PageAllocator(4)
    ids = _cached(pages, "abcd", 4)
    for left in (3, 2, 1, 0):
        (taken,) = pages.allocate(1)
        assert taken == ids[left]
        assert _found(pages, "abcd", 4) == ids[:left]


def test_what_is_held_stays() -> None:
    """O21: the last page of a match is locked as the others are."""
    pages = PageAllocator(8)
    ids = _cached(pages, "abcd", 4)
    pages.take_cached(ids)
    assert pages.num_free == 4
    pages.allocate(4)
    with pytest.raises(InvariantViolated, match="1 pages wanted, 0 are free"):
        pages.allocate(1)
    assert _found(pages, "abcd", 4) == ids
    pages.release(ids)
    pages.allocate(1)
    assert _found(pages, "abcd", 4) == ids[:3]


def test_empty_pages_are_handed_out_before_any_is_evicted() -> None:
    """Contents are worth more than a long run."""
    pages = PageAllocator(8)
    ids = _cached(pages, "abcd", 4)
    pages.allocate(4)
    assert _found(pages, "abcd", 4) == ids
    assert pages.take_evicted() == []
    pages.allocate(2)
    told = [(page.page_index, page.page_id, page.parent) for page in pages.take_evicted()]
    assert told == [(3, ids[3], b"abc"), (2, ids[2], b"ab")]
    assert pages.take_evicted() == []


def test_the_longest_unused_goes_first() -> None:
    """Use is being taken or left by a request."""
    pages = PageAllocator(6)
    old, new = _cached(pages, "ab", 2), _cached(pages, "xy", 2)
    pages.take_cached(old)
    pages.release(old)
    pages.allocate(4)
    assert _found(pages, "xy", 2) == ()
    assert _found(pages, "ab", 2) == old
    assert new != old


def test_a_page_that_is_held_again_goes_after_none() -> None:
    """O21: it stood among the leaves that may go when a request came to use it."""
    pages = PageAllocator(4)
    held = _cached(pages, "a", 1)
    pages.take_cached(held)
    _cached(pages, "b", 1)
    pages.allocate(3)
    assert (_found(pages, "a", 1), _found(pages, "b", 1)) == (held, ())


def test_a_growing_output_does_not_evict_the_page_behind_it() -> None:
    """It may be somebody's prefix; an empty page elsewhere is as good."""
    pages = PageAllocator(8)
    first = pages.allocate(1)
    ids = _cached(pages, "ab", 2)
    assert ids[0] == first[0] + 1
    assert pages.allocate_behind(first[0]) > ids[-1]
    assert _found(pages, "ab", 2) == ids


def test_the_same_tokens_computed_twice_are_known_once() -> None:
    """Two prompts that ran side by side: the second one's pages are free when it ends."""
    pages = PageAllocator(8)
    first, second = pages.allocate(3), pages.allocate(3)
    pages.keep(NAMESPACE, _chain("abc", 3), first)
    pages.keep(NAMESPACE, _chain("abx", 3), second)
    pages.release(second)
    assert pages.cached.num_idle == 1
    assert _found(pages, "abx", 3) == (*first[:2], second[2])
    pages.release(first)
    assert pages.cached.num_idle == 4


def test_what_hangs_on_an_evicted_page_is_forgotten() -> None:
    """Idle pages with held ones below them go only when nothing else is left."""
    pages = PageAllocator(6)
    first, second = pages.allocate(2), pages.allocate(3)
    pages.keep(NAMESPACE, _chain("ab", 2), first)
    pages.keep(NAMESPACE, _chain("abc", 3), second)
    pages.release(first)
    assert pages.num_free == 3
    pages.allocate(3)
    assert _found(pages, "abc", 3) == ()
    pages.check_integrity()
    pages.keep(NAMESPACE, _chain("abc", 3), second)
    assert _found(pages, "abc", 3) == second


def test_flushing_leaves_holders_alone() -> None:
    """Pages in use are free when their request ends; nothing of before can be kept any more."""
    pages = PageAllocator(8)
    _cached(pages, "ab", 2)
    held = pages.allocate(2)
    pages.keep(NAMESPACE, _chain("xy", 2), held)
    generation = pages.generation
    assert pages.forget_cached() == 4
    assert pages.generation > generation
    assert (pages.num_free, len(pages.cached)) == (6, 0)
    pages.release(held)
    pages.check_integrity()
    assert pages.allocate(8)


def test_distrust_takes_all_that_was_computed_from_it() -> None:
    """Pages below a damaged one hold what was made of it."""
    pages = PageAllocator(16)
    ids = _cached(pages, "abcd", 4)
    other = _cached(pages, "xy", 2)
    pages.distrust(ids[1:2])
    assert _found(pages, "abcd", 4) == ids[:1]
    assert _found(pages, "xy", 2) == other
    pages.check_integrity()


def test_a_new_epoch_of_the_same_memory_has_no_holds() -> None:
    """Full pages of requests that were lost are as good as any."""
    pages = PageAllocator(8)
    ids = _cached(pages, "ab", 2)
    pages.take_cached(ids)
    half_done = pages.allocate(2)
    pages.pin(half_done)
    pages.drop_holds()
    assert (pages.num_free, pages.cached.num_idle) == (8, 2)
    assert _found(pages, "ab", 2) == ids
    pages.check_integrity()


def test_one_page_cannot_hold_two_prefixes() -> None:
    """It would be read as what it is not."""
    pages = PageAllocator(8)
    ids = pages.allocate(2)
    pages.keep(NAMESPACE, _chain("ab", 2), ids)
    with pytest.raises(InvariantViolated, match="two prefixes"):
        pages.keep(NAMESPACE, _chain("xy", 2), ids)


class _Prompt:
    """A request of the model below."""

    def __init__(self, name: str, ids: tuple[int, ...]) -> None:
        self.name, self.ids = name, ids


@pytest.mark.parametrize("seed", range(6))
def test_it_agrees_with_a_naive_model(seed: int) -> None:
    """Contents and holds kept in plain dictionaries, over hundreds of requests.

    Nothing held is handed out, nothing found is wrong, and idle pages can all be had.
    """
    rng = random.Random(seed)  # noqa: S311 - a fixed order, not a secret
    pages = PageAllocator(24)
    contents: dict[int, bytes] = {}
    running: list[_Prompt] = []
    num_found = 0
    for _ in range(600):
        if running and rng.random() < 0.5:
            prompt = running.pop(rng.randrange(len(running)))
            if rng.random() < 0.8:
                pages.keep(NAMESPACE, _chain(prompt.name, len(prompt.ids)), prompt.ids)
            pages.release(prompt.ids)
        elif rng.random() < 0.02:
            pages.forget_cached()
        else:
            name = "".join(rng.choice("ab") for _ in range(rng.randint(1, 7)))
            digests = _chain(name, len(name))
            found = _found(pages, name, len(name))
            assert [contents[page_id] for page_id in found] == digests[: len(found)]
            num_new = len(name) - len(found)
            if num_new and num_new <= pages.num_free - pages.num_idle(found):
                pages.take_cached(found)
                new = pages.allocate(num_new)
                held = {page_id for prompt in running for page_id in prompt.ids} | {*found}
                assert held.isdisjoint(new)
                contents |= dict(zip(new, digests[len(found) :], strict=True))
                running.append(_Prompt(name, (*found, *new)))
                num_found += len(found)
        held = {page_id for prompt in running for page_id in prompt.ids}
        assert pages.num_free == pages.num_pages - len(held)
        pages.check_integrity()
        pages.cached.check_integrity(held)
    assert num_found > 100
