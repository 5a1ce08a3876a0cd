"""Who changed the cache by hand: a log line, and a capped log in Redis that all replicas show.

What a full or absent Redis did not take waits here for the next entry, or for somebody who asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import deque

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from chunkmesh.store_thread import StoreThread

KEY = b"cm-audit"
MAX_ENTRIES = 10_000
_MAX_WAITING = 1000
_MAX_TEXT_BYTES = 1000
_MAX_DIGITS = len(str(2**63))

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a change."""

    peer: str
    """Address."""
    name: str
    """Of the certificate, else the address; and of somebody else who asked for the change."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One change by hand."""

    peer: str
    """Address of the caller."""
    caller: str
    """Who that is; empty in entries of earlier versions."""
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
        self._waiting: deque[Deed] = deque(maxlen=_MAX_WAITING)
        """Not in Redis yet, the oldest first; of too many the oldest are left to the log lines."""
        self._saving = asyncio.Lock()

    async def record(self, deed: Deed) -> None:
        """Note a deed; its time is when Redis takes it."""
        _log.info("changed by hand", **dataclasses.asdict(deed))
        self._waiting.append(deed)
        try:
            await self._save()
        except CacheFault as error:
            _log.warning("change not in the audit log yet", error=str(error), method=deed.method)

    async def newest(self, num_entries: int) -> list[tuple[int, Deed]]:
        """Return (Unix time in ms, deed), newest first; what is no entry is left out.

        Raises:
            CacheFault: Redis does not answer.
        """
        with contextlib.suppress(CacheFault):
            await self._save()
        entries = await self._store.call(lambda store: KvAdmin(store).newest(KEY, num_entries))
        deeds = ((unix_ms, decode_deed(fields)) for unix_ms, fields in entries)
        return [(unix_ms, deed) for unix_ms, deed in deeds if deed is not None]

    async def _save(self) -> None:
        """Append what waits.

        Raises:
            CacheFault: Redis does not answer, or is full; all goes on waiting.
        """
        async with self._saving:
            deeds = list(self._waiting)
            if not deeds:
                return
            entries = [_fields(deed) for deed in deeds]
            await self._store.call(
                lambda store: KvAdmin(store).append(KEY, entries, max_entries=MAX_ENTRIES)
            )
            for deed in deeds:
                if self._waiting and self._waiting[0] is deed:
                    self._waiting.popleft()


def _fields(deed: Deed) -> dict[bytes, bytes]:
    values = dataclasses.asdict(deed)
    return {name.encode(): str(value).encode() for name, value in values.items()}


def decode_deed(fields: dict[bytes, bytes]) -> Deed | None:
    """Read an entry; None if it is none of this version, or one that no message could show."""
    try:
        return Deed(
            peer=_text(fields[b"peer"]),
            caller=_text(fields.get(b"caller", b"")),
            method=_text(fields[b"method"]),
            request=_text(fields[b"request"]),
            num_pages=_count(fields[b"num_pages"]),
            num_bytes=_count(fields[b"num_bytes"]),
        )
    except (KeyError, ValueError):
        return None


def _text(value: bytes) -> str:
    if len(value) > _MAX_TEXT_BYTES:
        raise ValueError(len(value))
    return value.decode()


def _count(value: bytes) -> int:
    if not (value.isdigit() and len(value) <= _MAX_DIGITS and int(value) < 1 << 63):
        raise ValueError(value[:_MAX_DIGITS])
    return int(value)
