"""How tests are shared out among processes that run at the same time (see pytest_shares).

Tests of a file stay together, for the sake of what they share. All tests of whole meshes are one
share: their processes, which mostly wait, leave a processor to tests that only compute, but not to
each other.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_MESHES = "tests/integration/"


class Shares(LoadScopeScheduling):  # type: ignore[misc]
    """Implements the Scheduling of pytest-xdist; the largest share is the first."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the share that a test belongs to."""
        file = nodeid.partition("::")[0]
        return "meshes" if file.startswith(_MESHES) else file
