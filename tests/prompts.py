"""Prompts for tests of real models: a varied few, and long ones of about any length."""

from __future__ import annotations

import random

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "\u8bf7\u7528\u4e2d\u6587\u4ecb\u7ecd\u4e00\u4e0b\u5317\u4eac\u7684\u5386\u53f2\u3002",
    "Explain these emoji: \U0001f336\ufe0f \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f680\n",
    "1, 1, 2, 3, 5, 8, 13, 21, 34, 55,",
    "Die K\u00f6nigin \u00f6ffnete das gro\u00dfe Tor und sagte: \u201eGuten Morgen!\u201c",
    '{"name": "Ada Lovelace", "born": 1815, "known_for": [',
    "<|im_start|>user\nWhat is the boiling point of water?<|im_end|>\n<|im_start|>assistant\n",
    "SELECT name, COUNT(*) FROM orders WHERE created_at >=",
)

CHATS = (
    (("user", "Why is the sky blue? Answer in one sentence."),),
    (("system", "You answer with one word."), ("user", "What colour is grass?")),
    (
        ("user", "My name is Lin."),
        ("assistant", "Hello Lin!"),
        ("user", "What is my name?"),
    ),
)

_SUBJECTS = ("the river", "a merchant", "our teacher", "the old bridge", "every winter", "the ship")
_VERBS = ("carried", "remembered", "crossed", "painted", "measured", "lost")
_OBJECTS = ("a letter", "the northern road", "seven lanterns", "its own name", "the harvest")


def long_prompt(num_tokens: int, seed: int = 0) -> str:
    """Return text of about num_tokens tokens of an English byte-pair vocabulary.

    The same arguments give the same text; other seeds differ from the first words on, so that
    nothing of one is cached for another.
    """
    chance = random.Random(seed)  # noqa: S311 -- text, not secrets
    sentences = [f"Chapter {chance.randrange(10**6)}."]
    words = 0
    # Digits are single tokens, so these sentences have about 1.66 tokens a word.
    while words * 1.66 + 12 < num_tokens:
        subject, verb, thing = map(chance.choice, (_SUBJECTS, _VERBS, _OBJECTS))
        sentence = f"{subject.capitalize()} {verb} {thing} in {chance.randrange(1000, 2000)}."
        sentences.append(sentence)
        words += len(sentence.split())
    return " ".join(sentences)
