"""Who changed the cache by hand: a log line, and a capped log in Redis that all replicas show."""

from __future__ import annotations

import dataclasses

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from hicache.store_thread import StoreThread

KEY = b"cm-audit"
MAX_ENTRIES = 10_000

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One change by hand."""

    peer: str
    """Address of the caller."""
    method: str
    """Name of the RPC."""
    request: str
    """What was asked for, in words."""
    num_pages: int
    num_bytes: int


class AuditLog:
    """Owner of the log in Redis, whose clock gives the times."""

    def __init__(self, store: StoreThread) -> None:
        self._store = store

    async def record(self, deed: Deed) -> None:
        """Note a deed; while Redis is away only the log line is left of it."""
        values = dataclasses.asdict(deed)
        _log.info("changed by hand", **values)
        fields = {name.encode(): str(value).encode() for name, value in values.items()}
        try:
            await self._store.call(
                lambda store: KvAdmin(store).append(KEY, [fields], max_entries=MAX_ENTRIES)
            )
        except CacheFault as error:
            _log.warning("change not in the audit log", error=str(error), method=deed.method)

    async def newest(self, num_entries: int) -> list[tuple[int, Deed]]:
        """Return (Unix time in ms, deed), newest first; what is no entry is left out.

        Raises:
            CacheFault: Redis does not answer.
        """
        entries = await self._store.call(lambda store: KvAdmin(store).newest(KEY, num_entries))
        deeds = ((unix_ms, _deed(fields)) for unix_ms, fields in entries)
        return [(unix_ms, deed) for unix_ms, deed in deeds if deed is not None]


def _deed(fields: dict[bytes, bytes]) -> Deed | None:
    try:
        texts = {name.decode(): value.decode() for name, value in fields.items()}
        return Deed(
            peer=texts["peer"],
            method=texts["method"],
            request=texts["request"],
            num_pages=int(texts["num_pages"]),
            num_bytes=int(texts["num_bytes"]),
        )
    except (KeyError, ValueError):
        return None
