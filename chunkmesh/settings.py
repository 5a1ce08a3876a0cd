"""The base of every service's settings class, and the types of fields.

Every field of a settings class is a flag (--page-size), a variable (CHUNKMESH_PAGE_SIZE) and a key
of the TOML file (page-size or page_size). The docstring under a field is its help text.

    class WorkerSettings(Settings):
        \"\"\"Serves one contiguous range of layers.\"\"\"

        service: ClassVar[str] = "stage_worker"
        command: ClassVar[str] = "stage-worker"
        flag_aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"peer": ("--next",)}

        layers: Layers
        \"\"\"Layers to serve: 15-29 includes 29, 15:30 does not include 30.\"\"\"
        peer: Address | None = None
        \"\"\"Preferred data address of the next stage.\"\"\"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from chunkmesh.address import LOOPBACK, HostPort, Listen
from chunkmesh.errors import ConfigError
from chunkmesh.known_settings import flag_of
from chunkmesh.layers import LayerRange
from chunkmesh.logs import LogFormat, LogLevel
from chunkmesh.trust.access import Role
from chunkmesh.trust.tls_files import TlsFiles, TlsPaths, tls_files

_MAX_HOST_CHARACTERS = 253


def _parse_address(value: object) -> object:
    return _checked(HostPort.parse, value)


def _parse_layers(value: object) -> object:
    return _checked(LayerRange.parse, value)


def _check_host(value: str) -> str:
    if value.startswith("[") and value.endswith("]"):
        raise ValueError(f"write an IPv6 address without brackets here: {value[1:-1]}")
    is_plain = value.isascii() and value.isprintable() and not set(value) & set(" []/@")
    if not is_plain or len(value) > _MAX_HOST_CHARACTERS:
        raise ValueError("should be the name or address of a host, such as 127.0.0.1")
    return value


def _checked(parse: Callable[[str], object], value: object) -> object:
    try:
        return parse(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(str(error)) from error


Address = Annotated[HostPort, BeforeValidator(_parse_address)]
"""Type of a field written as HOST:PORT."""
Host = Annotated[str, AfterValidator(_check_host)]
"""Type of a field that holds a host by name or by address; may be empty where the field says so."""
Layers = Annotated[LayerRange, BeforeValidator(_parse_layers)]
"""Type of a field written as 15-29 or 15:30."""
Port = Annotated[int, Field(ge=0, le=65535)]
"""Type of a field that holds a port; 0 lets the system choose."""


class Settings(BaseModel):
    """What every service can be told."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True
    )

    service: ClassVar[str] = ""
    """Name of the service: its table in the file, its name in logs."""
    command: ClassVar[str] = ""
    """Name of its program, for --help."""
    flag_aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """More flags for a field, such as {"model_path": ("--model",)}."""

    host: Annotated[Host, Field(min_length=1)] = LOOPBACK
    """Address to listen on; 0.0.0.0 opens every network of this machine."""
    ssl_certfile: Path | None = None
    """PEM file of this service's certificate, which stands for its role by the name
    scheduler.chunkmesh, worker.chunkmesh or hicache.chunkmesh. With it, its key and its authority
    all links between services are mutual TLS. Changed files are used for new connections."""
    ssl_keyfile: Path | None = None
    """PEM file of the key of --ssl-certfile."""
    ssl_ca_certs: Path | None = None
    """PEM file of the mesh's authorities, which all services' certificates are signed by."""
    log_level: LogLevel = "info"
    """Least severe log lines to write."""
    log_format: LogFormat = "json"
    """One JSON object a line, or text for people."""

    @model_validator(mode="after")
    def _check_ssl(self) -> Self:
        files = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
        missing = [flag_of(name) for name in files if getattr(self, name) is None]
        if missing and len(missing) < len(files):
            raise ValueError(f"TLS between services needs {missing[0]} as well")
        return self

    def mesh_tls(self, role: Role) -> TlsFiles | None:
        """Read this service's certificate, which must stand for role; None without TLS.

        Raises:
            ConfigError: a file does not do.
        """
        if self.ssl_certfile is None:
            return None
        paths = TlsPaths(
            certfile=self.ssl_certfile, keyfile=self.ssl_keyfile, ca_certs=self.ssl_ca_certs
        )
        return tls_files(paths, name="mesh", role=role)

    def listen(self, field: str) -> Listen:
        """Return where to listen by a port field; a port that was not given may move."""
        port = getattr(self, field)
        assert isinstance(port, int)
        explicit = field in self.model_fields_set
        return Listen(host=self.host, port=port, flag=flag_of(field), explicit=explicit)
