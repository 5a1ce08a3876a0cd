"""Settings of chunkmesh-gateway."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from chunkmesh.address import HostPort
from chunkmesh.grpc_options import MAX_MESSAGE_BYTES, MAX_STREAMS
from chunkmesh.settings import Address, Port, Settings
from chunkmesh.trust.tls_files import TlsFiles, TlsPaths, tls_files

_SYSTEM = Path("system")
_RETRY_FOR_S = 30.0
"""Much longer than a take-over."""
_MESSAGE_ROOM_BYTES = 1 << 20
"""For what a request has beside its prompt."""


class GatewaySettings(Settings):
    """Serves the OpenAI API over HTTP, in front of a mesh's scheduler."""

    service: ClassVar[str] = "gateway"
    command: ClassVar[str] = "chunkmesh-gateway"

    server: Annotated[tuple[Address, ...], Field(min_length=1)] = (
        HostPort(host="127.0.0.1", port=50051),
    )
    """Users' port of the mesh's scheduler, and of those that stand by."""
    retry_for: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Seconds to try a request again while no scheduler serves, unless output has come; 30 with
    several servers and 0 with one, if not given."""
    ssl_certfile: Path | None = None
    """PEM file of the certificate to show to the scheduler, where it asks for one."""
    ssl_keyfile: Path | None = None
    """PEM file of the key of --ssl-certfile."""
    ssl_ca_certs: Path | None = None
    """Call the scheduler by TLS, and trust the authorities of this PEM file; system for those of
    gRPC."""
    port: Port = 8000
    """HTTP port."""
    users_ssl_certfile: Path | None = None
    """PEM file of the certificate of the HTTP port, which speaks HTTPS then."""
    users_ssl_keyfile: Path | None = None
    """PEM file of the key of --users-ssl-certfile."""
    max_body_bytes: Annotated[int, Field(ge=1024, le=MAX_MESSAGE_BYTES - _MESSAGE_ROOM_BYTES)] = (
        32 << 20
    )
    """Most bytes of a request; bodies of all open requests may have eight times that together."""
    max_requests: Annotated[int, Field(ge=1, le=MAX_STREAMS)] = 1024
    """Most prompts that are open at a time; more are refused with 429."""
    max_connections: Annotated[int, Field(ge=1)] = 2048
    """Most HTTP connections; more are closed at once."""
    request_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Seconds that a request may take, waiting included; then it ends with 504. 0 means no
    limit."""
    unread_timeout: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60.0
    """Seconds that output may wait for a client that does not read; then its connection is
    closed."""
    drain_timeout: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 30.0
    """Seconds that open requests get to finish on SIGTERM."""

    @model_validator(mode="after")
    def _check_ssl(self) -> Self:
        """Other than between services, the scheduler may ask for no certificate."""
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ValueError("--ssl-certfile and --ssl-keyfile need each other")
        if self.ssl_certfile is not None and self.ssl_ca_certs is None:
            raise ValueError("--ssl-certfile needs --ssl-ca-certs FILE, or system")
        if (self.users_ssl_certfile is None) != (self.users_ssl_keyfile is None):
            raise ValueError("--users-ssl-certfile and --users-ssl-keyfile need each other")
        if len(set(self.server)) < len(self.server):
            raise ValueError("--server names the same server twice")
        return self

    @property
    def retry_for_s(self) -> float:
        """Seconds to try a request again."""
        if self.retry_for is not None:
            return self.retry_for
        return _RETRY_FOR_S if len(self.server) > 1 else 0.0

    def scheduler_tls(self) -> TlsFiles | None:
        """Read the files for the scheduler; None is plain text.

        Raises:
            ConfigError: one does not do.
        """
        if self.ssl_ca_certs is None:
            return None
        paths = TlsPaths(
            certfile=self.ssl_certfile,
            keyfile=self.ssl_keyfile,
            ca_certs=None if self.ssl_ca_certs == _SYSTEM else self.ssl_ca_certs,
        )
        return tls_files(paths, name="client")
