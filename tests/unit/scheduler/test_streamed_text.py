"""Text that is streamed id by id equals the decode of the whole, for every kind of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from scheduler.detokenizer import Detokenizer
from tests.bytes_tokenizer import byte_characters

SPACE = "\u2581"
WORDS = (
    f"{SPACE}Hello",
    f"{SPACE}world",
    f"{SPACE}{SPACE}",
    SPACE,
    "ly",
    "!",
    "\u4f60\u597d",
    "\u00e9",
    f"{SPACE}\U0001f336",
    "<br>",
    "##",
)
BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
NAMES = ("<s>", "</s>", "<|end|>")
CHARACTERS = ("\u00e9", "\u4f60", "\U0001f336", "a", " ", "\n")


def made(vocab: list[str], decoder: decoders.Decoder) -> Tokenizer:
    """Return a tokenizer of these tokens, then three special ones and one that only looks so."""
    model = models.BPE(vocab={token: id_ for id_, token in enumerate(vocab)}, merges=[])
    tokenizer = Tokenizer(model)
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in NAMES])
    tokenizer.add_tokens([AddedToken("<think>", special=False)])
    return tokenizer


def sentencepiece(*, strips: bool) -> Tokenizer:
    """Return a tokenizer with byte fallback: as of Llama 2 if it strips, else as of Gemma."""
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if strips:
        steps.append(decoders.Strip(" ", 1, 0))
    return made([*WORDS, *BYTES], decoders.Sequence(steps))


def byte_level() -> Tokenizer:
    """Return a byte-level tokenizer, some of whose tokens hold parts of characters."""
    letters = byte_characters()
    parts = ("\u0120Hello", "".join(letters[byte] for byte in b"\xf0\x9f"), letters[0x20] * 2)
    return made([*parts, *letters], decoders.ByteLevel())


SHAPES = {
    "as of Llama 2": sentencepiece(strips=True),
    "as of Gemma": sentencepiece(strips=False),
    "metaspace": made(list(WORDS), decoders.Metaspace()),
    "byte level": byte_level(),
    "word pieces": made(["hello", "##ly", "world", ".", "n't", "##\u00e9"], decoders.WordPiece()),
    "no decoder of its own": made(list(WORDS), decoders.Fuse()),
}


def id_of(tokenizer: Tokenizer, token: str) -> int:
    """Return the id of a token that there is."""
    found = tokenizer.token_to_id(token)
    assert found is not None
    return found


def streamed(tokenizer: Tokenizer, ids: list[int], *, skip: bool) -> list[str]:
    """Return the delta of each id, and what is flushed."""
    special = frozenset(id_of(tokenizer, name) for name in NAMES) if skip else frozenset()
    detokenizer = Detokenizer(tokenizer, special)
    return [*[detokenizer.push(id_) for id_ in ids], detokenizer.flush()]


def units(tokenizer: Tokenizer) -> list[list[int]]:
    """Return runs of ids that are whole text: tokens, and characters of several byte tokens."""
    vocab = tokenizer.get_vocab()
    letters = byte_characters()
    runs = [[token] for token in (*NAMES, "<think>", *WORDS)]
    runs += [
        [alphabet[byte] for byte in character.encode()]
        for character in CHARACTERS
        for alphabet in (BYTES, letters)
    ]
    known = [[vocab[token] for token in run] for run in runs if vocab.keys() >= set(run)]
    return [run for run in known if "\ufffd" not in tokenizer.decode(run)]


@pytest.mark.parametrize("shape", SHAPES)
@settings(deadline=None, max_examples=150)
@given(data=st.data(), skip=st.booleans())
def test_deltas_join_to_the_decode_of_the_whole(
    shape: str, data: st.DataObject, skip: bool
) -> None:
    """Spaces at the start, special tokens and characters over several ids, wherever they stand."""
    tokenizer = SHAPES[shape]
    runs = data.draw(st.lists(st.sampled_from(units(tokenizer)), max_size=12))
    ids = [id_ for run in runs for id_ in run]
    deltas = streamed(tokenizer, ids, skip=skip)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)
    assert not any("\ufffd" in delta for delta in deltas)


@settings(deadline=None)
@given(
    st.lists(st.integers(0, len(SHAPES["byte level"].get_vocab()) - 1), max_size=40), st.booleans()
)
@example([1, 1, 3 + 0x9F], True)  # noqa: FBT003
def test_byte_level_deltas_join_whatever_a_model_emits(ids: list[int], skip: bool) -> None:
    """Also for bytes that are no text at all: each invalid run shows as the decoder shows it."""
    tokenizer = SHAPES["byte level"]
    deltas = streamed(tokenizer, ids, skip=skip)
    assert "".join(deltas) == tokenizer.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize(
    ("shape", "tokens", "skip", "deltas"),
    [
        ("as of Llama 2", [f"{SPACE}Hello", f"{SPACE}world"], True, ["Hello", " world", ""]),
        ("as of Llama 2", ["<s>", f"{SPACE}Hello"], True, ["", "Hello", ""]),
        ("as of Llama 2", ["<s>", f"{SPACE}Hello"], False, ["<s>", " Hello", ""]),
        ("as of Llama 2", [f"{SPACE}Hello", "</s>", "ly"], True, ["Hello", "", "ly", ""]),
        ("as of Llama 2", ["ly", "</s>", f"{SPACE}world"], False, ["ly", "</s>", " world", ""]),
        ("as of Llama 2", [SPACE, SPACE, "ly"], True, ["", " ", "ly", ""]),
        ("as of Llama 2", ["<0x20>"], True, ["", ""]),
        ("as of Llama 2", ["<0xE2>", "<0x82>", "<0xAC>"], True, ["", "", "\u20ac", ""]),
        ("as of Llama 2", ["ly", "<0xE2>", "<0x82>"], True, ["ly", "", "", "\ufffd"]),
        ("as of Gemma", [f"{SPACE}Hello", f"{SPACE}world"], True, [" Hello", " world", ""]),
        ("word pieces", ["hello", "##ly", "world", "."], True, ["hello", "ly", " world", ".", ""]),
    ],
)
def test_the_rule_by_hand(shape: str, tokens: list[str], skip: bool, deltas: list[str]) -> None:
    """One leading space belongs to the tokenizer, every other one to the text."""
    tokenizer = SHAPES[shape]
    ids = [id_of(tokenizer, token) for token in tokens]
    assert deltas == streamed(tokenizer, ids, skip=skip)
