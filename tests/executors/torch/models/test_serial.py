"""The serial reference's own rules, on which the executor's tests rely."""

from __future__ import annotations

import pytest
import torch
from paged_run import tiny_model
from serial import Exits, Serial, serial, serial_greedy

OURO = tiny_model("tiny-ouro", total_ut_steps=4)
PROMPT = [3, 14, 15, 92]


@pytest.mark.parametrize("exits", [Exits(), Exits("immediate"), Exits("delayed"), Exits("trace", trace=(4,))])
def test_fixed_depth_has_four_names(exits: Exits) -> None:
    assert serial_greedy(OURO, PROMPT, 6, exits) == serial_greedy(OURO, PROMPT, 6)


def test_depths_follow_the_trace_by_output_position_and_the_prompt_runs_in_full() -> None:
    assert serial_greedy(OURO, PROMPT, 6, Exits("trace", trace=(1, 2, 3)))[1] == [4, 2, 3, 1, 2, 3]


def test_depths_given_as_a_trace_give_the_tokens_of_the_rule_that_chose_them() -> None:
    tokens, depths = serial_greedy(OURO, PROMPT, 12, Exits("immediate", 0.5))
    assert len(set(depths[1:])) > 1
    assert serial_greedy(OURO, PROMPT, 12, Exits("trace", trace=depths)) == (tokens, depths)


def test_the_second_token_leaves_one_loop_later_when_exits_are_delayed() -> None:
    """Later tokens have another context, so their gates may differ."""
    now, later = (
        serial_greedy(OURO, PROMPT, 2, Exits(mode, 0.2, min_loops=1))[1][1] for mode in ("immediate", "delayed")
    )
    assert later == min(now + 1, 4)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_loops_bounds_decode_tokens(most: int) -> None:
    assert serial_greedy(OURO, PROMPT, 3, Exits(max_loops=most))[1] == [4, most, most]


def test_what_leaves_early_stands_for_deeper_planes() -> None:
    sequence: Serial = serial(OURO)
    sequence.loop(sequence.prelude([1], 0), 0, 0)
    sequence.copy_deeper(1)
    for layer in range(2):
        planes = [sequence.cache[f"model.layers.{layer}.self_attn", depth] for depth in range(4)]
        assert all(torch.equal(plane[0][0], planes[0][0][0]) for plane in planes)
