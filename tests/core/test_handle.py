"""The caller's side: handles that iterate tokens and drive the engine, cancellations, threads, ids and arrivals."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from scenario import engine_of

from interlock.core import Engine, FinishReason, Policy, Request, SamplingParams, View


def engine(**more: Any) -> Engine:
    """Nobody in it yet."""
    audited = engine_of(**more)
    return Engine(audited.config, [], audited.executor)


def request(name: str, prompt: int = 5, output: int = 4, **more: Any) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=output, ignore_eos=True), **more)


def told(name: str, prompt: int = 5, output: int = 4) -> list[int]:
    """What a request says when it is alone."""
    return list(engine().submit(request(name, prompt, output)))


# -- iterating


def test_whoever_iterates_drives_the_engine() -> None:
    one = engine()
    handle = one.submit(request("a"))
    assert handle.outcome is None and handle.finish_reason is None and handle.token_ids == []
    tokens = list(handle)
    assert len(tokens) == 4 == len(handle.token_ids) and tokens == handle.token_ids
    assert handle.finish_reason is FinishReason.LENGTH
    assert handle.outcome is not None and handle.outcome.output_ids.tolist() == tokens


def test_tokens_come_one_by_one_as_they_are_delivered() -> None:
    one = engine()
    handle, seen = one.submit(request("a")), []
    for token in handle:
        seen.append(token)
        assert handle.token_ids == seen, "no step too far"
    assert seen == told("a")


def test_driving_for_one_drives_all() -> None:
    one = engine()
    handles = [one.submit(request(name, output=n)) for name, n in (("a", 6), ("b", 3), ("c", 5))]
    assert list(handles[0]) == told("a", output=6)
    assert [handle.finish_reason for handle in handles] == [FinishReason.LENGTH] * 3
    assert [list(handle) for handle in handles] == [told("a", output=6), told("b", output=3), told("c", output=5)]


def test_iterating_again_begins_at_the_first_token() -> None:
    handle = engine().submit(request("a"))
    assert list(handle) == list(handle) == handle.token_ids


def test_two_iterators_of_one_handle_see_all_tokens_each() -> None:
    handle = engine().submit(request("a"))
    assert list(zip(handle, handle, strict=True)) == [(token, token) for token in told("a")]


def test_a_result_waits_for_the_end() -> None:
    outcome = engine().submit(request("a")).result()
    assert outcome.request_id == "a" and len(outcome.output_ids) == 4 and outcome.finish_reason is FinishReason.LENGTH


def test_handles_work_after_the_engine_has_run_dry() -> None:
    one = engine()
    assert list(one.submit(request("a"))) == told("a")
    assert list(one.submit(request("b"))) == told("b")


def test_what_run_has_delivered_a_handle_has() -> None:
    one = engine()
    handle = one.submit(request("a"))
    lengths = [len(handle.token_ids) for _ in one.run()]
    assert lengths == sorted(lengths) and lengths[-1] == 4
    assert list(handle) == told("a")


def test_async_iteration() -> None:
    async def both() -> list[list[int]]:
        one = engine()

        async def read(name: str, output: int) -> list[int]:
            return [token async for token in one.submit(request(name, output=output))]

        return list(await asyncio.gather(read("a", 5), read("b", 7)))

    assert asyncio.run(both()) == [told("a", output=5), told("b", output=7)]


def test_a_policy_may_look_at_a_handle_of_its_own_engine() -> None:
    """From inside a boundary, on the thread that drives it."""
    seen: list[int] = []

    class Looks(Policy):
        def on_result(self, rows: Any, computed: Any, emitted: Any, view: View) -> None:
            seen.append(len(handle.token_ids))

    audited = engine_of()
    one = Engine(audited.config, [Looks()], audited.executor)
    handle = one.submit(request("a"))
    thread = threading.Thread(target=lambda: list(handle), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive(), "it waits for itself"
    assert seen == [1, 2, 3, 4]


# -- ends


def test_an_answer_that_the_model_ends_itself_stops() -> None:
    handle = engine().submit(Request("a", 5, SamplingParams(max_tokens=9)), output=3)
    assert len(list(handle)) == 3 and handle.finish_reason is FinishReason.STOP and handle.token_ids[-1] == 0


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (request("a", prompt=0), "empty_prompt"),
        (request("a", prompt=100), "exceeds_context"),
        (request("a", prompt=50, output=13), "never_fits"),
    ],
)
def test_a_request_that_can_never_run_ends_at_once(wrong: Request, reason: str) -> None:
    one = engine(N=15, bs=4)
    handle = one.submit(wrong)
    assert list(handle) == [] and handle.finish_reason is FinishReason.REJECTED
    assert handle.outcome is not None and str(handle.outcome.reject_reason).startswith(reason)


def test_a_full_queue_rejects() -> None:
    one = engine(S=1, max_waiting=1)
    first = one.submit(request("a"))
    one.step()
    rest = [one.submit(request(name)) for name in "bc"]
    list(one.run())
    assert [handle.finish_reason for handle in (first, *rest)] == [
        FinishReason.LENGTH,
        FinishReason.LENGTH,
        FinishReason.REJECTED,
    ]
    assert rest[1].outcome is not None and str(rest[1].outcome.reject_reason).startswith("queue_full")


# -- ids


def test_a_live_id_cannot_be_used_twice_and_a_finished_one_can() -> None:
    one = engine()
    first, second = one.submit(request("a")), one.submit(request("a", output=2))
    assert list(second) == [] and second.finish_reason is FinishReason.REJECTED
    assert second.outcome is not None and second.outcome.reject_reason == "duplicate_id"
    assert list(first) == told("a"), "the live one is not disturbed"
    assert list(one.submit(request("a", output=2))) == told("a")[:2]


def test_an_id_may_be_used_again_as_soon_as_its_request_has_finished() -> None:
    """Its last batch may still be out: no late result reaches the new one."""
    one = engine()
    first = one.submit(request("a", output=9))
    one.step(), one.step()
    cancelled = one.cancel("a")
    second = one.submit(request("a", prompt=7))
    assert list(second) == told("a", prompt=7) and cancelled.result(timeout=0) is True
    assert first.finish_reason is FinishReason.CANCELLED and list(first) == told("a", output=9)[: len(first.token_ids)]


# -- cancelling


def test_cancelling_answers_at_the_next_boundary() -> None:
    one = engine()
    handle = one.submit(request("a", output=9))
    one.step(), one.step()
    answer = one.cancel("a")
    assert not answer.done()
    one.step()
    assert answer.result(timeout=0) is True and handle.finish_reason is FinishReason.CANCELLED
    assert list(handle) == told("a", output=9)[: len(handle.token_ids)] and 0 < len(handle.token_ids) < 9


def test_a_completion_collected_at_the_same_boundary_wins() -> None:
    one = engine()
    handle = one.submit(request("a", output=1))
    one.step()
    answer = one.cancel("a")
    one.step()
    assert answer.result(timeout=0) is False and handle.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("when", ["never", "finished", "cancelled"])
def test_there_may_be_nothing_to_cancel(when: str) -> None:
    one = engine()
    handle = one.submit(request("a"))
    if when == "finished":
        handle.result()
    if when == "cancelled":
        one.cancel("a")
    answer = one.cancel("a" if when != "never" else "b")
    list(one.run())
    assert answer.result(timeout=0) is False


def test_a_request_can_be_cancelled_where_it_is_submitted() -> None:
    one = engine()
    handle, answer = one.submit(request("a")), one.cancel("a")
    assert list(handle) == [] and answer.result(timeout=0) is True and handle.finish_reason is FinishReason.CANCELLED


def test_a_request_whose_arrival_is_to_come_can_be_cancelled() -> None:
    """Its caller has handed it in and wants it no more; it must not run when its time comes."""
    one = engine()
    handle = one.submit(request("a", arrival=5.0))
    one.step()
    answer = one.cancel("a")
    list(one.run())
    assert (
        answer.result(timeout=0) is True and handle.finish_reason is FinishReason.CANCELLED and handle.token_ids == []
    )


# -- time


def test_an_arrival_in_the_future_is_ingested_when_it_is_due() -> None:
    one = engine()
    late, soon = one.submit(request("late", arrival=7.5)), one.submit(request("soon", output=2))
    list(one.run())
    assert late.outcome is not None and soon.outcome is not None
    assert late.outcome.arrival_ns == 7_500_000_000 == late.outcome.admitted_ns and soon.outcome.arrival_ns == 0


def test_arrivals_are_ingested_in_their_order_not_in_that_of_submission() -> None:
    one = engine(S=1)
    handles = [one.submit(request(name, output=1, arrival=at)) for name, at in (("c", 3.0), ("a", 1.0), ("b", 2.0))]
    list(one.run())
    numbers = {handle.request.id: handle.outcome.number for handle in handles if handle.outcome is not None}
    assert sorted(numbers, key=lambda name: numbers[name]) == ["a", "b", "c"]


def test_an_arrival_that_is_past_counts_from_there() -> None:
    one = engine()
    list(one.submit(request("first")))
    late = one.submit(request("late", arrival=1.0))
    late.result()
    assert (
        late.outcome is not None
        and late.outcome.arrival_ns == 10**9
        and late.outcome.queue_ns == late.outcome.admitted_ns - 10**9
    )


def test_a_time_limit_counts_from_the_arrival() -> None:
    handle = engine().submit(request("a", output=20, arrival=2.0, timeout_s=3.5))
    outcome = handle.result()
    assert outcome.finish_reason is FinishReason.TIMEOUT and 5.5 <= outcome.finished_ns / 1e9 <= 6.5


# -- threads


def test_requests_may_be_submitted_from_any_thread_while_the_engine_runs() -> None:
    one = engine(S=4)
    running = threading.Event()
    stop = threading.Event()

    def drive() -> None:
        running.set()
        while not stop.is_set():
            one.step()

    driver = threading.Thread(target=drive, daemon=True)
    driver.start()
    running.wait(5)

    def ask(n: int) -> list[int]:
        handle = one.submit(request(f"r{n}", prompt=3 + n % 5, output=1 + n % 7))
        return list(handle)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(60)))
    stop.set()
    driver.join(5)
    assert not driver.is_alive()
    assert answers == [told(f"r{n}", 3 + n % 5, 1 + n % 7) for n in range(60)]


def test_many_threads_may_drive_one_engine() -> None:
    """Without anybody who runs it: whoever waits for a token does, one at a time."""
    one = engine(S=4)
    with ThreadPoolExecutor(8) as pool:
        handles = [one.submit(request(f"r{n}", output=1 + n % 7)) for n in range(40)]
        answers = list(pool.map(list, handles))
    assert answers == [told(f"r{n}", output=1 + n % 7) for n in range(40)]


def test_requests_may_be_cancelled_from_any_thread() -> None:
    one = engine(S=4)
    handles = [one.submit(request(f"r{n}", output=40)) for n in range(20)]
    cancels = threading.Thread(target=lambda: [(time.sleep(0.001), one.cancel(f"r{n}")) for n in range(0, 20, 2)])
    cancels.start()
    outcomes = [handle.result() for handle in handles]
    cancels.join()
    assert all(outcome.finish_reason is FinishReason.LENGTH for outcome in outcomes[1::2])
    for outcome in outcomes[::2]:
        assert outcome.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
        assert outcome.output_ids.tolist() == told(outcome.request_id, output=40)[: len(outcome.output_ids)]
