"""What recording timelines costs: `python -m tests.bench.timeline`.

A microbatch of one chunk and one of 64 decode rows, on 2 and 8 stages, recorded and acknowledged;
beside it the memory of what is kept. Five runs each; best and spread are shown.
"""

from __future__ import annotations

import time
import tracemalloc

import numpy as np

from scheduler.actions import PlannedEntry, SendMicrobatch
from scheduler.timeline import AckTimes, Timeline, Track

_NUM_MICROBATCHES = 4000
_NUM_RUNS = 5


def _microbatches(num_entries: int, num_stages: int) -> list[SendMicrobatch]:
    """Return microbatches that all carry the same requests."""
    ids = np.zeros(num_entries, dtype=np.uint32)
    return [
        SendMicrobatch(
            epoch=1,
            seq_no=seq_no,
            entries=tuple(
                PlannedEntry(
                    request_id=f"r{row}",
                    row=row,
                    start=1000 + seq_no,
                    num_tokens=1,
                    new_page_ids=(),
                )
                for row in range(num_entries)
            ),
            token_ids=ids,
            samples=(),
            predicted_ms=(1.0,) * num_stages,
        )
        for seq_no in range(_NUM_MICROBATCHES)
    ]


def _record(
    microbatches: list[SendMicrobatch], *, num_stages: int, follows: bool
) -> tuple[list[Track], float]:
    """Record all; return the tracks and the seconds taken."""
    timeline = Timeline(max_microbatches=_NUM_MICROBATCHES)
    timeline.begin(1, num_stages)
    names = [entry.request_id for entry in microbatches[0].entries] if follows else []
    tracks = [timeline.follow(name, arrived_s=0.0) for name in names]
    begin_s = time.perf_counter()
    for seq_no, microbatch in enumerate(microbatches):
        timeline.sent(microbatch)
        for stage in range(num_stages):
            times = AckTimes(
                started_us=1000 * seq_no,
                acked_us=1000 * seq_no + 900,
                wait_us=seq_no,
                compute_us=900 + stage,
                send_us=700 + seq_no,
            )
            timeline.acked(1, stage, seq_no, times, heard_s=begin_s)
    return tracks, time.perf_counter() - begin_s


def main() -> None:
    """Print one line for each kind of microbatch."""
    for num_entries in (1, 64):
        for num_stages in (2, 8):
            given = _microbatches(num_entries, num_stages)
            taken_us = [
                [
                    1e6 * _record(given, num_stages=num_stages, follows=follows)[1] / len(given)
                    for _ in range(_NUM_RUNS)
                ]
                for follows in (False, True)
            ]
            tracemalloc.start()
            tracks, _ = _record(given, num_stages=num_stages, follows=True)
            kept_bytes = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            begin_s = time.perf_counter()
            tracks[0].timings()
            told_ms = 1000 * (time.perf_counter() - begin_s)
            unfollowed, followed = (min(each) for each in taken_us)
            print(
                f"{num_entries:>3} entries, {num_stages} stages: {followed:6.1f} us a microbatch"
                f" (spread {max(taken_us[1]) / followed:.2f}x),"
                f" {unfollowed:6.1f} us if nobody is followed;"
                f" {kept_bytes / len(given):6.0f} bytes kept;"
                f" {told_ms:5.1f} ms to tell {len(given)} of one request"
            )


if __name__ == "__main__":
    main()
