"""The dense model over the paged cache gives `transformers`' logits, however its rows are cut and mixed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core import Batch, WorkKey
from interlock.executors.torch.attention import attention_for
from interlock.executors.torch.cache import PagedCache
from interlock.executors.torch.inputs import InputMaker
from interlock.executors.torch.loading import load
from interlock.executors.torch.models.dense import DenseModel
from interlock.executors.torch.options import TorchOptions

from .conftest import FAMILIES, Family
from .kit import ids

CPU = torch.device("cpu")
LENGTHS = (37, 5, 22, 1)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=3)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1, 3, 16]))
def test_logits_agree_to_1e_4(
    family: str, seed: int, size: int, families: dict[str, Family], make_batch: Callable[..., Batch]
) -> None:
    dice, texts = np.random.default_rng(seed), [ids(seed % 1000 + at, length) for at, length in enumerate(LENGTHS)]
    model = load(TorchOptions(model=str(families[family].folder)), Path()).model
    assert isinstance(model, DenseModel)
    pages = [-(-length // size) for length in LENGTHS]
    cache = PagedCache(model.shape, sum(pages), size, torch.float32, attention_for(CPU), CPU)
    for part in cache._parts:
        part.fill_(torch.nan)
    maker = InputMaker(sum(pages), size, model.shape.vocab_size, CPU)
    table, context = laid_out(texts, pages, dice)
    done, found = np.zeros(len(texts), int), [list[torch.Tensor]() for _ in texts]
    while (left := np.array(LENGTHS) - done).any():
        rows = dice.permutation(np.flatnonzero(left))[: dice.integers(1, len(texts) + 1)]
        counts = [int(dice.integers(1, min(left[row], 9) + 1)) for row in rows]
        work = [(WorkKey.PROMPT_ATOMIC, int(done[row]), count) for row, count in zip(rows, counts, strict=True)]
        batch = replace(make_batch(work), holders=rows.astype(np.intp), block_table=table, context=context)
        inputs = maker.make(batch)
        with torch.inference_mode():
            logits = model.logits(model.states(inputs.ids, inputs.positions, cache.kv, inputs.paged))
        for row, part in zip(rows.tolist(), logits.split(counts), strict=True):
            found[row].append(part)
            done[row] += len(part)
    for text, parts in zip(texts, found, strict=True):
        torch.testing.assert_close(torch.cat(parts), families[family].theirs.logits(text), rtol=0, atol=1e-4)


def laid_out(texts: list[list[int]], pages: list[int], dice: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Block table and token ids of these rows, whose blocks lie anywhere."""
    table, context = np.full((len(texts), max(pages)), -1, np.int32), np.zeros((len(texts), max(LENGTHS)), np.int32)
    blocks = np.split(dice.permutation(sum(pages)), np.cumsum(pages)[:-1])
    for row, (text, own) in enumerate(zip(texts, blocks, strict=True)):
        table[row, : len(own)], context[row, : len(text)] = own, text
    return table, context
