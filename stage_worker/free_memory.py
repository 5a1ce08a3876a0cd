"""How much memory the machine has left.

The kernel lets a process have far more than there is, and ends it when it writes there.
"""

from __future__ import annotations

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")


def free_host_bytes() -> int | None:
    """Return what could be taken now without swapping; None where the system does not tell."""
    try:
        text = _MEMINFO.read_text(encoding="ascii")
    except OSError:
        return None
    found = re.search(r"^MemAvailable: +(\d+) kB$", text, re.MULTILINE)
    return None if found is None else 1024 * int(found[1])
