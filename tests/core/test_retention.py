"""What finished requests leave for reuse: `release` orders, keeps and drops their cached blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from interlock.core import Engine, Policy, Request, Retention, SamplingParams, View

Edit = Callable[[Retention, View], None]


def engine_with(edit: Edit, blocks: int = 6) -> Engine:
    """Blocks of 4 tokens, one request at a time; `edit` is the policy's `release`."""

    class Keeper(Policy):
        def release(self, retention: Retention, view: View) -> None:
            edit(retention, view)

    config = {
        "engine": {"max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 32},
        "kv": {"num_blocks": blocks, "block_size": 4},
        "executor": {"simulated": {"cost": {"constant": {"step_s": 1.0}}}},
    }
    return Engine.from_config(config, policies=[Keeper()])


def serve(engine: Engine, name: str, first: int, tokens: int = 9) -> int:
    """Serve a prompt of `tokens` ids from `first` on; how many of them were found cached."""
    handle = engine.submit(Request(name, list(range(first, first + tokens)), SamplingParams(max_tokens=1)))
    engine_outcome = handle.result()
    while engine.step() is not None:
        pass
    return engine_outcome.cached_tokens


def everything(retention: Retention, value: bool = True) -> np.ndarray:
    return np.full(len(retention.rows), value)


def test_without_a_word_the_oldest_freed_goes_first() -> None:
    engine = engine_with(lambda retention, view: None)
    serve(engine, "a", 100)
    serve(engine, "b", 200)  # six blocks: a's three and b's three; two of each are full and cached
    serve(engine, "c", 300)  # takes a's
    assert serve(engine, "b again", 200) == 8
    assert serve(engine, "a again", 100) == 0


def test_what_is_kept_is_taken_last() -> None:
    def keep_a(retention: Retention, view: View) -> None:
        mine = np.array([view.request(int(row)).id == "a" for row in retention.rows])
        retention.keep(mine, 1.0)

    engine = engine_with(keep_a)
    serve(engine, "a", 100)
    serve(engine, "b", 200)
    serve(engine, "c", 300)  # takes b's, for a's are kept
    assert engine.state.pool.available == 6 and len(engine.state.pool.kept) == 2
    assert serve(engine, "a again", 100) == 8


def test_the_larger_weight_stays_longer() -> None:
    def keep(retention: Retention, view: View) -> None:
        retention.keep(
            everything(retention), np.array([float(view.request(int(r)).metadata["w"]) for r in retention.rows])
        )

    engine = engine_with(keep)
    for name, first, weight in (("heavy", 100, 2.0), ("light", 200, 1.0)):
        prompt = list(range(first, first + 9))
        engine.submit(Request(name, prompt, SamplingParams(max_tokens=1), metadata={"w": weight})).result()
    while engine.step() is not None:
        pass
    # Four of the six blocks are kept; a request of four blocks takes the two free ones and the two of `light`.
    engine.submit(Request("big", list(range(900, 916)), SamplingParams(max_tokens=1), metadata={"w": 0.0})).result()
    while engine.step() is not None:
        pass
    key = engine.state.hash
    heavy, light = (key.keys(key.chain(np.arange(first, first + 8))).tolist() for first in (100, 200))
    assert len(engine.state.pool.match(heavy)) == 2
    assert len(engine.state.pool.match(light)) == 0


def test_a_time_ends_the_keeping() -> None:
    engine = engine_with(lambda retention, view: retention.keep(everything(retention), 1.0, until=view.now))
    serve(engine, "a", 100)
    serve(engine, "b", 200)
    assert len(engine.state.pool.kept) <= 2  # a's time was over before b was planned


def test_what_is_dropped_is_hit_no_more() -> None:
    engine = engine_with(lambda retention, view: retention.drop(everything(retention)))
    serve(engine, "a", 100)
    assert engine.state.pool.cached == 0
    assert serve(engine, "a again", 100) == 0


@pytest.mark.parametrize("blocks", [3, 4, 6])
def test_kept_blocks_count_as_available_and_nobody_is_refused_for_them(blocks: int) -> None:
    engine = engine_with(lambda retention, view: retention.keep(everything(retention), 5.0), blocks)
    for number in range(6):
        serve(engine, f"r{number}", 100 * number)
        pool = engine.state.pool
        assert pool.available == blocks and pool.used == 0 and not pool.references.any()
        assert sorted(pool.queue().tolist()) == list(range(blocks))


def test_rows_are_given_back_in_the_order_of_the_policy() -> None:
    freed: list[list[int]] = []

    def longest_first(retention: Retention, view: View) -> None:
        retention.sort_by("-prompt_tokens")
        freed.append([int(view.prompt_tokens[row]) for row in retention.rows])

    engine = engine_with(longest_first)
    handles = [engine.submit(Request(f"r{n}", n, SamplingParams(max_tokens=1))) for n in (4, 8)]
    for handle in handles:
        handle.result()
    while engine.step() is not None:
        pass
    assert [8, 4] in freed
