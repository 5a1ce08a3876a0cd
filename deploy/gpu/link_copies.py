"""Turns equal files of a folder into hard links, so that an archive holds each only once.

Usage: python link_copies.py FOLDER
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

_LEAST_BYTES = 4096


def link_copies(folder: Path) -> None:
    """Replace every later copy of a file by a link to the first."""
    first_of: dict[bytes, Path] = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or path.stat().st_size < _LEAST_BYTES:
            continue
        digest = hashlib.sha256(path.read_bytes()).digest()
        first = first_of.setdefault(digest, path)
        if first is not path:
            path.unlink()
            path.hardlink_to(first)


if __name__ == "__main__":
    link_copies(Path(sys.argv[1]))
