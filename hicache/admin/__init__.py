"""The command hicache-admin: looks into the prefix cache and changes it by hand.

Exit status: 0 done, 1 a service cannot be reached or refuses, 2 wrong usage, 3 nothing found. With
--json a command prints one object whose keys are stable (docs/hicache-admin.md).
"""

from hicache.admin.program import app, main

__all__ = ["app", "main"]
