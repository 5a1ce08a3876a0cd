"""`python -m tests.soak`: clients of all manners for SOAK_SECONDS (600), then one table.

The exit status is 1 if a token was wrong, a client saw an end that it should not, or the mesh held
anything of a request at the end.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.bytes_tokenizer import write_bytes_folder
from tests.soak.soak import run_soak
from tests.tiny_models import make_tiny_llama

_WARM_UP_S = 60.0


def main() -> None:
    """Run it on a tiny model."""
    seconds = float(os.environ.get("SOAK_SECONDS", "600"))
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder)
        write_bytes_folder(model)
        make_tiny_llama(model)
        report = run_soak(model, seconds, warm_up_s=min(_WARM_UP_S, seconds / 3))
    print(report.table(), flush=True)
    tally = report.tally
    sys.exit(bool(tally.num_wrong or tally.unexpected or not report.rest_after.is_at_rest()))


if __name__ == "__main__":
    main()
