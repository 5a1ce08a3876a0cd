"""Bearer keys from a file: one a line, each perhaps with the name of its tenant.

Kept as digests under a random secret of this process, and looked up by such a digest: nobody can
choose what is compared, so the time that it takes tells nothing about a key. The keys themselves
are nowhere once the file is read.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from chunkmesh.errors import ConfigError
from chunkmesh.trust.secret_file import read_secret_file
from chunkmesh.trust.watched_files import WatchedFiles

MIN_KEY_CHARACTERS = 16
MAX_KEY_CHARACTERS = 512
MAX_FILE_BYTES = 1 << 20
_KEY = re.compile(rf"[!-~]{{{MIN_KEY_CHARACTERS},{MAX_KEY_CHARACTERS}}}")
_TENANT = re.compile(r"[A-Za-z0-9._@-]{1,64}")


class KeyRing:
    """The keys of one file."""

    def __init__(self, tenants: Mapping[str, str]) -> None:
        """Take key -> tenant, and keep no key."""
        self._secret = secrets.token_bytes(32)
        self._tenants = {self._digest(key): tenant for key, tenant in tenants.items()}

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self._tenants)

    def tenant_of(self, key: str) -> str | None:
        """Return whose key this is, empty if its line names nobody; None if it is none."""
        return self._tenants.get(self._digest(key))

    def _digest(self, key: str) -> bytes:
        return hmac.digest(self._secret, key.encode(), "sha256")


KeyFile = WatchedFiles[KeyRing]


def key_file(path: Path, *, flag: str) -> KeyFile:
    """Read a file of keys, and again whenever it changes.

    Raises:
        ConfigError: it cannot be read, a line is none, or there is no key in it.
    """
    name = f"{flag} {path}"
    files = WatchedFiles((path,), lambda: read_keys(path, name=name), name=flag.removeprefix("--"))
    if not len(files.current()):
        raise ConfigError(f"{name}: no key in it")
    return files


def read_keys(path: Path, *, name: str) -> KeyRing:
    """Read KEY or KEY TENANT from each line that is neither empty nor begins with #.

    A file without a key lets nobody in, which is how all are revoked at once.

    Raises:
        ConfigError: it cannot be read, or a line is none; names the line, never its key.
    """
    content = read_secret_file(path, name=name, max_bytes=MAX_FILE_BYTES)
    tenants: dict[str, str] = {}
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        key, tenant = _parse(words, where=f"{name}: line {number}")
        if key in tenants:
            raise ConfigError(f"{name}: line {number}: a key that an earlier line has")
        tenants[key] = tenant
    return KeyRing(tenants)


def _parse(words: list[str], *, where: str) -> tuple[str, str]:
    """Return a line's key and tenant.

    Raises:
        ConfigError: it has neither.
    """
    key, *rest = words
    if not _KEY.fullmatch(key):
        limits = f"{MIN_KEY_CHARACTERS} to {MAX_KEY_CHARACTERS} printable ASCII characters"
        raise ConfigError(f"{where}: a key has {limits}, without spaces")
    if len(rest) > 1 or not all(map(_TENANT.fullmatch, rest)):
        raise ConfigError(f"{where}: behind the key at most a tenant: letters, digits and ._@-")
    return key, rest[0] if rest else ""
