"""Imports every module of the project and prints what cannot be; kernels may lack their package."""

from __future__ import annotations

import importlib
import pkgutil
import sys

PACKAGES = ("chunkmesh", "scheduler", "stage_worker", "hicache")
OPTIONAL = "stage_worker.kernels."


def main() -> int:
    """Return how many modules failed that should not."""
    failed = 0
    optional = 0
    num_modules = 0
    for package in map(importlib.import_module, PACKAGES):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.endswith("__main__"):
                continue
            num_modules += 1
            try:
                importlib.import_module(module.name)
            except ImportError as error:
                failed += 1
                optional += module.name.startswith(OPTIONAL)
                print(f"{module.name}: {error}")
    versions = {
        name: getattr(sys.modules[name], "__version__", "?")
        for name in ("torch", "triton", "grpc", "numpy", "ucxx", "pydantic", "google.protobuf")
        if name in sys.modules
    }
    print(f"{num_modules - failed} of {num_modules} modules imported; {versions}")
    return failed - optional


if __name__ == "__main__":
    sys.exit(main())
