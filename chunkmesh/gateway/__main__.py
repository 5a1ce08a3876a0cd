"""The command chunkmesh-gateway."""

from __future__ import annotations

import importlib.util
import sys
from typing import Never

from chunkmesh import service
from chunkmesh.gateway.settings import GatewaySettings


def main() -> Never:
    """Run until SIGTERM or SIGINT."""
    if importlib.util.find_spec("fastapi") is None:
        sys.stderr.write(
            f"{GatewaySettings.command}: FastAPI is not installed: pip install"
            " 'chunkmesh[gateway]'\n"
        )
        sys.exit(service.EXIT_USAGE)
    from chunkmesh.gateway.server import serve  # noqa: PLC0415 - it needs FastAPI

    service.run(GatewaySettings, serve)


if __name__ == "__main__":
    main()
