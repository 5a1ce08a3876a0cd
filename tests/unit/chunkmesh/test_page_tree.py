"""How pages hang together."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvalidRequest
from chunkmesh.indexed_page import IndexedPage
from chunkmesh.page_tree import PageTree

ROOT = b"root" * 8


def page(name: str, *, namespace: bytes = ROOT) -> IndexedPage:
    """Return a page named by its path; its parent lacks the last letter."""
    parent = name[:-1].encode() if len(name) > 1 else namespace
    return IndexedPage(
        namespace=namespace,
        digest=name.encode(),
        parent=parent,
        model_layers=1,
        page_index=None,
        priority=0,
    )


def tree_of(*names: str) -> PageTree:
    """Return a tree of pages that came in this order."""
    tree = PageTree()
    for name in names:
        tree.insert(page(name))
        assert tree.faults() == []
    return tree


def paths(tree: PageTree) -> list[str]:
    """Return the names of all pages as they are walked."""
    return [one.digest.decode() for one in tree.everything()]


@pytest.mark.parametrize(
    "order", [("a", "ab", "ac", "abd"), ("abd", "ac", "ab", "a"), ("ab", "abd", "a", "ac")]
)
def test_pages_find_their_place_in_any_order(order: tuple[str, ...]) -> None:
    """A scan of Redis knows no order."""
    tree = tree_of(*order)
    assert sorted(paths(tree)) == ["a", "ab", "abd", "ac"]
    assert paths(tree)[0] == "a"
    assert [one.digest for one in tree.roots(ROOT)] == [b"a"]
    (lowest,) = tree.known([b"abd"])
    assert [one.digest for one in tree.above(lowest)] == [b"ab", b"a"]


def test_a_page_without_its_parent_is_a_root_for_now() -> None:
    """It hangs loose in its namespace."""
    tree = tree_of("a", "abcd")
    assert {one.digest for one in tree.roots(ROOT)} == {b"a", b"abcd"}
    assert list(tree.known_prefix([b"a", b"abcd"])) == tree.known([b"a"])


def test_a_parent_becomes_a_leaf_with_its_last_child() -> None:
    """Then its turn may come."""
    tree = tree_of("a", "ab", "ac")
    root, first, second = tree.known([b"a", b"ab", b"ac"])
    assert tree.remove(first) is None
    assert not tree.is_leaf(root)
    assert tree.remove(second) is root
    assert tree.is_leaf(root)
    assert tree.remove(root) is None
    assert (len(tree), tree.faults()) == (0, [])


def test_relatives_are_of_one_namespace() -> None:
    """A child of another tenant's page would be evicted on the wrong account."""
    tree = tree_of("a", "xyz")
    other = b"other" * 6
    for name in ("ab", "xyw", "xy"):
        with pytest.raises(InvalidRequest, match="hangs together"):
            tree.insert(page(name, namespace=other))
    assert tree.faults() == []
