"""The paged, batched path gives what one sequence alone gives, whatever shares its batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_run import PagedRun, Row, tiny_model
from serial import Exits, serial, serial_logits

MODELS = ("tiny-ouro", "tiny-huginn", "tiny-hrm")
VARIANTS = {
    "tiny-ouro": tiny_model("tiny-ouro", total_ut_steps=4),
    "tiny-huginn": tiny_model("tiny-huginn"),
    "tiny-hrm": tiny_model("tiny-hrm"),
    "tiny-hrm, causal": tiny_model("tiny-hrm", prefix_lm=False),
    "tiny-ouro, one KV head": tiny_model("tiny-ouro", num_key_value_heads=1, num_hidden_layers=1),
    "tiny-huginn, deeper parts": tiny_model("tiny-huginn", n_layers_in_prelude=2, n_layers_in_coda=2),
}


def in_chunks(rng: np.random.Generator, tokens: int, whole: bool) -> list[int]:
    cuts = [] if whole else np.flatnonzero(rng.random(tokens - 1) < 0.3) + 1
    return np.diff([0, *cuts, tokens]).tolist()


def run_in_random_batches(run: PagedRun, rows: list[Row], outputs: int, rng: np.random.Generator) -> int:
    """Each batch is a random choice of the rows before one stage, in random order. Returns batches of mixed depth."""
    mixed = 0
    while waiting := [row for row in rows if len(row.logits) < outputs]:
        stage = rng.choice(sorted({row.stage for row in waiting}))
        ready = [row for row in waiting if row.stage == stage]
        chosen = [ready[at] for at in rng.permutation(len(ready))[: rng.integers(1, len(ready) + 1)]]
        mixed += stage == "recurrent" and len({row.depth for row in chosen}) > 1
        run.step(chosen)
    return mixed


@pytest.mark.parametrize("name", VARIANTS)
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), block_size=st.sampled_from([1, 3, 16]))
def test_logits_agree_to_1e_9_in_float64(name: str, seed: int, block_size: int) -> None:
    rng, model, outputs = np.random.default_rng(seed), VARIANTS[name], 4
    run, rows, expected = PagedRun(model, 240 // block_size, block_size), [], []
    for _ in range(4):
        prompt = rng.integers(0, model.shape.vocab_size, rng.integers(1, 12)).tolist()
        depths = rng.integers(1, model.shape.loops + 2, 3).tolist()
        chunks = in_chunks(rng, len(prompt), whole=model.prefix_lm)
        own = int(rng.integers(-(2**63), 2**63 - 1))
        rows.append(run.admit(prompt, chunks, outputs, own, lambda output, depths=depths: depths[output % 3]))
        exits = Exits("trace", trace=depths)
        expected.append(serial_logits(model, prompt, outputs, exits, own & (2**64 - 1))[0])
    run_in_random_batches(run, rows, outputs, rng)
    for row, alone in zip(rows, expected, strict=True):
        torch.testing.assert_close(torch.stack(row.logits), alone, rtol=0, atol=1e-9)


def test_rows_of_different_depths_do_share_batches() -> None:
    """What the test above is about happens in it."""
    run = PagedRun(VARIANTS["tiny-ouro"], 30, 4)
    rows = [run.admit([7, 8, 9], [2, 1], 4) for _ in range(4)]
    assert run_in_random_batches(run, rows, 4, np.random.default_rng(0)) > 3


def test_exit_probabilities_agree_and_only_ouro_has_them() -> None:
    model, prompts = VARIANTS["tiny-ouro"], ([4, 8, 15], [16, 23])
    run = PagedRun(model, 4, 4)
    rows = [run.admit(prompt, [len(prompt)], 1) for prompt in prompts]
    for _ in range(1 + model.shape.loops):
        run.step(rows)
    for row, prompt in zip(rows, prompts, strict=True):
        alone = serial(model)
        state, expected = alone.prelude(prompt, 0), []
        for depth in range(model.shape.loops):
            state, gate = alone.loop(state, depth, 0)
            expected.append(gate)
        assert row.gates == pytest.approx(expected, abs=1e-7)
        assert len({round(gate, 3) for gate in expected}) == 4
    for name in ("tiny-huginn", "tiny-hrm"):
        run = PagedRun(VARIANTS[name], 4, 4)
        row = run.admit([1], [1], 1)
        run.step([row])
        run.step([row])
        assert row.gates == [None]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-4), (torch.bfloat16, 0.25)])
def test_lower_precision_stays_near_float64(name: str, dtype: torch.dtype, error: float) -> None:
    """The root mean square error of logits whose deviation is 2. All see the same weights, those of bfloat16."""
    model = tiny_model(name, torch.bfloat16)
    exact, _ = serial_logits(model.double(), [5, 6, 7, 8], 1, seed=3)
    run = PagedRun(model.to(dtype), 4, 4)
    row = run.admit([5, 6, 7, 8], [4], 1, seed=3)
    while not row.logits:
        run.step([row])
    assert row.logits[0].dtype == dtype
    assert (row.logits[0].double() - exact[0]).square().mean().sqrt() < error
