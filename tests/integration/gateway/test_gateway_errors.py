"""What the mesh says of a failure, as HTTP tells it: a scripted scheduler behind a real gateway."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from openai import OpenAI

from chunkmesh.address import HostPort
from chunkmesh.errors import (
    ChunkMeshError,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    ModelFault,
    Overloaded,
    StageUnavailable,
    Unauthenticated,
)
from chunkmesh.ports import bind_unused
from tests.fake_generation import FakeGeneration
from tests.served_gateway import Served, served_gateway

BODY = {"model": "fake", "prompt": "x"}


@pytest.fixture(scope="module")
def scheduler() -> Iterator[FakeGeneration]:
    """Run a scheduler that plays a script."""
    server = FakeGeneration()
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _as_new(scheduler: FakeGeneration) -> Iterator[None]:
    """Let no test's failure be the next one's."""
    yield
    scheduler.error, scheduler.hang = None, False
    scheduler.cancelled = threading.Event()


@pytest.fixture(scope="module")
def served(scheduler: FakeGeneration) -> Iterator[Served]:
    """Run a gateway in front of it, with a short limit for requests."""
    with served_gateway(HostPort.parse(scheduler.address), request_timeout=1.0) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx2.Client]:
    """Yield a client without any library's help."""
    with httpx2.Client(base_url=served.url) as client:
        yield client


def post(http: httpx2.Client, **more: Any) -> httpx2.Response:
    """Ask for a completion."""
    return http.post("/v1/completions", json={**BODY, **more})


@pytest.mark.parametrize(
    ("error", "status", "retry_after", "kind"),
    [
        (InvalidRequest("x", field="text"), 400, None, "invalid_request_error"),
        (Unauthenticated("x"), 401, None, "authentication_error"),
        (Forbidden("x"), 403, None, "permission_error"),
        (Overloaded("x", retry_after_s=7), 429, "7", "rate_limit_error"),
        (ModelFault("x"), 500, None, "server_error"),
        (StageUnavailable("x", retry_after_s=2.5), 503, "3", "service_unavailable_error"),
        (DeadlineExceeded("x"), 504, None, "timeout_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_each_error_has_its_status(
    http: httpx2.Client,
    scheduler: FakeGeneration,
    error: ChunkMeshError,
    status: int,
    retry_after: str | None,
    kind: str,
    stream: bool,
) -> None:
    """A stream that has not begun can still be refused by its head."""
    scheduler.error = error
    answer = post(http, stream=stream)
    assert (status, kind) == (answer.status_code, answer.json()["error"]["type"])
    assert retry_after == answer.headers.get("retry-after")
    assert "application/json" == answer.headers["content-type"]


def test_a_request_that_takes_too_long_ends_with_504(
    http: httpx2.Client, scheduler: FakeGeneration
) -> None:
    """And on the mesh, too."""
    scheduler.hang = True
    answer = post(http)
    assert (504, "deadline_exceeded") == (answer.status_code, answer.json()["error"]["code"])
    assert scheduler.cancelled.wait(10)


def test_an_error_in_a_stream_is_raised_by_openais_client(
    served: Served, scheduler: FakeGeneration
) -> None:
    """What came before is delivered."""
    scheduler.hang = True
    with OpenAI(base_url=served.openai_url, api_key="x", max_retries=0) as client:
        said = ""
        with pytest.raises(openai.APIError, match="longer than the limit") as caught:  # noqa: PT012
            for chunk in client.completions.create(model="fake", prompt="x", stream=True):
                said += chunk.choices[0].text
    assert ("Hello world", "deadline_exceeded") == (said, caught.value.code)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_call(
    served: Served, scheduler: FakeGeneration, stream: bool
) -> None:
    """At once, and not when the mesh has something to say."""
    scheduler.hang = True
    with httpx2.Client(base_url=served.url, timeout=0.3) as http, pytest.raises(httpx2.ReadTimeout):
        post(http, stream=stream)
    assert scheduler.cancelled.wait(0.6), "not before the request's own limit"


def test_nobody_behind_is_503() -> None:
    """In words that tell no address inside."""
    with bind_unused("127.0.0.1") as bound:
        port = bound.getsockname()[1]
    nobody = HostPort(host="127.0.0.1", port=port)
    with served_gateway(nobody) as served, httpx2.Client(base_url=served.url) as http:
        answer = post(http)
        ready = http.get("/ready")
        assert 200 == http.get("/health").status_code
    assert (503, "1") == (answer.status_code, answer.headers["retry-after"])
    assert str(port) not in answer.text
    assert (503, "waiting") == (ready.status_code, ready.json()["state"])


def test_a_scheduler_that_is_gone_is_passed_over(scheduler: FakeGeneration) -> None:
    """Of several that one answers which serves."""
    with bind_unused("127.0.0.1") as bound:
        nobody = HostPort(host="127.0.0.1", port=bound.getsockname()[1])
    with (
        served_gateway(nobody, HostPort.parse(scheduler.address)) as served,
        httpx2.Client(base_url=served.url) as http,
    ):
        assert "Hello world" == post(http).json()["choices"][0]["text"]


def test_the_answers_id_is_the_meshs(http: httpx2.Client, scheduler: FakeGeneration) -> None:
    """Its timeline is found by it."""
    answer = post(http)
    assert answer.json()["id"] == scheduler.requests[-1].request_id
    assert answer.headers["x-request-id"] in answer.json()["id"]
    assert "mine" == post(http, request_id="mine").json()["id"]
