"""What waits for a client that does not read is bounded; a client that reads is never slow."""

from __future__ import annotations

import numpy as np
import pytest

from chunkmesh.errors import SlowReader
from chunkmesh.logprobs import TokenLogprobs
from scheduler.actions import Output, PromptLogprobs
from scheduler.request_stream import RequestStream


class Reader:
    """A stream and what was said about its reader."""

    def __init__(self, max_unread_bytes: int) -> None:
        self.slow: list[SlowReader] = []
        self.stream = RequestStream(
            prompt_tokens=10,
            arrived_s=100.0,
            max_unread_bytes=max_unread_bytes,
            on_slow=self.slow.append,
        )

    def get(self, num_tokens: int, text: str = "x") -> None:
        """Let so many tokens come, one by one."""
        for _ in range(num_tokens):
            self.stream.output(Output(request_id="r", child=0, token_ids=(65,), text=text), 101.0)


def logprobs_of(num_tokens: int, num_top: int) -> TokenLogprobs:
    """Return log-probabilities with so many of the most likely ids."""
    return TokenLogprobs(
        logprobs_T=np.zeros(num_tokens, dtype=np.float32),
        top_ids_Tk=np.zeros((num_tokens, num_top), dtype=np.uint32),
        top_logprobs_Tk=np.zeros((num_tokens, num_top), dtype=np.float32),
    )


def test_who_takes_nothing_is_slow_once_the_limit_is_passed() -> None:
    """Six bytes a token, and the limit itself is allowed."""
    reader = Reader(60)
    reader.stream.offered_s = 100.5
    reader.get(10)
    assert [] == reader.slow
    reader.get(5)
    assert ["66 bytes wait for a client that does not read, the limit is 60 "] == [
        str(each).partition("(")[0] for each in reader.slow
    ]


def test_who_is_not_offered_anything_is_not_slow() -> None:
    """A burst reaches a reader that waits for it: it could not have read it before it came."""
    reader = Reader(60)
    reader.get(1000)
    assert [] == reader.slow


async def test_what_was_taken_does_not_wait() -> None:
    """A slow but steady reader goes on for ever."""
    reader = Reader(60)
    for _ in range(100):
        reader.get(10)
        await reader.stream.next_update()
        reader.stream.offered_s = 100.5
    assert [] == reader.slow


@pytest.mark.parametrize(("num_top", "fits"), [(0, 250), (20, 5)])
def test_log_probabilities_count(num_top: int, fits: int) -> None:
    """They are most of such a stream: 4 bytes a token, and 9 for each of the most likely ids."""
    for num_tokens, is_slow in ((fits, False), (fits + 1, True)):
        reader = Reader(1000)
        reader.stream.offered_s = 100.5
        news = PromptLogprobs(request_id="r", start=1, logprobs=logprobs_of(num_tokens, num_top))
        reader.stream.prompt_logprobs(news)
        assert is_slow == bool(reader.slow)


async def test_what_waits_is_dropped_when_the_call_is_given_up() -> None:
    """Its memory is what the limit is for; the log line says why it ended."""
    reader = Reader(60)
    reader.get(1000)
    reader.stream.give_up(SlowReader("slow"))
    reader.get(1)
    update = await reader.stream.next_update()
    assert 1 == len(update.outputs[0].token_ids)
    assert "SlowReader" == reader.stream.finish_reason
