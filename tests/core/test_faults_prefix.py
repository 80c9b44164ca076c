"""Prefix reuse, reference counts and leaks. `Paged` checks that every hit block holds what it should."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scenario import MIXED, Hold, Play, R, engine_of, play

from interlock.core.blocks import BlockPool


def prompt(tokens: int, own: int = 0, shared: int = 8) -> list[int]:
    """A prompt of so many tokens, of which the first `shared` are everybody's and the rest are its `own`."""
    return [i + 1 for i in range(min(shared, tokens))] + [1000 * (own + 1) + i for i in range(tokens - shared)]


def starts(run: Play, name: str) -> dict[int, int]:
    """The position at which a request's tokens begin, by step."""
    found = {}
    for record in run.records:
        if record.batch is not None:
            for number, start in zip(record.batch.numbers.tolist(), record.batch.start.tolist(), strict=True):
                if run.ids[number] == name:
                    found[round(record.time_s)] = start
    return found


@pytest.mark.parametrize(("B", "chunks"), [(6, [4, 4]), (5, [3, 3, 2]), (3, [1] * 6 + [2]), (20, [8])])
def test_the_prefix_is_matched_before_the_tokens_are_sized(B: int, chunks: list[int]) -> None:
    # B45: 12 of R1's 20 tokens are cached, two decodes take 2 of the budget: with B=6 the first chunk is 12 to 15.
    # With B=3 there is one token a step beside D0 and D1 until they end in step 17, and the rest in step 18.
    requests = [
        R(0, prompt(13, 0, 12), 1),
        R(8, 1, 10, id="D0"),
        R(8, 1, 10, id="D1"),
        R(12, prompt(20, 1, 12), 1, id="R1"),
    ]
    run = play(*requests, B=B, caching=True)
    assert run.outcomes["R1"].cached_tokens == 12 and starts(run, "R1")[12] == 12
    assert list(run.ran("R1").values()) == chunks


@pytest.mark.parametrize("spacing", [1, 2])
def test_a_hundred_prompts_leave_no_reference(spacing: int) -> None:  # B51, B60
    live: list[int] = []

    def note(engine: Any, record: Any) -> None:
        if record.batch is None:
            live.append(record.counts.used_blocks)
            assert record.counts.free_blocks + record.counts.cached_blocks == 10

    run = play(*[R(spacing * k, 8, 1) for k in range(101)], N=10, caching=True, at=note)
    assert set(live) == {0} and run.finished("R100") == 100 * spacing


def test_cached_blocks_rise_while_nothing_is_live() -> None:  # B60: 24 prompts of 2 blocks, one by one
    run = play(*[R(2 * k, 8, 1) for k in range(24)], caching=True)
    idle = [r.counts for r in run.records if r.batch is None and round(r.time_s) % 2]
    assert [c.cached_blocks for c in idle] == list(range(2, 49, 2))
    assert {c.used_blocks for c in idle} == {0}
    assert all(c.free_blocks + c.cached_blocks == 64 for c in idle)


def test_a_hit_is_looked_up_anew_at_every_attempt() -> None:
    # B52. R0 leaves blocks 2 (part-filled), 1 and 0 at the end of the queue; Z takes the three others until step 3.
    # In step 2 R1 would hit 2 blocks but needs 4 of the 3 left; R2 passes it and overwrites them. In step 4 R1 runs
    # it all.
    requests = [
        R(0, prompt(9), 1), R(1, 9, 3, id="Z"), R(2, prompt(16, 1), 1, id="R1"), R(2, 12, 1, id="R2"),
    ]  # fmt: skip
    run = play(*requests, N=6, caching=True, bypass_limit=1)
    assert run.started("R2") == 2 and run.ran("R1") == {4: 16}
    assert run.outcomes["R1"].cached_tokens == 0


def test_a_hit_that_outlives_a_failed_attempt_is_used() -> None:  # B52: the same, and nobody overwrites
    requests = [R(0, prompt(9), 1), R(1, 9, 3, id="Z"), R(2, prompt(16, 1), 1, id="R1")]
    run = play(*requests, N=6, caching=True)
    assert run.ran("R1") == {4: 8} and run.outcomes["R1"].cached_tokens == 8


# -- published, computed (B53). Both prompts are 8 equal tokens: a hit is at most 7 of them, one whole block.


