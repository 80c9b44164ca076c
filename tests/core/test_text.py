"""Text of an answer while it comes: never half a character, nothing lost, nothing told twice."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from speech import LINES, Made, byte_level, sentence_piece

from interlock.core import Engine, InterlockError, Request, SamplingParams
from interlock.core.text import Detokenizer, tokenizer_of

BYTES = byte_level()


def pieces(tokenizer: Made, ids: Sequence[int]) -> list[str]:
    """What each token adds, and the rest."""
    words = Detokenizer(tokenizer)
    return [*(words.push([one]) for one in ids), words.flush()]


def of_byte(byte: int) -> int:
    """The token of one byte."""
    sizes = {BYTES.inner.id_to_token(i): i for i in range(BYTES.size)}
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]  # a byte-level vocabulary shows these as they are
    others = [one for one in range(256) if one not in shown]
    return sizes[chr(byte) if byte in shown else chr(256 + others.index(byte))]


@settings(max_examples=60)
@given(st.lists(st.integers(0, BYTES.size - 1), max_size=60))
@example([of_byte(0x80)] * 50)
@example([of_byte(0xF0), *[0] * 40, of_byte(0x9F), of_byte(0x98), of_byte(0x80)])
@example([of_byte(byte) for byte in b"\xf0\x9f\x98" * 12])
@example([of_byte(byte) for byte in "\ufffd".encode() * 20])
def test_pieces_of_any_tokens_make_the_whole(ids: list[int]) -> None:
    """Invalid bytes, special tokens and halves of characters included."""
    assert "".join(pieces(BYTES, ids)) == BYTES.decode(ids)


@settings(max_examples=40)
@given(st.text(max_size=40) | st.sampled_from(LINES))
def test_no_piece_of_a_text_is_half_a_character(text: str) -> None:
    ids = BYTES.encode(text).tolist()
    told = pieces(BYTES, ids)
    assert "".join(told) == text
    assert all("\ufffd" not in piece for piece in told) or "\ufffd" in text


@pytest.mark.parametrize("line", LINES)
def test_a_character_is_told_with_its_last_token(line: str) -> None:
    ids, words = BYTES.encode(line).tolist(), Detokenizer(BYTES)
    for end in range(1, len(ids) + 1):
        told = words.push([ids[end - 1]])
        whole = BYTES.decode(ids[:end])
        if not whole.endswith("\ufffd"):
            assert whole.endswith(told)
            assert told


@pytest.mark.parametrize("before", range(12, 20))
def test_a_character_behind_invalid_bytes_is_whole(before: int) -> None:
    ids = [of_byte(byte) for byte in b"\x80" * before + "👍".encode()]
    assert "".join(pieces(BYTES, ids)) == "\ufffd" * before + "👍"


def test_tokens_may_come_several_at_a_time() -> None:
    ids, words = BYTES.encode(LINES[4]).tolist(), Detokenizer(BYTES)
    told = [words.push(ids[at : at + 7]) for at in range(0, len(ids), 7)]
    assert "".join(told) + words.flush() == LINES[4]


WORDS = sentence_piece()
TOKENS = [WORDS.inner.token_to_id(word) for word in ("▁", "▁the", "▁fox", "fox", "es", "▁a", "b", ",", "▁▁", "<s>")]
CHARACTERS = ["é", "猫", "👍", "e\u0301"]


def fallback(character: str) -> list[int]:
    """A character as tokens of single bytes."""
    return [WORDS.inner.token_to_id(f"<0x{byte:02X}>") for byte in character.encode()]


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(TOKENS).map(lambda one: [one]) | st.sampled_from(CHARACTERS).map(fallback), max_size=30)
)
def test_leading_spaces_and_bytes_of_fallback_are_where_they_belong(parts: list[list[int]]) -> None:
    ids = [token for part in parts for token in part]
    assert "".join(pieces(WORDS, ids)) == WORDS.decode(ids)


@pytest.mark.parametrize("kind", ["text", "invalid", "special"])
def test_a_token_costs_the_same_however_long_the_answer(kind: str) -> None:
    ids = {"text": BYTES.encode(LINES[3] * 40).tolist(), "invalid": [of_byte(0x80)] * 2000, "special": [1] * 2000}[kind]
    BYTES.longest = 0
    words = Detokenizer(BYTES)
    for token in ids:
        words.push([token])
    assert BYTES.longest <= 40


def test_an_executor_offers_its_tokenizer_as_an_attribute() -> None:
    assert tokenizer_of(SimpleNamespace(tokenizer=BYTES)) is BYTES
    assert tokenizer_of(SimpleNamespace()) is None


# -- handles


def engine(tokenizer: Made | None) -> Engine:
    """An engine whose simulated executor speaks."""
    one = Engine.from_config({"policies": [], "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}}})
    if tokenizer is not None:
        one.executor.tokenizer = Modulo(tokenizer)  # type: ignore[attr-defined]  # executors may have one
    return one


class Modulo(Made):
    """Any token id has a text."""

    def __init__(self, made: Made) -> None:
        super().__init__(made.inner)

    def decode(self, ids: Sequence[int]) -> str:  # type: ignore[override]
        """Their text."""
        return super().decode([one % self.size for one in ids])


def request() -> Request:
    return Request("a", 5, SamplingParams(max_tokens=40, ignore_eos=True))


def test_a_handle_iterates_the_text_of_its_answer() -> None:
    one = engine(BYTES)
    handle = one.submit(request())
    told = list(handle.text())
    assert "".join(told) == Modulo(BYTES).decode(handle.token_ids)
    assert len(told) > 1
    assert all(told)


def test_a_handle_iterates_text_in_an_event_loop() -> None:
    async def ask() -> str:
        return "".join([piece async for piece in engine(BYTES).submit(request()).text()])

    one = engine(BYTES)
    handle = one.submit(request())
    handle.result()
    assert asyncio.run(ask()) == Modulo(BYTES).decode(handle.token_ids)


def test_without_a_tokenizer_there_is_no_text() -> None:
    with pytest.raises(InterlockError) as caught:
        engine(None).submit(request()).text()
    assert str(caught.value) == "request 'a' has tokens and no text: the executor has no tokenizer"
