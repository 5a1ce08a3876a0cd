"""What came of one request of a benchmark, and its latencies as vLLM defines them. Pure.

Times are those at the client: a message counts when the client has it.
Source: https://docs.vllm.ai/en/latest/benchmarking/cli/
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

OK = "OK"
"""Status of a request that ran to its end."""
UNFINISHED = "UNFINISHED"
"""Status of one that was running when the run was cut short."""
NOT_SENT = "NOT_SENT"
"""Status of one that the run was too short for."""
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
READ_STRICTLY = ConfigDict(extra="forbid", strict=True)
"""How fields of a file are read back."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request. Seconds are since the run began, of a clock that only goes forward."""

    __pydantic_config__: ClassVar[ConfigDict] = READ_STRICTLY

    index: Count
    """Which prompt, from 0."""
    status: str
    """OK, UNFINISHED, NOT_SENT; else it failed: a gRPC status code, ABORT, NO_OUTPUT or NO_END."""
    error: str = ""
    """What the server said, if it failed."""
    due_s: float
    """When it was to be sent."""
    sent_s: float | None = None
    """When it was; later than due_s where it had to wait for its turn."""
    arrivals_s: tuple[float, ...] = ()
    """When each message with new tokens came, ascending."""
    arrived_tokens: tuple[Count, ...] = ()
    """Its tokens, each >= 1; as long as arrivals_s."""
    input_tokens: Count = 0
    """Of the prompt; 0 where the server did not say."""
    output_tokens: Count = 0
    """That came."""
    cached_tokens: Count = 0
    """Of the prompt, taken from the prefix cache; <= input_tokens."""
    num_preemptions: Count = 0
    num_retries: Count = 0
    """How often it was sent again, because no scheduler served it and no token had come; its times
    begin when it was sent first."""
    server_ttft_ms: float | None = None
    """TTFT as the scheduler measured it; None unless the request ran to its end."""

    @property
    def is_ok(self) -> bool:
        """Whether it ran to its end."""
        return self.status == OK

    @property
    def has_failed(self) -> bool:
        """Whether it ended otherwise than the client wanted."""
        return self.status not in {OK, UNFINISHED, NOT_SENT}

    @property
    def ttft_ms(self) -> float | None:
        """Sent -> the first message with tokens; None before that."""
        if self.sent_s is None or not self.arrivals_s:
            return None
        return 1000 * (self.arrivals_s[0] - self.sent_s)

    @property
    def e2el_ms(self) -> float | None:
        """Sent -> the last message with tokens; None before the first."""
        if self.sent_s is None or not self.arrivals_s:
            return None
        return 1000 * (self.arrivals_s[-1] - self.sent_s)

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token but the first; None of tokens that came in a single message."""
        if len(self.arrivals_s) < 2 or self.output_tokens < 2:
            return None
        return 1000 * (self.arrivals_s[-1] - self.arrivals_s[0]) / (self.output_tokens - 1)

    @property
    def itls_ms(self) -> tuple[float, ...]:
        """Gaps between messages with tokens; one a message, however many tokens it brings."""
        pairs = itertools.pairwise(self.arrivals_s)
        return tuple(1000 * (later - earlier) for earlier, later in pairs)

    def as_json(self) -> dict[str, Any]:
        """Return the fields."""
        return dataclasses.asdict(self)
