"""What all tests start from."""

from __future__ import annotations

import signal

# A shell starts background jobs with SIGINT ignored, and their children inherit that: commands that
# tests interrupt would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
