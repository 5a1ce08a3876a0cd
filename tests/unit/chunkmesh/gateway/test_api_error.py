"""Errors of the mesh in OpenAI's form."""

from __future__ import annotations

import pytest

from chunkmesh import errors
from chunkmesh.gateway.api_error import ApiError, of_mesh_error
from chunkmesh.gateway.sampling import NAMES


def all_errors(kind: type[errors.ChunkMeshError]) -> list[type[errors.ChunkMeshError]]:
    """Return an error and all that are special kinds of it."""
    return [kind, *(each for sub in kind.__subclasses__() for each in all_errors(sub))]


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request_error"),
        (errors.NotFound("x"), 404, "not_found_error"),
        (errors.Unauthenticated("x"), 401, "authentication_error"),
        (errors.Forbidden("x"), 403, "permission_error"),
        (errors.Overloaded("x"), 429, "rate_limit_error"),
        (errors.SlowReader("x"), 429, "rate_limit_error"),
        (errors.Unavailable("x"), 503, "service_unavailable_error"),
        (errors.StageUnavailable("x"), 503, "service_unavailable_error"),
        (errors.Standby("x"), 503, "service_unavailable_error"),
        (errors.StaleEpoch("x"), 503, "service_unavailable_error"),
        (errors.DeadlineExceeded("x"), 504, "timeout_error"),
        (errors.ModelFault("x"), 500, "server_error"),
        (errors.InvariantViolated("x"), 500, "server_error"),
        (errors.ConfigError("x"), 500, "server_error"),
        (errors.ChunkMeshError("x"), 500, "server_error"),
    ],
)
def test_each_has_its_status(error: errors.ChunkMeshError, status: int, kind: str) -> None:
    """Clients decide by it whether to try again."""
    told = of_mesh_error(error, {})
    body = told.body()["error"]
    assert isinstance(body, dict)
    assert (status, kind) == (told.status, body["type"])
    assert {"message", "type", "param", "code"} == body.keys()


@pytest.mark.parametrize("kind", all_errors(errors.ChunkMeshError))
def test_no_error_is_forgotten(kind: type[errors.ChunkMeshError]) -> None:
    """A new one has a status, a type and a code, too."""
    told = of_mesh_error(kind("x"), {})
    assert 400 <= told.status < 600
    assert told.code


@pytest.mark.parametrize(("after_s", "header"), [(None, "1"), (0.2, "1"), (1.0, "1"), (7.1, "8")])
@pytest.mark.parametrize("kind", [errors.Overloaded, errors.StageUnavailable])
def test_when_to_try_again_is_told_in_whole_seconds(
    kind: type[errors.Unavailable], after_s: float | None, header: str
) -> None:
    """Never earlier than the mesh says, and never at once."""
    told = of_mesh_error(kind("x", retry_after_s=after_s), {})
    assert {"retry-after": header} == told.headers()


def test_a_mistake_says_nothing_of_trying_again() -> None:
    """It would be the same mistake."""
    assert {} == of_mesh_error(errors.InvalidRequest("x"), {}).headers()


def test_who_is_not_known_hears_how_to_say_so() -> None:
    """HTTP asks for this header."""
    told = of_mesh_error(errors.Unauthenticated("x"), {})
    assert {"www-authenticate": "Bearer"} == told.headers()


def test_fields_are_told_by_the_clients_names() -> None:
    """The client has never heard of the mesh's."""
    error = errors.InvalidRequest(
        "min_new_tokens is 5, must be at most 4: max_new_tokens is 4",
        field="sampling_params.min_new_tokens",
    )
    told = of_mesh_error(error, {**NAMES, "max_new_tokens": "max_completion_tokens"})
    assert "min_tokens is 5, must be at most 4: max_completion_tokens is 4" == str(told)
    assert "min_tokens" == told.param


def test_a_word_of_english_is_no_field() -> None:
    """Of names only those with an underscore are sure to be one."""
    error = errors.InvalidRequest("the text of a chat is empty", field="chat")
    told = of_mesh_error(error, NAMES)
    assert ("the text of a chat is empty", "messages") == (str(told), told.param)


def test_what_is_not_set_up_is_not_told_in_detail() -> None:
    """A path of the server is none of its clients' business."""
    assert "/etc" not in str(of_mesh_error(errors.ConfigError("/etc/x cannot be read"), {}))


def test_an_error_of_no_field() -> None:
    """Both are null, as OpenAI writes it."""
    assert {
        "error": {"message": "x", "type": "server_error", "param": None, "code": None}
    } == ApiError(500, "x").body()
