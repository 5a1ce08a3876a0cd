"""Whatever JSON comes, a request is read or refused in OpenAI's form."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.asked import Asked
from chunkmesh.gateway.chat_request import read_chat
from chunkmesh.gateway.completion_request import read_completion
from chunkmesh.gateway.known_fields import IGNORED, UNSUPPORTED_CHAT, UNSUPPORTED_COMPLETION

_NAMES = sorted(
    {
        *IGNORED,
        *UNSUPPORTED_CHAT,
        *UNSUPPORTED_COMPLETION,
        *(
            "model",
            "prompt",
            "messages",
            "stream",
            "stream_options",
            "n",
            "best_of",
            "stop",
            "seed",
        ),
        *("max_tokens", "max_completion_tokens", "min_tokens", "logprobs", "top_logprobs", "top_k"),
        *("temperature", "top_p", "min_p", "logit_bias", "stop_token_ids", "ignore_eos"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty", "skip_special_tokens"),
        *("priority", "cache_salt", "request_id", "add_generation_prompt"),
        *("role", "content", "type", "text", "name", "include_usage", "tool_calls"),
    }
)
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, 1, -1, 2**31, 2**32, 2**63, 2**64, 10**400])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["user", "text", "assistant", "auto"])
)
_KEYS = st.sampled_from(_NAMES) | st.text(max_size=4)
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("read", [read_chat, read_completion])
@settings(max_examples=150, deadline=None)
@given(body=_VALUES | st.dictionaries(_KEYS, _VALUES, max_size=8))
def test_any_json_is_read_or_refused(read: Callable[[object], Asked], body: Any) -> None:
    """No value makes another error, which would be a bug's 500."""
    given_body = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    bodies = [body, {**given_body, **body}] if isinstance(body, dict) else [body]
    for each in bodies:
        refused: ApiError | None = None
        try:
            asked = read(each)
        except ApiError as error:
            refused = error
        if refused is None:
            assert all(request.SerializeToString() for request in asked.requests)
        else:
            assert 400 == refused.status
            json.dumps(refused.body())
