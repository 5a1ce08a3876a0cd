"""How several outputs of one prompt part."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.actions import SendCopyPages
from scheduler.fork import copies, fork
from scheduler.request import Request, RequestState
from tests.specs import make_spec


def _first(prompt: int) -> Request:
    """Return the first output of three, with rows 4, 2, 7 and pages 10, 11, and so on."""
    spec = make_spec("a", prompt, max_new_tokens=9, num_outputs=3)
    request = Request(spec=spec, state=RequestState.PREFILL)
    num_pages = prompt // 16 + 3
    request.take_place((4, 2, 7), range(10, 10 + num_pages), page_tokens=16)
    return request


def _forked(prompt: int) -> tuple[Request, list[Request]]:
    """Return three outputs that go on."""
    first = _first(prompt)
    others = fork(first, 16)
    for output in (first, *others):
        output.move(RequestState.DECODE)
    return first, others


def test_one_page_table_each() -> None:
    """Full pages of the prompt are the same, the next one is each output's own."""
    first, others = _forked(40)
    assert first.table.page_ids == [10, 11, 12]
    assert [other.table.page_ids for other in others] == [[10, 11, 13], [10, 11, 14]]
    assert [output.row for output in (first, *others)] == [4, 2, 7]
    assert [output.child for output in (first, *others)] == [0, 1, 2]
    assert [output.num_pages_stored for output in others] == [2, 2]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (31, [SendCopyPages(epoch=1, source_ids=(11, 11), target_ids=(12, 13))]),
        (32, []),
        (33, [SendCopyPages(epoch=1, source_ids=(12, 12), target_ids=(13, 14))]),
    ],
)
def test_partial_page_is_copied(prompt: int, expected: list[SendCopyPages]) -> None:
    """Each writes its next token into the page that the prompt ends in, if it ends inside one."""
    first, others = _forked(prompt)
    assert copies(first, others, 16, epoch=1) == expected


def test_nothing_is_copied_for_who_has_ended() -> None:
    """The copy costs each stage a page of all its layers."""
    first, others = _forked(33)
    first.move(RequestState.FINISHED)
    others[0].move(RequestState.FINISHED)
    assert copies(first, others, 16, epoch=1) == [
        SendCopyPages(epoch=1, source_ids=(12,), target_ids=(14,))
    ]
    others[1].move(RequestState.LEAVING)
    assert copies(first, others, 16, epoch=1) == []


def test_it_stands_for_all_until_then() -> None:
    """Rows and pages of all are held, and an abort must end all."""
    first = _first(40)
    assert (first.rows, len(first.held_page_ids), list(first.children)) == ([4, 2, 7], 5, [0, 1, 2])
    first.output_ids.append(65)
    fork(first, 16)
    assert (first.rows, len(first.held_page_ids), list(first.children)) == ([4], 3, [0])


def test_a_request_parts_once() -> None:
    """There is nothing to give to the outputs of a second time."""
    first = _first(40)
    fork(first, 16)
    with pytest.raises(InvariantViolated, match="no rows are reserved"):
        fork(first, 16)
