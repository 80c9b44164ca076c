"""The tables of a run folder, against values worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from interlock.core.errors import InterlockError
from interlock.core.request import FinishReason, RequestStatus
from interlock.plugins.run.recorder import Recorder
from interlock.plugins.run.tables import requests, steps, tables

COLUMNS = {
    "requests": "request request_id tenant priority arrival_s admitted_s first_token_s finished_s ttft_s tpot_s "
    "queue_s prefill_s decode_s preempted_s transfer_s e2e_s itl_max_s prompt_tokens cached_tokens predicted_tokens "
    "output_tokens recomputed_tokens finish_reason reject_reason preemptions bypasses overtaken deadline_s "
    "deadline_met output_token_ids token_times_s",
    "steps": "step start_s end_s ends_s operation repeat tokens prompt_tokens decode_tokens context_tokens "
    "prompt_attention budget running waiting free_blocks cached_blocks used_blocks fenced_blocks reserved_blocks "
    "admitted finished preempted drafted accepted host_s members",
    "transitions": "step time_s request version from_status to_status reason work computed emitted blocks slot",
    "waits": "request from_s to_s reason by",
}


def column(recorder: Recorder, name: str, tokens: bool = True) -> list[Any]:
    """A column of the requests table."""
    return requests(recorder.outcomes, recorder.flat.deliveries, tokens)[name].to_pylist()


def test_columns_are_the_documented_ones_also_of_a_run_in_which_nothing_happened(story: Any) -> None:
    for recorder in (Recorder(), story.two_requests()):
        found = {name: " ".join(table.column_names) for name, table in tables(recorder).items()}
        assert found == COLUMNS


def test_types_do_not_depend_on_content(story: Any) -> None:
    empty, full = tables(Recorder()), tables(story.two_requests())
    assert {name: table.schema for name, table in empty.items()} == {name: table.schema for name, table in full.items()}


def test_latencies(story: Any) -> None:
    recorder = story.two_requests()
    expected = {
        "request_id": ["r0", "r1"],
        "ttft_s": [1.0, 2.0],
        "tpot_s": [1.5, None],
        "itl_max_s": [2.0, None],
        "queue_s": [0.0, 1.0],
        "prefill_s": [1.0, 1.0],
        "decode_s": [3.0, 0.0],
        "e2e_s": [4.0, 2.0],
        "output_tokens": [3, 1],
        "output_token_ids": [[7, 8, 9], [5]],
        "token_times_s": [[1.0, 2.0, 4.0], [3.0]],
        "finish_reason": ["length", "length"],
        "predicted_tokens": [None, None],
    }
    assert {name: column(recorder, name) for name in expected} == expected


class Numbers:
    """Tokens are spoken as their numbers."""

    def encode(self, text: str) -> np.ndarray:
        raise AssertionError("nothing is encoded")

    def decode(self, ids: Any) -> str:
        return " ".join(str(one) for one in ids)


def test_answers_are_text_where_the_executor_has_a_tokenizer(story: Any) -> None:
    recorder = story.two_requests()
    found = tables(recorder, tokenizer=Numbers())["requests"]
    assert found.column_names == [*COLUMNS["requests"].split(), "output_text"]
    assert found["output_text"].to_pylist() == ["7 8 9", "5"]
    names = tables(recorder, tokens=False, tokenizer=Numbers())["requests"].column_names
    assert names == COLUMNS["requests"].split()[:-2]


def test_token_lists_can_be_left_out(story: Any) -> None:
    names = tables(story.two_requests(), tokens=False)["requests"].column_names
    assert names == COLUMNS["requests"].split()[:-2]


def test_a_request_that_never_ran(story: Any) -> None:
    rejected = story.outcome(0, 2, 2, finish_reason=FinishReason.REJECTED, reject_reason="empty prompt")
    story.boundary(0, 2, outcomes=[rejected])
    row = requests(story.recorder.outcomes, story.recorder.flat.deliveries).to_pylist()[0]
    assert row["reject_reason"] == "empty prompt"
    assert [row[name] for name in ("admitted_s", "first_token_s", "ttft_s", "tpot_s", "itl_max_s")] == [None] * 5
    assert row["token_times_s"] == row["output_token_ids"] == []


def test_deadlines_are_relative_to_arrival_and_met_by_an_answer_in_time(story: Any) -> None:
    second = 1_000_000_000
    story.boundary(0, 0, outcomes=[
        story.outcome(0, 1, 3, deadline_ns=3 * second),
        story.outcome(1, 1, 3, deadline_ns=3 * second - 1),
        story.outcome(2, 1, 2, deadline_ns=9 * second, finish_reason=FinishReason.TIMEOUT),
        story.outcome(3, 1, 3),
    ])  # fmt: skip
    assert column(story.recorder, "deadline_s") == [2.0, 1.999999999, 8.0, None]
    assert column(story.recorder, "deadline_met") == [True, False, False, None]


def test_intervals_that_do_not_sum_to_the_life_are_an_error(story: Any) -> None:
    story.boundary(0, 0, outcomes=[story.outcome(0, 0, 4, [1, 4], preempted_ns=1)])
    with pytest.raises(InterlockError, match="'r0' lived 4000000000 ns, but its intervals sum to 4000000001 ns"):
        _ = story.recorder.outcomes


def test_a_token_that_was_never_delivered_is_an_error(story: Any) -> None:
    story.boundary(0, 0, outcomes=[story.outcome(0, 0, 4, [1, 4])])
    with pytest.raises(InterlockError, match="'r0' has 2 output tokens, but 0 deliveries"):
        column(story.recorder, "token_times_s")


def test_tokens_delivered_together_are_one_gap(story: Any) -> None:
    batches = [story.batch(n, 0, [(0, 7, 4 + n, 1)]) for n in range(3)]
    for batch in batches:
        story.boundary(batch.step, 0, batch=batch)
    got = [story.result(batch, [end], [[1]]) for batch, end in zip(batches, (1, 1, 4), strict=True)]
    story.boundary(3, 4, collected=got, outcomes=[story.outcome(0, 0, 4, [1, 1, 4])])
    _, gaps = story.recorder.flat.deliveries.gaps_ns()
    assert gaps.tolist() == [3_000_000_000]
    assert column(story.recorder, "tpot_s") == [1.5]


def test_steps(story: Any) -> None:
    rows = steps(story.two_requests()).to_pylist()
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    expected = {
        "start_s": 0.0,
        "end_s": 1.0,
        "ends_s": [1.0],
        "operation": "FORWARD",
        "repeat": 1,
        "tokens": 4,
        "prompt_tokens": 4,
        "decode_tokens": 0,
        "context_tokens": 0,
        "prompt_attention": 10.0,
        "budget": 2048,
        "free_blocks": 10,
        "admitted": [0],
        "finished": [],
        "host_s": 1e-6,
        "members": [{"request": 0, "version": 1, "work": "PROMPT_ATOMIC", "tokens": 4, "emitted": 1}],
    }
    assert {name: rows[0][name] for name in expected} == expected
    assert [row["context_tokens"] for row in rows] == [0, 5, 0, 6]
    assert [row["finished"] for row in rows] == [[], [], [1], [0]]


def test_a_chunk_in_the_middle_of_a_prompt_emits_nothing(story: Any) -> None:
    batch = story.batch(0, 0, [(0, 0, 8, 4), (1, 7, 3, 1)])
    story.boundary(0, 0, batch=batch)
    story.boundary(1, 1, collected=[story.result(batch, [1], [[-1, 6]])])
    row = steps(story.recorder).to_pylist()[0]
    assert [one["emitted"] for one in row["members"]] == [0, 1]
    assert (row["tokens"], row["prompt_tokens"], row["decode_tokens"], row["context_tokens"]) == (5, 4, 1, 4)
    assert row["prompt_attention"] == 4 * 8 + 10


def without_host(recorder: Recorder) -> list[dict[str, Any]]:
    """The steps, without what depends on the host."""
    return steps(recorder).drop(["host_s"]).to_pylist()


@pytest.mark.parametrize("stretches", [[1] * 6, [2, 4], [1, 2, 3]])
def test_equal_decode_batches_are_one_row_however_they_were_submitted(
    story: Any, another: Any, stretches: list[int]
) -> None:
    whole, parts = story.decoding([6]), another.decoding(stretches)
    assert without_host(whole) == without_host(parts)
    (row,) = without_host(parts)
    assert (row["repeat"], row["ends_s"], row["end_s"]) == (6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 6.0)
    assert row["members"][0] == {"request": 0, "version": 1, "work": "DECODE_ATOMIC", "tokens": 1, "emitted": 1}
    assert row["context_tokens"] == 5 + 10
    assert whole.flat.deliveries.tokens.tolist() == parts.flat.deliveries.tokens.tolist()
    assert parts.flat.deliveries.tokens.tolist() == [10, 11, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25]
    assert parts.flat.deliveries.times_ns[:6].tolist() == [second * 1_000_000_000 for second in range(1, 7)]


def test_host_time_of_merged_batches_adds_up(story: Any) -> None:
    assert steps(story.decoding([1, 1, 1]))["host_s"].to_pylist() == [6e-8]


def test_what_happens_between_two_batches_keeps_them_apart(story: Any) -> None:
    arrived = story.move(9, 1, None, RequestStatus.WAITING, "arrived")
    batches = [story.batch(n, n, [(0, 7, 4 + n, 1)]) for n in range(2)]
    story.boundary(0, 0, batch=batches[0])
    story.boundary(1, 1, collected=[story.result(batches[0], [1], [[1]])], transitions=[arrived], batch=batches[1])
    story.boundary(2, 2, collected=[story.result(batches[1], [2], [[2]], finished=(0,))])
    assert steps(story.recorder)["repeat"].to_pylist() == [1, 1]
    assert steps(story.recorder)["finished"].to_pylist() == [[], [0]]


def test_prompt_batches_and_other_versions_are_never_merged(story: Any) -> None:
    rows = [[(0, 0, 0, 4)], [(0, 0, 0, 4)], [(0, 7, 4, 1)], [(0, 7, 5, 1)]]
    batches = [story.batch(n, n, row, versions=np.array([max(n, 2)])) for n, row in enumerate(rows)]
    pending: list[Any] = []
    for batch in batches:
        story.boundary(batch.step, batch.step, collected=pending, batch=batch)
        pending = [story.result(batch, [batch.step + 1], [[1]])]
    story.boundary(4, 4, collected=pending)
    assert steps(story.recorder)["repeat"].to_pylist() == [1, 1, 1, 1]


def test_a_stretch_is_cut_where_other_rows_are_delivered_to(story: Any) -> None:
    batch = story.batch(5, 0, [(0, 7, 4, 1), (1, 7, 9, 1)], repeat=3)
    story.boundary(5, 0, batch=batch, admitted=[1])
    got = story.result(batch, [1, 2, 3], [[1, 2], [3, 4], [5, 6]], [[True, True]] * 2 + [[True, False]], finished=(0,))
    story.boundary(8, 3, collected=[got])
    first, last = steps(story.recorder).to_pylist()
    assert (first["step"], first["repeat"], first["admitted"], first["finished"]) == (5, 2, [1], [])
    assert (last["step"], last["repeat"], last["admitted"], last["finished"]) == (7, 1, [], [0])
    assert (last["start_s"], last["context_tokens"]) == (2.0, 5 + 10 + 4)
    assert [one["emitted"] for one in last["members"]] == [1, 0]
    assert story.recorder.flat.deliveries.tokens.tolist() == [1, 3, 5, 2, 4]


def test_a_failed_batch_delivers_nothing(story: Any) -> None:
    batch = story.batch(0, 0, [(0, 7, 4, 1)])
    story.boundary(0, 0, batch=batch)
    story.boundary(1, 2, collected=[story.result(batch, [], [], [], error=RuntimeError("lost"))])
    (row,) = steps(story.recorder).to_pylist()
    assert (row["ends_s"], row["members"][0]["emitted"]) == ([2.0], 0)
    assert not len(story.recorder.flat.deliveries.tokens)


def test_a_batch_that_was_never_collected_is_no_step_and_keeps_its_neighbours_apart(story: Any) -> None:
    first, lost, again = (story.batch(n, n, [(0, 7, 4 + min(n, 1), 1)]) for n in range(3))
    story.boundary(0, 0, batch=first)
    story.boundary(1, 1, collected=[story.result(first, [1], [[1]])], batch=lost)
    story.boundary(2, 2, batch=again)
    story.boundary(3, 3, collected=[story.result(again, [3], [[2]])])
    assert steps(story.recorder)["step"].to_pylist() == [0, 2]


def test_results_of_a_pipeline_find_their_batches(story: Any) -> None:
    one, two = story.batch(0, 0, [(0, 7, 4, 1)]), story.batch(1, 0, [(1, 7, 4, 1)])
    story.boundary(0, 0, batch=one, admitted=[0])
    story.boundary(1, 0, batch=two, admitted=[1])
    story.boundary(2, 2, collected=[story.result(one, [1], [[3]]), story.result(two, [2], [[4]])])
    assert steps(story.recorder)["admitted"].to_pylist() == [[0], [1]]
    assert steps(story.recorder)["end_s"].to_pylist() == [1.0, 2.0]


def test_transitions(story: Any) -> None:
    rows = tables(story.two_requests())["transitions"].to_pylist()
    assert rows[0] | {"version": 1} == {
        "step": 0,
        "time_s": 0.0,
        "request": 0,
        "version": 1,
        "from_status": None,
        "to_status": "WAITING",
        "reason": "arrived",
        "work": "DECODE_ATOMIC",
        "computed": 0,
        "emitted": 0,
        "blocks": 0,
        "slot": -1,
    }
    assert [(row["from_status"], row["to_status"]) for row in rows[1:3]] == [("WAITING", "ACTIVE"), (None, "WAITING")]
