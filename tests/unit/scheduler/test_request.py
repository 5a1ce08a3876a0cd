"""Request: its transitions and the tokens and digests of its pages."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from chunkmesh.errors import InvariantViolated
from chunkmesh.pages import extend_chain
from scheduler.part import take_chunk
from scheduler.prefill import Prefill
from scheduler.request import Request, RequestState
from tests.specs import NAMESPACE, make_spec

_ALLOWED = {
    ("waiting", "queued"),
    ("queued", "loading"),
    ("queued", "prefill"),
    ("loading", "prefill"),
    ("prefill", "decode"),
    *((state, "leaving") for state in ("loading", "prefill", "decode")),
    *(
        (state.value, later)
        for state in RequestState
        if state is not RequestState.FINISHED
        for later in ("waiting", "finished")
    ),
}


@pytest.mark.parametrize(("old", "new"), [*itertools.product(RequestState, RequestState)])
def test_transitions(old: RequestState, new: RequestState) -> None:
    """Whoever has not ended can end or wait again: its route can be lost in every state.

    One that has ended must do neither, for it would be answered twice.
    """
    request = Request(spec=make_spec("a", 8), state=old)
    if (old.value, new.value) in _ALLOWED:
        request.move(new)
        assert request.state is new
    else:
        with pytest.raises(InvariantViolated, match=f"a: {old.value} -> {new.value}"):
            request.move(new)


def test_tokens_across_the_end_of_the_prompt() -> None:
    """A page filled by decode begins in the prompt."""
    request = Request(spec=make_spec("a", 5), output_ids=[70, 71, 72])
    assert request.token_ids(3, 7).tolist() == [3, 4, 70, 71]
    assert request.token_ids(6, 8).tolist() == [71, 72]
    assert request.token_ids(0, 5).base is not None


def test_digests_go_on_behind_the_prompt() -> None:
    """The next turn of a chat sends prompt and answer as its prompt: both must give one chain."""
    request = Request(spec=make_spec("a", 20), output_ids=list(range(20, 50)))
    chain = extend_chain(NAMESPACE, np.arange(48, dtype=np.uint32), 16)
    assert chain == tuple(request.page_digest(index, 16) for index in range(3))
    assert request.page_digest(-1, 16) == NAMESPACE


@pytest.mark.parametrize("end", [0, 4, 9])
def test_chunk_is_of_what_is_left(end: int) -> None:
    """A chunk of nothing would be a forward over no tokens."""
    request = Request(spec=make_spec("a", 8), last_prefill=Prefill(start=4, end=8))
    with pytest.raises(InvariantViolated, match=f"chunk \\[4,{end}\\) of 8"):
        take_chunk(request, end)


def test_chunk_needs_a_prefill() -> None:
    """Who waits or decodes has nothing to cut."""
    with pytest.raises(InvariantViolated, match="has no prefill"):
        take_chunk(Request(spec=make_spec("a", 8)), 8)
