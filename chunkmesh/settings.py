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
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from chunkmesh.address import LOOPBACK, HostPort, Listen
from chunkmesh.errors import ConfigError
from chunkmesh.known_settings import flag_of
from chunkmesh.layers import LayerRange
from chunkmesh.logs import LogFormat, LogLevel


def _parse_address(value: object) -> object:
    return _checked(HostPort.parse, value)


def _parse_layers(value: object) -> object:
    return _checked(LayerRange.parse, value)


def _checked(parse: Callable[[str], object], value: object) -> object:
    try:
        return parse(value) if isinstance(value, str) else value
    except ConfigError as error:
        raise ValueError(str(error)) from error


Address = Annotated[HostPort, BeforeValidator(_parse_address)]
"""Type of a field written as HOST:PORT."""
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

    host: str = LOOPBACK
    """Address to listen on; 0.0.0.0 opens every network of this machine."""
    log_level: LogLevel = "info"
    """Least severe log lines to write."""
    log_format: LogFormat = "json"
    """One JSON object a line, or text for people."""

    def listen(self, field: str) -> Listen:
        """Return where to listen by a port field; a port that was not given may move."""
        port = getattr(self, field)
        assert isinstance(port, int)
        explicit = field in self.model_fields_set
        return Listen(host=self.host, port=port, flag=flag_of(field), explicit=explicit)
