"""Fields that OpenAI's or vLLM's servers know and a mesh has no use for. Pure.

docs/gateway.md lists the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

IGNORED = (
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
)
"""Say who asks, or what the server may keep: clients send them always, and no answer changes."""

_UNSUPPORTED: Mapping[str, Sequence[object]] = {
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "include_stop_str_in_output": (False,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "bad_words": ([],),
    "logits_processors": ([],),
    "allowed_token_ids": (),
    "lora_path": ("",),
}
"""Field -> values that ask for nothing."""
UNSUPPORTED_COMPLETION: Mapping[str, Sequence[object]] = {
    **_UNSUPPORTED,
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
}
UNSUPPORTED_CHAT: Mapping[str, Sequence[object]] = {
    **_UNSUPPORTED,
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "echo": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
}
UNSUPPORTED_MESSAGE: Mapping[str, Sequence[object]] = {
    "refusal": (),
    "audio": (),
    "tool_calls": ([],),
    "tool_call_id": (),
    "function_call": (),
    "annotations": ([],),
    "reasoning_content": ("",),
    "reasoning": ("",),
}
IGNORED_IN_MESSAGE = ("name",)
