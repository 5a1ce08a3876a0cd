"""Names request fields as the command line does, in what a scheduler says of them. Pure."""

from __future__ import annotations

import re

FLAGS = {
    name: "--" + name.replace("_", "-")
    for name in (
        *("request_id", "priority", "cache_salt"),
        *("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "min_new_tokens"),
        "until_full",
        *("stop", "ignore_eos", "seed", "logit_bias", "n"),
        *("frequency_penalty", "presence_penalty", "repetition_penalty"),
        *("logprobs", "prompt_logprobs", "top_logprobs"),
    )
} | {
    "stop_token_ids": "--stop-token-id",
    "skip_special_tokens": "--keep-special-tokens",
    "input_ids": "--input-ids",
    "input_ids_le": "--input-ids",
    "request_ids": "--request-id",
}
"""Last part of a field's name -> flag."""
_PROMPT_FIELDS = {"text", "chat"}


def in_flags(text: str, field: str) -> str:
    """Return what is wrong with a field, with flags instead of the names of fields.

    Names that are words of English are left alone, but for that of the field itself.
    """
    name = field.rpartition(".")[2]
    names = {known for known in FLAGS if "_" in known} | {name} & FLAGS.keys()
    pattern = "|".join(sorted(names, key=len, reverse=True))
    told = re.sub(rf"(?<![\w-])(?:{pattern})(?!\w)", lambda found: FLAGS[found[0]], text)
    if not field or name in _PROMPT_FIELDS:
        return told
    shown = FLAGS.get(name, f"field {field}")
    return told if shown in told else f"{told} ({shown})"
