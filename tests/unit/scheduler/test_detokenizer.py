"""Text must be the same whether it is streamed or decoded at once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from scheduler.detokenizer import Detokenizer
from tests.bytes_tokenizer import BOS, EOS, EOT, bytes_tokenizer

TOKENIZER = bytes_tokenizer()
SPECIAL = frozenset({BOS, EOS, EOT})


def stream(
    ids: Iterable[int], skipped: frozenset[int] = SPECIAL, tokenizer: Tokenizer = TOKENIZER
) -> list[str]:
    """Return the delta of each id, then the flushed rest."""
    detokenizer = Detokenizer(tokenizer, skipped)
    return [*[detokenizer.push(token_id) for token_id in ids], detokenizer.flush()]


def test_a_character_of_several_ids_comes_whole() -> None:
    """Ids decoded on their own would come out as replacement characters (O01 A)."""
    deltas = stream([*"a\U0001f336b".encode(), EOS])
    assert deltas == ["a", "", "", "", "\U0001f336", "b", "", ""]


def test_outputs_of_one_batch_do_not_mix() -> None:
    """Each request has a character of its own under way (O01 B)."""
    first, second = Detokenizer(TOKENIZER), Detokenizer(TOKENIZER)
    deltas = [
        (first.push(a), second.push(b))
        for a, b in zip("\u00e4".encode(), "\u00e9".encode(), strict=True)
    ]
    assert deltas == [("", ""), ("\u00e4", "\u00e9")]


def test_an_unfinished_character_is_one_replacement_character() -> None:
    """A limit may end the output inside a character (O01 C)."""
    assert stream([0x61, 0xF0, 0x9F]) == ["a", "", "", "\ufffd"]


@settings(deadline=None)
@given(st.lists(st.integers(0, 255) | st.integers(BOS, 263), max_size=60), st.booleans())
@example([0xF0, 0x9F] * 30, True)  # noqa: FBT003
@example([0x80] * 40 + [*"\u4f60\u597d".encode()], False)  # noqa: FBT003
@example([0xE4] * 20 + [0xBD, 0xA0], True)  # noqa: FBT003
def test_deltas_join_to_the_full_decode(ids: list[int], skip: bool) -> None:
    """Whatever a model emits, valid text or not, streaming changes nothing."""
    deltas = stream(ids, SPECIAL if skip else frozenset())
    assert "".join(deltas) == TOKENIZER.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("character", ["\u00e9", "\u4f60", "\U0001f336"])
@pytest.mark.parametrize("num_invalid", range(10, 20))
def test_a_character_behind_invalid_bytes_comes_whole(num_invalid: int, character: str) -> None:
    """Invalid bytes are sent after a while, wherever the character then stands."""
    deltas = stream([0x80] * num_invalid + [*character.encode()])
    assert "".join(deltas) == "\ufffd" * num_invalid + character


@settings(deadline=None)
@given(st.text(max_size=40))
def test_valid_text_never_shows_a_replacement_character(text: str) -> None:
    """Nothing but an unfinished character may give U+FFFD."""
    deltas = stream(text.encode())
    assert "".join(deltas) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in delta for delta in deltas)


@pytest.fixture
def sentencepiece() -> Tokenizer:
    """Return a tokenizer as of Llama 2: spaces as U+2581, bytes as <0xNN>."""
    tokens = ["\u2581Hello", "\u2581world", "!", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def test_only_the_first_leading_space_is_stripped(sentencepiece: Tokenizer) -> None:
    """Decoding each id on its own would glue words together."""
    deltas = stream([0, 1, 2], tokenizer=sentencepiece)
    assert deltas == ["Hello", " world", "!", ""]


def test_byte_fallback_characters_come_whole(sentencepiece: Tokenizer) -> None:
    """Such decoders write one replacement character for each byte of an unfinished one."""
    pepper = [byte + 3 for byte in "\U0001f336".encode()]
    assert stream([0, *pepper, 2], tokenizer=sentencepiece)[1:] == [
        "",
        "",
        "",
        "\U0001f336",
        "!",
        "",
    ]
    assert stream([0, *pepper[:3]], tokenizer=sentencepiece) == ["Hello", "", "", "", "\ufffd"]


def test_bytes_after_sent_bytes_do_not_change_them(sentencepiece: Tokenizer) -> None:
    """A byte-fallback decoder spoils the whole run; what was sent stays, what follows is shown."""
    ids = [*(byte + 3 for byte in "\u00e9".encode()), 0xF0 + 3, 2]
    assert stream(ids, tokenizer=sentencepiece) == ["", "\u00e9", "", "\ufffd!", ""]


def test_special_tokens_are_shown_if_asked_for() -> None:
    """skip_special_tokens=false is a documented choice."""
    assert "".join(stream([0x61, EOT, 0x62], frozenset())) == "a<eot>b"
