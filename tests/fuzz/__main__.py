"""`python -m tests.fuzz`: each decoder for its share of FUZZ_SECONDS, then the services.

Guided by coverage where atheris can be imported, by mutation alone elsewhere. Each decoder has a
process of its own with bounded memory, so that one that takes too much ends as a finding.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import subprocess
import sys
from pathlib import Path

from tests.fuzz.all_targets import TARGETS

_MOST_BYTES = 16 << 30
"""Of addresses; torch maps several without using them."""
_SERVICES = (
    "test_door.py",
    "test_attach.py",
    "test_orders.py",
    "test_hicache.py",
    "test_sockets.py",
)
_SPARE_S = 60


def main() -> int:
    """Run all; return 1 if something was found."""
    seconds = float(os.environ.get("FUZZ_SECONDS", "600"))
    is_guided = importlib.util.find_spec("atheris") is not None
    share_s = max(1.0, seconds / (len(TARGETS) * (1 + is_guided) + len(_SERVICES)))
    print(
        f"{len(TARGETS)} decoders, {share_s:.0f} s each; coverage-guided: {is_guided}", flush=True
    )
    found = []
    for target in TARGETS:
        if is_guided and not _run("tests.fuzz.guided", target.name, share_s=share_s):
            found.append(f"{target.name} (guided)")
        if not _pytest("test_decoders.py", f"test_hostile_bytes[{target.name}]", share_s=share_s):
            found.append(target.name)
    found += [name for name in _SERVICES if not _pytest(name, "", share_s=share_s)]
    print("found: " + ", ".join(found) if found else "nothing found")
    return int(bool(found))


def _pytest(file: str, test: str, *, share_s: float) -> bool:
    where = str(Path(__file__).parent / file) + (f"::{test}" if test else "")
    options = ("-q", "--no-header", "-s", "--timeout=0", "--durations=0", "-p", "no:cacheprovider")
    return _run("pytest", where, *options, share_s=share_s)


def _run(module: str, *arguments: str, share_s: float) -> bool:
    print(f"== {module} {arguments[0]}", flush=True)
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        check=False,
        timeout=2 * share_s + _SPARE_S,
        env={**os.environ, "FUZZ_SECONDS_EACH": str(share_s)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES)),
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
