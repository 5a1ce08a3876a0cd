"""Which pages an admin means. Pure."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeAlias, assert_never

from chunkmesh.digest_starts import MIN_BYTES
from chunkmesh.errors import InvalidRequest, NotFound
from chunkmesh.indexed_page import IndexedPage
from chunkmesh.page_tree import PageTree
from chunkmesh.pages import DIGEST_BYTES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Everything:
    """All pages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Below:
    """A page and what hangs below it."""

    prefix: bytes
    """Its digest or the digest's first bytes, 4..32 of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Exactly the leading pages of a prompt that are known, in part or whole."""

    digests: Sequence[bytes]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InNamespace:
    """All pages of one namespace; of an unknown one none."""

    namespace: bytes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """Pages that neither a match nor a store touched for so long."""

    idle_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """These pages, as far as they are known."""

    digests: Sequence[bytes]
    """Parents before children."""


WouldGo: TypeAlias = "collections.Counter[bytes]"
"""Pages that a dry run would take, by their parent."""

Selection: TypeAlias = Everything | Below | Prompt | InNamespace | Idle | Listed


def selected(selection: Selection, tree: PageTree, now_s: float) -> Iterator[IndexedPage]:
    """Walk through the pages that are meant, parents before children; raises what looking does."""
    return (page for page in looking(selection, tree, now_s) if page is not None)


def looking(selection: Selection, tree: PageTree, now_s: float) -> Iterator[IndexedPage | None]:
    """Do the same and yield None for each page that was looked at in vain.

    Raises:
        NotFound: a prefix names no page.
        InvalidRequest: a prefix names several, or is too short or too long.
    """
    match selection:
        case Everything():
            return tree.everything()
        case Below(prefix=prefix):
            return tree.below(named(prefix, tree))
        case Prompt(digests=digests):
            return tree.known_prefix(digests)
        case InNamespace(namespace=namespace):
            return tree.of_namespace(namespace)
        case Idle(idle_s=idle_s):
            before_s = now_s - idle_s
            return (page if page.used_s <= before_s else None for page in tree.everything())
        case Listed(digests=digests):
            return iter(tree.known(digests))
        case _:
            assert_never(selection)


def named(prefix: bytes, tree: PageTree) -> IndexedPage:
    """Return the one page whose digest begins so.

    Raises:
        NotFound: there is none.
        InvalidRequest: there are several, or the prefix is too short or too long.
    """
    if not MIN_BYTES <= len(prefix) <= DIGEST_BYTES:
        raise InvalidRequest(
            f"{len(prefix)} bytes of a digest; {MIN_BYTES} to {DIGEST_BYTES} are allowed",
            field="below",
        )
    pages = tree.starting_with(prefix)
    if not pages:
        raise NotFound(f"no page's digest begins with {prefix.hex()}", field="below")
    if len(pages) > 1:
        raise InvalidRequest(
            f"{len(pages)} pages' digests begin with {prefix.hex()}; name more of it",
            field="below",
        )
    return pages[0]


def removable(
    pages: Sequence[IndexedPage],
    tree: PageTree,
    num_gone: WouldGo | None = None,
) -> tuple[IndexedPage, ...]:
    """Return those of chosen pages that may go, children before parents.

    A page goes only with all that hangs below it, and nothing that is held goes. Takes the chosen
    pages parents before children; or a part of them behind another and before that one, with
    num_gone that counts, by parent, what would go and is still there.
    """
    going: list[IndexedPage] = []
    num_gone = collections.Counter() if num_gone is None else num_gone
    for page in reversed(pages):
        if not page.is_held and num_gone[page.digest] == len(tree.children(page)):
            going.append(page)
            num_gone[page.parent] += 1
    return tuple(going)
