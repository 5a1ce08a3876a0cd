"""Pages find their namespace by the pages above them, in whatever order they come."""

from __future__ import annotations

import random

from chunkmesh.coverage import Coverage
from chunkmesh.page_record import PageRecord
from chunkmesh.stored_page import StoredPage
from hicache.families import Families
from tests.page_samples import FORM, NAMESPACE, chain

SALTED = bytes([7]) * 32
COVERAGE = Coverage(layers=15, model_layers=4, layer_bytes=256)


def pages(namespace: bytes, name: str, num_pages: int = 4) -> list[StoredPage]:
    """Return a prompt's pages, whose records all tell the namespace without salt."""
    digests = chain(num_pages, name=name)
    return [
        StoredPage(
            digest=digest,
            record=PageRecord(format=FORM, parent=parent, page_index=index),
            coverage=COVERAGE,
        )
        for index, (digest, parent) in enumerate(
            zip(digests, (namespace, *digests[:-1]), strict=True)
        )
    ]


def test_a_salted_prompt_is_of_its_own_namespace() -> None:
    """Else a restart would give one tenant's pages to the namespace of all."""
    plain, salted = pages(NAMESPACE, "plain"), pages(SALTED, "salted")
    for seed in range(20):
        shuffled = [*plain, *salted]
        random.Random(seed).shuffle(shuffled)  # noqa: S311 - an order, no secret
        families, found = Families(), []
        for page in shuffled:
            found += families.placed([page])
        assert 0 == families.num_waiting
        told = {page.digest: page.record.format.namespace for page in found if page.record}
        assert {page.digest: NAMESPACE for page in plain} | {
            page.digest: SALTED for page in salted
        } == told
        places = {page.digest: index for index, page in enumerate(found)}
        for page in found:
            assert page.record is not None
            assert places.get(page.record.parent, -1) < places[page.digest]


def test_what_hangs_on_a_missing_page_waits() -> None:
    """No request can use it, and its namespace is not known."""
    first, hole, third, fourth = pages(SALTED, "salted")
    families = Families()
    assert [first.digest] == [page.digest for page in families.placed([fourth, third, first])]
    assert 2 == families.num_waiting
    placed = families.placed([hole])
    assert [hole.digest, third.digest, fourth.digest] == [page.digest for page in placed]


def test_a_page_without_a_record_passes() -> None:
    """Whoever adopts it counts it as of no use."""
    page = StoredPage(digest=bytes(32), record=None, coverage=None)
    assert [page] == Families().placed([page])