@pytest.mark.parametrize(
    ("fails", "cancelled", "hit"),
    [
        ((), False, 4),  # R0's prompt is computed
        ((), True, 4),  # its result came before its cancellation: the block is good whoever owned it
        ((0,), True, 0),  # its batch failed, and nobody will compute it
        ((0,), False, 4),  # its batch failed, and R0 computes it in the batch in which R1 reads it
    ],
)
def test_only_what_was_computed_is_hit(fails: tuple[int, ...], cancelled: bool, hit: int) -> None:
    first = R(0, prompt(8), 4, **({"cancel_at": 1.0} if cancelled else {}))
    run = play(first, R(1, prompt(8), 1), caching=True, fails=fails)
    assert run.outcomes["R1"].cached_tokens == hit and starts(run, "R1")[1] == hit
    assert run.ends == {"R0": "cancelled" if cancelled else "length", "R1": "length"}


@pytest.mark.parametrize("fails", [(), (0,), (1,), (0, 2)])
@pytest.mark.parametrize("later", [0, 1])
def test_who_hit_what_a_failed_batch_was_to_fill_computes_it(fails: tuple[int, ...], later: int) -> None:
    # R1 hits blocks of R0 that are published and not computed yet, in the same boundary or while R0 runs its chunks.
    run = play(R(0, prompt(24, 0, 20), 2), R(later, prompt(22, 1, 20), 2), B=12, caching=True, fails=fails)
    assert run.ends["R1"] in ("length", "error") and (fails == (0, 2) or run.ends == {"R0": "length", "R1": "length"})


def test_candidates_of_one_boundary_hit_each_other() -> None:
    run = play(R(0, prompt(12), 1), R(0, prompt(12, 1), 1), R(0, prompt(12, 2), 1), caching=True)
    assert run.steps[0] == {"R0": 12, "R1": 4, "R2": 4} and run.used[0] == 3 + 1 + 1


@pytest.mark.parametrize("p", range(1, 14))
def test_a_hit_is_whole_blocks_and_leaves_a_token_to_run(p: int) -> None:
    run = play(R(0, prompt(p, 0, p), 1), R(1, prompt(p, 0, p), 1), caching=True)
    assert run.outcomes["R1"].cached_tokens == (p - 1) // 4 * 4


def test_output_tokens_are_hit_too() -> None:
    # R0 leaves 5 + 7 tokens of KV: three blocks. R1 asks with R0's prompt and answer: 12 of 13 tokens are there.
    first = play(R(0, prompt(5), 8), caching=True)
    asked = prompt(5) + first.output("R0")
    run = play(R(0, prompt(5), 8), R(10, asked, 1), caching=True)
    assert run.outcomes["R1"].cached_tokens == 12


def test_tenants_do_not_share_where_salted() -> None:
    for salted, hit in ((False, 8), (True, 0)):
        config = {"caching": True}
        engine = engine_of(
            R(0, prompt(9), 1, tenant="x"), R(2, prompt(9), 1, tenant="y"), R(4, prompt(9), 1, tenant="x"), **config
        )
        engine.state.kv = engine.state.kv.model_copy(update={"salt_by_tenant": salted})
        run = Play(engine)
        assert [run.outcomes[f"R{i}"].cached_tokens for i in range(3)] == [0, hit, 8]


# -- resuming on one's own blocks (B55)


@pytest.mark.parametrize("N", [4, 5, 6])
@pytest.mark.parametrize("p", range(5, 11))
def test_a_resumed_request_runs_what_its_hit_leaves(p: int, N: int) -> None:
    run = play(R(0, 8, 6), R(0, p, 4), N=N, caching=True)
    for step, names in run.preempted.items():
        for name in names:
            again = min(k for k in run.ran(name) if k > step)
            context = {"R0": 8, "R1": p}[name] + len([k for k in run.ran(name) if k < step and k >= 0])
            hit = starts(run, name)[again]
            assert hit % 4 == 0 and hit <= context - 1 and run.ran(name)[again] == context - hit
    assert set(run.ends.values()) == {"length"}


