"""Every error that ChunkMesh raises on purpose. Pure: knows no gRPC (chunkmesh.status maps to it).

ChunkMeshError
+-- InvalidRequest        the caller's mistake: names the value and the limit
|   +-- NotFound          what the caller named is not there
+-- Unauthenticated       the caller does not say who it is, or with a key that is none
+-- Forbidden             the caller is known and may not do this
+-- ConfigError           a setting or a file that start-up cannot work with
+-- Unavailable           nobody can serve this now; trying again may help
|   +-- StageUnavailable  a stage of the route is missing or was lost
|   +-- Standby           this scheduler does not lead its mesh
+-- Overloaded            refused at the door; try again later
+-- SlowReader            the client does not take what it asked for
+-- DeadlineExceeded      the server's own time limit for a request
+-- StaleEpoch            a message of an earlier epoch
+-- LinkError             an activation link broke, or its peer broke the protocol
+-- CacheFault            the prefix cache failed; always handled as a miss
+-- ModelFault            the model gives no token for a request; trying again gives the same
+-- InvariantViolated     a bug of ours
"""

from __future__ import annotations


class ChunkMeshError(Exception):
    """Base of all errors raised on purpose."""


class InvalidRequest(ChunkMeshError):
    """The caller asked for something impossible; the text names the value and the limit."""

    def __init__(self, message: str, *, field: str = "") -> None:
        """Keep the request field at fault, in proto spelling, for google.rpc.BadRequest."""
        super().__init__(message)
        self.field = field


class NotFound(InvalidRequest):
    """What the caller named is not there; the text names it."""


class Unauthenticated(ChunkMeshError):
    """The caller does not say who it is, or with a key that is none; the text repeats no key."""


class Forbidden(ChunkMeshError):
    """The caller is known and may not do this; the text says who may."""


class ConfigError(ChunkMeshError):
    """A flag, variable or file that start-up cannot work with; the text says the remedy."""


class Unavailable(ChunkMeshError):
    """Nobody can serve this now."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        """Keep when the caller may try again."""
        super().__init__(message)
        self.retry_after_s = retry_after_s


class StageUnavailable(Unavailable):
    """A stage of the route is missing or was lost; the text names its layers."""


class Standby(Unavailable):
    """This scheduler does not lead its mesh: ask the one that does, or try again."""

    def __init__(
        self, message: str, *, retry_after_s: float | None = None, active: str = ""
    ) -> None:
        """Keep the address of the scheduler that leads; empty if nobody knows one."""
        super().__init__(message, retry_after_s=retry_after_s)
        self.active = active


class Overloaded(Unavailable):
    """The queue or the pages are full; refused at the door."""


class SlowReader(ChunkMeshError):
    """The client left too much unread, or for too long; the text names the limit."""


class DeadlineExceeded(ChunkMeshError):
    """A request took longer than the server allows; the text names the limit."""


class StaleEpoch(ChunkMeshError):
    """A message of an earlier epoch; it is dropped."""


class LinkError(ChunkMeshError):
    """An activation link broke, or its peer broke the protocol."""


class CacheFault(ChunkMeshError):
    """The prefix cache failed; handled as a miss, counted, never shown to a request."""


class ModelFault(ChunkMeshError):
    """The model gives no token for a request; trying again gives the same."""


class InvariantViolated(ChunkMeshError):
    """A bug of ours: state that must not exist."""


def reason_of(error: Exception) -> str:
    """Say why a file cannot be read or written, for a text that names the file itself."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
