"""`python -m tests.soak`: clients of all manners and faults for --seconds, then one table.

The exit status is 1 if a token was wrong, a client saw an end that it should not, or the mesh held
anything of a request at the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.bytes_tokenizer import write_bytes_folder
from tests.soak.faults import FAULTS
from tests.soak.soak import run_soak
from tests.tiny_models import make_tiny_llama

_WARM_UP_S = 60.0


def main() -> None:
    """Run it on a tiny model."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    parser.add_argument("--seconds", type=float, default=seconds, help="SOAK_SECONDS, or 600")
    parser.add_argument("--faults", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_bytes_folder(model)
        make_tiny_llama(model)
        report = run_soak(
            model,
            options.seconds,
            warm_up_s=min(_WARM_UP_S, options.seconds / 3),
            faults=tuple(FAULTS) if options.faults else (),
            seed=options.seed,
        )
    print(report.table(), flush=True)
    tally = report.tally
    sys.exit(bool(tally.num_wrong or tally.unexpected or not report.rest_after.is_at_rest()))


if __name__ == "__main__":
    main()
