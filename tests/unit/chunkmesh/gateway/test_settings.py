"""Settings of the gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from chunkmesh.gateway.settings import GatewaySettings


@pytest.mark.parametrize(
    ("servers", "given", "expected"),
    [
        (["a:1"], {}, 0.0),
        (["a:1", "b:1"], {}, 30.0),
        (["a:1", "b:1"], {"retry_for": 0}, 0.0),
        (["a:1"], {"retry_for": 5}, 5.0),
    ],
)
def test_a_standby_that_is_named_is_waited_for(
    servers: list[str], given: dict[str, Any], expected: float
) -> None:
    """As the other clients do it."""
    settings = GatewaySettings.model_validate({"server": servers, **given})
    assert expected == settings.retry_for_s


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ssl_certfile": "c"}, "--ssl-certfile and --ssl-keyfile need each other"),
        ({"ssl_certfile": "c", "ssl_keyfile": "k"}, "--ssl-certfile needs --ssl-ca-certs"),
        ({"users_ssl_certfile": "c"}, "--users-ssl-certfile and --users-ssl-keyfile need"),
        ({"server": ["a:1", "a:1"]}, "the same server twice"),
        ({"server": []}, "at least 1"),
        ({"max_body_bytes": 64 << 20}, "max_body_bytes"),
    ],
)
def test_what_cannot_work_is_refused(given: dict[str, Any], words: str) -> None:
    """Before a client finds out."""
    with pytest.raises(ValidationError, match=words):
        GatewaySettings.model_validate(given)


def test_a_client_needs_no_certificate_of_its_own() -> None:
    """Other than between services, authorities alone make it TLS."""
    assert GatewaySettings(ssl_ca_certs=Path("ca.crt")).ssl_certfile is None
    assert GatewaySettings().scheduler_tls() is None
