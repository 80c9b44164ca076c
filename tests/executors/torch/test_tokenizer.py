"""A checkpoint's tokenizer as the engine uses it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from interlock.core import ConfigError
from interlock.core.text import Detokenizer
from interlock.executors.torch.checkpoint import open_checkpoint
from interlock.executors.torch.tokenizer import HFTokenizer

from .saved import saved, with_tokenizer

TEXT = "the fox 猫 👍🏽"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with a tokenizer that has a chat template."""
    return with_tokenizer(saved(tmp_path_factory.mktemp("m")))


def tokenizer(folder: Path, chat: bool = False) -> HFTokenizer:
    own = open_checkpoint(str(folder), Path()).tokenizer()
    assert own is not None
    return HFTokenizer(own, chat)


def test_text_survives_the_way_there_and_back(folder: Path) -> None:
    ids = tokenizer(folder).encode(TEXT)
    assert (ids.dtype, ids.ndim) == (np.int32, 1)
    assert tokenizer(folder).decode(ids) == TEXT


def test_a_chat_is_the_template_up_to_where_the_answer_begins(folder: Path) -> None:
    asked = tokenizer(folder, chat=True).encode("the fox").tolist()
    plain = tokenizer(folder)
    assert [asked[0], asked.count(0), asked.count(1)] == [0, 2, 1], "special tokens of the template are single tokens"
    assert plain.decode(asked) == "user: the foxassistant: "


def test_special_tokens_are_left_out_of_text(folder: Path) -> None:
    own = tokenizer(folder)
    assert own.decode([0, *own.encode("the fox"), 1]) == "the fox"


def test_spaces_before_punctuation_stay(folder: Path) -> None:
    own = tokenizer(folder)
    assert own.decode(own.encode("a , b .")) == "a , b ."


def test_pieces_make_the_whole(folder: Path) -> None:
    own = tokenizer(folder)
    ids, words = own.encode(TEXT).tolist(), Detokenizer(own)
    assert "".join([*(words.push([one]) for one in ids), words.flush()]) == TEXT


def test_a_chat_needs_a_template(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^executor.torch.chat: found true, allowed: false, because .*template$"):
        tokenizer(with_tokenizer(saved(tmp_path), template=None), chat=True)
