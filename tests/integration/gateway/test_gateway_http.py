"""The gateway's HTTP, asked without OpenAI's client: bounds, probes, metrics, and no secrets."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from chunkmesh.address import HostPort
from chunkmesh.gateway.token_names import TokenNames
from chunkmesh.v1 import generation_pb2 as pb
from tests.eventually import eventually_blocking
from tests.fake_generation import FakeGeneration, script
from tests.served_gateway import Served, served_gateway

MAX_BODY = 4096
KEY = "a-key-that-is-secret"
PROMPT = "a prompt that is secret"


@pytest.fixture(scope="module")
def scheduler() -> Iterator[FakeGeneration]:
    """Run a scheduler that plays a script."""
    server = FakeGeneration()
    yield server
    server.close()


@pytest.fixture(scope="module")
def served(scheduler: FakeGeneration) -> Iterator[Served]:
    """Run a gateway with narrow bounds."""
    with served_gateway(
        HostPort.parse(scheduler.address),
        max_body_bytes=MAX_BODY,
        max_requests=4,
        max_connections=8,
        unread_timeout=0.5,
    ) as running:
        yield running


@pytest.fixture
def http(served: Served) -> Iterator[httpx2.Client]:
    """Yield a client."""
    with httpx2.Client(base_url=served.url) as client:
        yield client


def body(**more: Any) -> dict[str, Any]:
    """Return the body of a completion."""
    return {"model": "fake", "prompt": PROMPT, **more}


def error_of(answer: httpx2.Response) -> tuple[int, str]:
    """Return an answer's status and code, and check that it has OpenAI's form."""
    error = answer.json()["error"]
    assert {"message", "type", "param", "code"} == error.keys()
    return answer.status_code, error["code"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/", (404, "unknown_url")),
        ("GET", "/docs", (404, "unknown_url")),
        ("GET", "/openapi.json", (404, "unknown_url")),
        ("POST", "/v1/embeddings", (404, "unknown_url")),
        ("POST", "/v1/completions/", (404, "unknown_url")),
        ("GET", "/v1/chat/completions", (405, "method_not_allowed")),
        ("DELETE", "/v1/models", (405, "method_not_allowed")),
    ],
)
def test_there_is_nothing_else(
    http: httpx2.Client, method: str, path: str, expected: tuple[int, str]
) -> None:
    """And what there is not is told in the same form."""
    assert expected == error_of(http.request(method, path))


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 4000, b'"\\ud800"', b"\xff"])
def test_a_body_that_is_no_json(http: httpx2.Client, content: bytes) -> None:
    """No matter how."""
    answer = http.post(
        "/v1/completions", content=content, headers={"content-type": "application/json"}
    )
    assert (400, "invalid_json") == error_of(answer)


def test_a_body_of_another_kind(http: httpx2.Client) -> None:
    """A form that a foreign page sends is no request."""
    answer = http.post("/v1/completions", data={"model": "fake"})
    assert (415, "invalid_type") == error_of(answer)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_that_is_too_long(http: httpx2.Client, is_chunked: bool) -> None:
    """Whether it says so before or not; the connection goes on or ends, but is not left open."""
    content = json.dumps(body(prompt="x" * MAX_BODY)).encode()
    parts = iter([content[:1000], content[1000:]])
    answer = http.post(
        "/v1/completions",
        content=parts if is_chunked else content,
        headers={"content-type": "application/json"},
    )
    assert (413, "too_long") == error_of(answer)
    assert 200 == http.post("/v1/completions", json=body()).status_code


def test_what_is_no_http(served: Served) -> None:
    """Is told in the same form, too."""
    address = (served.address.host, served.address.port)
    with socket.create_connection(address, 10) as connection:
        connection.sendall(b"no http\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert "invalid_request_error" == json.loads(content)["error"]["type"]


def test_too_many_prompts_are_429(http: httpx2.Client) -> None:
    """With a time to try again."""
    answer = http.post("/v1/completions", json=body(prompt=["a", "b", "c", "d", "e"]))
    assert (429, "rate_limit_exceeded") == error_of(answer)
    assert "1" == answer.headers["retry-after"]


def test_too_many_connections_are_closed(served: Served) -> None:
    """At once; those that are open are served."""
    address = (served.address.host, served.address.port)
    held = [socket.create_connection(address, 10) for _ in range(8)]
    try:
        held[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert held[0].recv(4096).startswith(b"HTTP/1.1 200 ")
        with (
            socket.create_connection(address, 10) as more,
            contextlib.suppress(ConnectionResetError),
        ):
            assert b"" == more.recv(1)
    finally:
        for connection in held:
            connection.close()


def test_a_slow_reader_is_cut_off(served: Served, scheduler: FakeGeneration) -> None:
    """Its call ends, and what it has not taken is dropped."""
    piece = pb.GenerateResponse(chunk=pb.GenerateStreamChunk(text="x" * 65536))
    scheduler.replies = [*[piece] * 400, script()[-1]]
    scheduler.cancelled.clear()
    try:
        sent = json.dumps(body(stream=True)).encode()
        address = (served.address.host, served.address.port)
        with socket.create_connection(address, 10) as connection:
            connection.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: x\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\n\r\n" % len(sent) + sent
            )
            assert scheduler.cancelled.wait(20)
            came = b""
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 20):
                    came += part
        assert b"HTTP/1.1 200 OK" == came[:15]
        assert b"[DONE]" not in came
        assert len(came) < 200 * 65536, "some hundred pieces wait in buffers of the system"
    finally:
        scheduler.replies = script()


def test_probes(http: httpx2.Client) -> None:
    """Liveness is the gateway's own."""
    assert 200 == http.get("/health").status_code
    assert 200 == http.get("/live").status_code
    assert 503 == http.get("/ready").status_code, "the scripted scheduler has no health service"


