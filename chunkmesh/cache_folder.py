"""Where programs of ChunkMesh keep what they can make again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache_folder() -> Path:
    """Return the cache folder of the XDG base directory specification."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
