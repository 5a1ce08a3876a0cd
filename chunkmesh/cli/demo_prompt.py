"""The demo's prompts: a short question, and a log of any length. Pure; always the same."""

from __future__ import annotations

from collections.abc import Callable

from chunkmesh.cli.generate_request import chat_of
from chunkmesh.v1 import generation_pb2 as pb

QUESTION = "What is the capital of France? Answer in one sentence."
_OPENING = "Read this log of a harbour."
_LONG_QUESTION = "What is this log about? Answer in one sentence."
_SAMPLE_ENTRIES = 40
_SHIPS = ("Meridian", "Halcyon", "Juniper", "Borealis", "Cormorant", "Sandpiper", "Aurora")
_GOODS = ("copper", "oranges", "timber", "salt", "wool", "glass", "cement", "tea", "steel")
_PORTS = ("Oslo", "Riga", "Lisbon", "Cork", "Genoa", "Gdansk", "Porto", "Malmo")


def short_chat() -> pb.Chat:
    """Return a chat of one short question."""
    return chat_of(("user", QUESTION))


def long_chat(num_tokens: int, count_tokens: Callable[[pb.Chat], int]) -> pb.Chat:
    """Return a chat of about num_tokens tokens, by what count_tokens says of two samples."""
    few, more = (count_tokens(_log_chat(count)) for count in (_SAMPLE_ENTRIES, 2 * _SAMPLE_ENTRIES))
    tokens_per_entry = max(1.0, (more - few) / _SAMPLE_ENTRIES)
    num_entries = _SAMPLE_ENTRIES + round((num_tokens - few) / tokens_per_entry)
    return _log_chat(max(1, num_entries))


def _log_chat(num_entries: int) -> pb.Chat:
    log = "\n".join(_entry(index) for index in range(num_entries))
    return chat_of(("user", f"{_OPENING}\n\n{log}\n\n{_LONG_QUESTION}"))


def _entry(index: int) -> str:
    """Return one line; the strides share no factor with the lists, so that lines differ long."""
    ship = _SHIPS[index * 3 % len(_SHIPS)]
    goods = _GOODS[index * 5 % len(_GOODS)]
    origin = _PORTS[index * 3 % len(_PORTS)]
    target = _PORTS[(index * 3 + 1 + index // 8 % 7) % len(_PORTS)]
    tons = 20 + index * 37 % 181
    return f"Day {index + 1}: the {ship} carried {tons} tons of {goods} from {origin} to {target}."
