"""Writes certificates for development into a folder: python -m deploy.certs FOLDER [NAME ...]."""

from __future__ import annotations

import argparse
from pathlib import Path

from deploy.certs.certificates import LOCAL_NAMES, write_all


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(prog="make certs", description=__doc__)
    parser.add_argument("folder", type=Path, help="where certificates and keys go")
    parser.add_argument("names", nargs="*", help="more host names or addresses of the services")
    given = parser.parse_args()
    write_all(given.folder, names=(*LOCAL_NAMES, *given.names))
    print(f"{given.folder}: ca.crt, and a .crt and .key for each role; not for production")


if __name__ == "__main__":
    main()
