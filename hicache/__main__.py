"""The command hicache-server."""

from __future__ import annotations

from typing import Never

from chunkmesh import service
from hicache.server import serve
from hicache.settings import HiCacheSettings


def main() -> Never:
    """Run until SIGTERM or SIGINT."""
    service.run(HiCacheSettings, serve)


if __name__ == "__main__":
    main()
