"""Names of requests: an id is its user's own, whatever users and ids are called."""

from __future__ import annotations

import itertools

import pytest

from chunkmesh.errors import InvalidRequest
from scheduler.request_names import id_and_user, request_name

IDS = ("a", "ab", "b", "a b")
USERS = ("", "a", "b", "ab", "\0", "a\0b", "b\0")


def test_no_two_requests_of_different_ids_or_users_have_one_name() -> None:
    """Else a user who may choose his certificate's name could end another's requests."""
    pairs = list(itertools.product(IDS, USERS))
    names = [request_name(*pair) for pair in pairs]
    assert len(pairs) == len(set(names))
    assert pairs == [id_and_user(name) for name in names]


@pytest.mark.parametrize("request_id", ["a\0b", "\0", "x" * 129])
def test_an_id_that_is_none_has_no_name(request_id: str) -> None:
    """Of an id with the user's part in it the name would be another user's."""
    with pytest.raises(InvalidRequest, match="request_id"):
        request_name(request_id, "")


def test_without_users_names_are_ids() -> None:
    """A mesh of one user shows nothing of all this."""
    assert request_name("mine", "") == "mine"
