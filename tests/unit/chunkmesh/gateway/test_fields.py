"""Fields of a JSON object: each taken once with its type, and none left over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.fields import Fields


def refusal(take: Callable[[], object]) -> ApiError:
    """Return the error that taking a field raises."""
    with pytest.raises(ApiError) as caught:
        take()
    assert 400 == caught.value.status
    return caught.value


@pytest.mark.parametrize("value", [None, 1, "x", [], True])
def test_a_request_is_an_object(value: object) -> None:
    """Whatever else is JSON has no fields."""
    assert "must be a JSON object" in str(refusal(lambda: Fields(value)))


def test_null_is_absent() -> None:
    """OpenAI's clients write it for what nobody has set."""
    fields = Fields({"a": None, "b": None})
    assert (None, None) == (fields.text("a"), fields.whole("b"))
    fields.end()


@pytest.mark.parametrize(
    ("take", "value"),
    [
        ("text", 1),
        ("text", ["x"]),
        ("flag", 1),
        ("flag", "true"),
        ("whole", 1.0),
        ("whole", True),
        ("whole", "1"),
        ("number", "1"),
        ("number", False),
        ("number", 10**400),
        ("members", {}),
        ("members", "x"),
        ("inner", []),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(take: str, value: object) -> None:
    """A client learns which field, and what it must be."""
    error = refusal(lambda: getattr(Fields({"a": value}, path="m[0]"), take)("a"))
    assert ("m[0].a", "invalid_type") == (error.param, error.code)
    assert "m[0].a must be" in str(error)


def test_a_value_is_not_shown() -> None:
    """It may be a prompt, and errors are logged by clients."""
    assert "secret" not in str(refusal(lambda: Fields({"a": "secret"}).whole("a")))


@pytest.mark.parametrize(("value", "shown"), [(0, "0"), (11, "11"), (10**300, "out of range")])
def test_a_number_out_of_bounds_is_refused_with_the_bounds(value: int, shown: str) -> None:
    """And a huge one is not written out."""
    error = refusal(lambda: Fields({"a": value}).whole("a", least=1, most=10))
    assert f"a is {shown}, must be from 1 to 10" == str(error)


def test_what_nobody_takes_is_refused_by_name() -> None:
    """A typo is told at once, instead of doing nothing in silence."""
    error = refusal(Fields({"temprature": 1}).end)
    assert ("temprature", "unknown_parameter") == (error.param, error.code)


@pytest.mark.parametrize("value", [False, {"type": "text"}, 1, 1.0])
def test_an_unsupported_field_may_ask_for_nothing(value: Any) -> None:
    """Clients write such values out."""
    fields = Fields({"a": value})
    fields.refuse({"a": (False, {"type": "text"}, 1)})
    fields.end()


@pytest.mark.parametrize("value", [True, 0, {"type": "json_object"}, "1"])
def test_an_unsupported_field_that_asks_for_something_is_refused(value: Any) -> None:
    """An answer without what was asked for would look right; true is not 1, nor false 0."""
    error = refusal(lambda: Fields({"a": value}).refuse({"a": (False, {"type": "text"}, 1)}))
    assert ("a", "unsupported_parameter") == (error.param, error.code)