def test_a_preempted_request_hits_its_own_blocks_where_they_are_still_there() -> None:
    # R1 gives way in step 1 with 8 tokens in 2 full blocks; R0 takes a third block then and a fourth in step 5. The
    # queue is [R1's second, R1's first] in step 1: the second goes first, then the first. Nothing is left of them.
    run = play(R(0, 8, 6), R(0, 7, 6), N=4, caching=True)
    assert run.preempted == {1: ["R1"]} and starts(run, "R1")[6] == 0
    # With two more free blocks in front of them, both are still there: 8 tokens of context, of which a hit leaves one.
    run = play(R(0, 8, 6), R(0, 8, 6), N=5, caching=True)
    assert run.preempted == {1: ["R1"]} or run.preempted == {5: ["R1"]}


# -- giving back twice (B56)


@pytest.mark.parametrize("at", [0.0, 1.0, 2.0, 3.0, 4.0])
def test_a_cancellation_around_the_last_token_frees_once(at: float) -> None:
    run = play(R(0, 8, 3, cancel_at=at), R(0, 8, 5), N=8, caching=True)
    assert run.ends == {"R0": "cancelled" if at < 3 else "length", "R1": "length"}


def test_a_block_is_not_given_back_twice() -> None:
    pool = BlockPool(4, 4, 4)
    taken = pool.take(2)
    pool.give_back(taken)
    with pytest.raises(AssertionError, match="nobody holds"):
        pool.give_back(taken)
    assert pool.available == 4 and len(set(pool.queue().tolist())) == 4


def test_a_list_with_a_block_twice_is_refused() -> None:
    pool = BlockPool(4, 4, 4)
    (block,) = pool.take(1)
    with pytest.raises(AssertionError):
        pool.give_back(np.array([block, block]))
    assert sorted(pool.queue().tolist()) == sorted({*range(4)} - {block})


# -- an allocator that refuses once (B58)


def refuse_once(monkeypatch: pytest.MonkeyPatch, blocks: int) -> list[int]:
    """The pool's `take` raises the first time it is asked for so many blocks. Returns the refusals."""
    take, refused = BlockPool.take, []

    def refusing(pool: BlockPool, count: int) -> Any:
        if count == blocks and not refused:
            refused.append(count)
            raise MemoryError("refused")
        return take(pool, count)

    monkeypatch.setattr(BlockPool, "take", refusing)
    return refused


def test_a_refusal_after_a_positive_admission_leaves_everything_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    # The gate opens at 3, when R0 has ended; R1 asks for 2 blocks and is refused; at the next boundary it starts,
    # before R2.
    requests = [R(0, 4, 3), R(0, 8, 2), R(0, 4, 2)]
    engine = engine_of(*requests, stack=(*MIXED, Hold({"R1": 4.0, "R2": 4.0})), caching=True)
    refused = refuse_once(monkeypatch, 2)
    for _ in range(4):
        engine.step()
    with pytest.raises(MemoryError):
        engine.step()
    state = engine.state
    assert refused == [2] and state.pool.used == 0 and state.free_slots == 8
    assert [state.entries[row].request.id for row in state.waiting.rows] == ["R1", "R2"]
    run = Play(engine)
    assert list(run.steps) == [4, 5] and list(run.steps[4]) == ["R1", "R2"]
    assert run.ends == {"R0": "length", "R1": "length", "R2": "length"}


def test_what_was_collected_is_told_also_where_the_plan_of_that_boundary_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    # B58: "other requests undisturbed": R0 ends at the very boundary at which R1 arrives and is refused its blocks.
    engine = engine_of(R(0, 4, 2), R(2, 8, 2), caching=True)
    refuse_once(monkeypatch, 2)
    engine.step(), engine.step()
    with pytest.raises(MemoryError):
        engine.step()
    assert Play(engine).ends == {"R0": "length", "R1": "length"}


def test_a_hit_is_not_taken_by_who_enters_before_it() -> None:
    # B52. In step 5 R1 displaces R0, whose full block is the only one left in the queue. In step 6 R3 displaces R4, and
    # R0 fits again, too: it would hit its block, if R3, who enters before it, did not take the oldest free one.
    requests = [
        R(2, [1, 1, 2, 2], 2, 1),
        R(5, [1], 2, 0),
        R(0, [1, 1, 1, 1, 1, 1, 1, 2, 2], 2, 0),
        R(6, [1, 1, 1], 1, 0),
        R(1, 12, 2, 1),
    ]
    run = play(*requests, N=8, caching=True, stack=("priority",), long_prefill_token_threshold=3)
    assert run.preempted == {5: ["R0"], 6: ["R4"]}
    assert set(run.ends.values()) == {"length"}