def samples(http: httpx2.Client) -> dict[tuple[str, str, str], float]:
    """Return the metrics of the gateway by name, route and status."""
    found = {}
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith("chunkmesh_gateway"):
                route, status = (sample.labels.get(name, "") for name in ("route", "status"))
                found[sample.name, route, status] = sample.value
    return found


def test_metrics_count_by_route_and_status(http: httpx2.Client) -> None:
    """Routes that there are not count as one: labels are bounded."""
    before = samples(http)
    http.post("/v1/completions", json=body())
    http.post("/v1/completions", json=body(colour=1))
    http.get("/a")
    http.get("/b")
    after = samples(http)

    def grew(name: str, route: str, status: str = "") -> float:
        key = (f"chunkmesh_gateway_{name}", route, status)
        return after.get(key, 0.0) - before.get(key, 0.0)

    assert 1 == grew("requests_total", "/v1/completions", "200")
    assert 1 == grew("requests_total", "/v1/completions", "400")
    assert 2 == grew("requests_total", "other", "404")
    assert 2 == grew("request_seconds_count", "/v1/completions")
    assert 0 == after["chunkmesh_gateway_requests_in_flight", "/v1/completions", ""]
    assert after["chunkmesh_gateway_connections", "", ""] >= 1


def test_a_bug_is_told_in_the_same_form(
    http: httpx2.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And logged by its place only: the text of an error may quote a prompt."""

    def fail(_self: TokenNames, _reply: pb.GenerateResponse) -> list[int]:
        raise KeyError(PROMPT)

    monkeypatch.setattr(TokenNames, "unknown", fail)
    with structlog.testing.capture_logs() as logs:
        answer = http.post("/v1/completions", json=body())
        assert (500, "server_error") == error_of(answer)
        eventually_blocking(lambda: "request ended" in {line["event"] for line in logs})
    (bug,) = [line for line in logs if line["event"] == "request failed"]
    assert "KeyError" == bug["error"]
    assert "test_gateway_http.py" in bug["stack"]
    assert PROMPT not in repr(logs)


def test_one_line_a_request_without_its_text(http: httpx2.Client) -> None:
    """Neither prompt nor output nor key, however the request ends."""
    with structlog.testing.capture_logs() as logs:

        def lines() -> list[Any]:
            return [line for line in logs if line["event"] == "request ended"]

        for more in ({}, {"stream": True}, {"colour": 1}, {"temperature": PROMPT}):
            answer = http.post(
                "/v1/completions", json=body(**more), headers={"authorization": f"Bearer {KEY}"}
            )
            answer.read()
        eventually_blocking(lambda: len(lines()) == 4)
    assert [200, 200, 400, 400] == sorted(line["status"] for line in lines())
    whole = lines()[0]
    assert (100, 3, "length") == (
        whole["prompt_tokens"],
        whole["output_tokens"],
        whole["finish_reason"],
    )
    for secret in (KEY, PROMPT, "Hello world"):
        assert secret not in repr(logs)
