"""The policies of `examples` do what their names say: the hooks suffice, and the core keeps them safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenario import Play, R, engine_of, play

from interlock.core import Policy
from interlock.plugins.testing import boundary
from tests.policies.examples import Edf, Lpm, Mlfq, Quota, Srpt, Vtc

EXAMPLES = [Srpt, Vtc, Edf, Mlfq, Lpm, Quota]


def jobs(*sizes: tuple[float, int]) -> list[dict[str, Any]]:
    """(arrival, steps): a prompt of one token, so that a request of n output tokens takes n steps of a second."""
    return [R(at, 1, steps, predicted=steps) for at, steps in sizes]


def ends(run: Play) -> dict[str, float]:
    return {name: outcome.finished_ns / 1e9 for name, outcome in run.outcomes.items()}


@pytest.mark.parametrize("policy", EXAMPLES)
@settings(max_examples=20)
@given(data=st.data())
def test_none_of_them_can_do_any_harm(policy: Callable[[], Policy], data: Any) -> None:
    """Invariants are audited at each boundary, outputs are those of each request alone, and everybody gets through."""
    number = st.integers
    entries = [
        R(
            data.draw(number(0, 6)), data.draw(number(1, 14)), output := data.draw(number(1, 12)),
            tenant=data.draw(st.sampled_from("xyz")), predicted=data.draw(st.sampled_from([None, output, 3])),
            deadline_s=data.draw(st.sampled_from([None, 5.0, 30.0])),
        )
        for _ in range(data.draw(number(1, 6)))
    ]  # fmt: skip
    slots, blocks = data.draw(number(1, 3)), data.draw(number(7, 12))
    play(*entries, stack=["fcfs", policy(), "mixed"], S=slots, N=blocks, bs=4, caching=data.draw(st.booleans()))


# -- SRPT


def test_srpt_serves_the_least_remaining_first() -> None:
    """One slot, steps of a second: 8 from 0, 3 from 2, 1 from 3. Each interrupts the one before."""
    work = jobs((0, 8), (2, 3), (3, 1))
    srpt = play(*work, stack=[Srpt(), "mixed"], S=1)
    assert ends(srpt) == {"R0": 12.0, "R1": 6.0, "R2": 4.0}
    assert srpt.preempted == {2: ["R0"], 3: ["R1"]}
    assert all(outcome.recomputed_tokens == 0 for outcome in srpt.outcomes.values())
    assert ends(play(*work, S=1)) == {"R0": 8.0, "R1": 11.0, "R2": 12.0}


def test_srpt_does_not_interrupt_for_an_equal_rest() -> None:
    run = play(*jobs((0, 5), (2, 3), (2, 4)), stack=[Srpt(), "mixed"], S=1)
    assert run.preempted == {} and ends(run) == {"R0": 5.0, "R1": 8.0, "R2": 12.0}


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 9)), min_size=1, max_size=7))
def test_srpt_is_the_textbooks(sizes: list[tuple[int, int]]) -> None:
    """The total time of a one-slot engine with yields is that of the preemptive schedule, computed step by step."""
    run = play(*jobs(*sizes), stack=[Srpt(), "mixed"], S=1)
    ordered = sorted(sizes, key=lambda size: size[0])
    left, total = [steps for _, steps in ordered], 0
    for now in range(400):
        here = [i for i, (at, _) in enumerate(ordered) if at <= now and left[i]]
        if here:
            i = min(here, key=lambda i: left[i])
            left[i] -= 1
            total += 0 if left[i] else now + 1 - ordered[i][0]
    assert sum(outcome.finished_ns - outcome.arrival_ns for outcome in run.outcomes.values()) == total * 10**9


def test_srpt_serves_what_it_knows_nothing_of_last() -> None:
    run = play(R(0, 1, 4), *jobs((0, 6), (0, 2)), stack=[Srpt(), "mixed"], S=1)
    assert ends(run) == {"R0": 12.0, "R1": 8.0, "R2": 2.0}


# -- VTC


def service_gap(run: Play, tenants: list[str]) -> float:
    """The largest difference of service between tenants while all of them have somebody waiting."""
    tenant = {f"R{i}": name for i, name in enumerate(tenants)}
    service, worst = Counter(dict.fromkeys(tenants, 0.0)), 0.0
    waiting = Counter(tenant.values())
    for record in run.records:
        for collected in record.collected:
            batch = collected.batch
            for at, number in enumerate(batch.numbers.tolist()):
                service[tenant[run.ids[number]]] += 2.0 * int(collected.delivered[:, at].sum())
        for move in record.transitions:
            if move.reason == "admitted":
                waiting[tenant[move.request_id]] -= 1
                service[tenant[move.request_id]] += 16
        if all(waiting[name] > 0 for name in service):
            worst = max(worst, max(service.values()) - min(service.values()))
    return worst


@pytest.mark.parametrize("repeat", [1, None])
def test_vtc_bounds_the_service_difference_of_backlogged_tenants(repeat: int | None) -> None:
    """16 tokens in, 16 out, at rates of 2 to 1, in 160 tokens of KV: the difference stays under 2 max(w_p L, w_q M)."""
    names = ["x", "x", "y"] * 50
    entries = [R(i // 3, 16, 16, tenant=name) for i, name in enumerate(names)]
    bound = 2 * max(1.0 * 16, 2.0 * 160)

    def gap(stack: list[Any]) -> float:
        run = Play(engine_of(*entries, stack=stack, S=8, N=20, bs=8, B=64, L=64, max_repeat=repeat))
        return service_gap(run, names)

    assert gap([Vtc(), "mixed"]) < bound / 2 < bound < gap(["fcfs", "mixed"])


def test_vtc_weighs_tokens() -> None:
    """With one output token each, prompts are all there is to pay: 4 of `x` for one of `y`."""
    entries = [R(0, 4, 1, tenant="x") for _ in range(8)] + [R(0, 16, 1, tenant="y") for _ in range(2)]
    run = play(*entries, stack=[Vtc(output=0.0), "mixed"], S=1)
    order = sorted(run.outcomes, key=lambda name: run.started(name))
    tenants = ["x" if int(name[1:]) < 8 else "y" for name in order]
    assert tenants.index("y") <= 1 and tenants[2:6] == ["x"] * 4


def test_vtc_lifts_a_tenant_that_was_away() -> None:
    """`y` comes when `x` has been served for long; it gets its share from now on, and no arrears."""
    entries = [R(0, 4, 4, tenant="x") for _ in range(12)] + [R(20, 4, 4, tenant="y") for _ in range(12)]
    run = play(*entries, stack=[Vtc(), "mixed"], S=1)
    order = sorted(run.outcomes, key=lambda name: run.started(name))
    later = ["x" if int(name[1:]) < 12 else "y" for name in order if run.started(name) >= 20][:10]
    assert 4 <= later.count("x") <= 6


# -- EDF


def test_edf_serves_the_earliest_deadline_and_turns_away_what_cannot_be() -> None:
    run = play(
        *[R(0, 1, 3, deadline_s=s) for s in (30.0, 9.0, 5.0, 6.5)], R(0, 1, 3),
        stack=[Edf(), "mixed"], S=1,
    )  # fmt: skip
    assert ends(run) == {"R2": 3.0, "R3": 6.0, "R1": 9.0, "R0": 12.0, "R4": 15.0}
    late = play(*[R(0, 1, 3, deadline_s=7.0) for _ in range(4)], stack=[Edf(), "mixed"], S=1)
    assert late.ends == {"R0": "length", "R1": "length", "R2": "rejected", "R3": "rejected"}
    assert late.why("R2") == "rejected: the deadline is out of reach"


def test_edf_never_turns_away_one_that_has_begun() -> None:
    run = play(
        R(0, 4, 30, 1, deadline_s=32.0), R(3, 4, 4, 0, deadline_s=90.0), stack=[{"priority": {}}, Edf(), "mixed"], S=1
    )
    assert run.ends == {"R0": "length", "R1": "length"} and run.outcomes["R0"].preemptions == 1


# -- MLFQ


def test_mlfq_lets_short_ones_through_and_sinks_long_ones() -> None:
    """Quantum 4: R0 sinks at 4 tokens; R1, new at 6, displaces it, ends within its quantum, and R0 goes on."""
    run = play(*jobs((0, 20), (6, 3)), stack=[Mlfq(), "mixed"], S=1)
    assert ends(run) == {"R1": 9.0, "R0": 23.0} and run.preempted == {6: ["R0"]}


def test_mlfq_does_not_displace_within_a_level() -> None:
    run = play(*jobs((0, 4), (2, 3)), stack=[Mlfq(), "mixed"], S=1)
    assert run.preempted == {} and ends(run) == {"R0": 4.0, "R1": 7.0}


def test_mlfq_levels_take_twice_as_long_each() -> None:
    seen: dict[int, int] = {}

    class Looks(Policy):
        def on_result(self, rows: np.ndarray, computed: np.ndarray, emitted: np.ndarray, view: Any) -> None:
            seen[int(view.computed[rows[0]])] = int(view.of("mlfq").level[rows[0]])

    play(R(0, 1, 40), stack=[Mlfq(), Looks()], L=64)
    assert [min(tokens for tokens, level in seen.items() if level == wanted) for wanted in (1, 2, 3)] == [4, 12, 28]


# -- LPM


def test_lpm_serves_the_longest_match_first() -> None:
    """What the first conversation left in the cache decides; without a match, arrival does."""
    talk = list(range(1, 18))
    first = [{"id": "old", "prompt": talk, "max_tokens": 40}]
    waiting = [
        {"id": "new", "prompt": [99] * 17},
        {"id": "short", "prompt": [*talk[:4], *[98] * 13]},
        {"id": "long", "prompt": [*talk[:12], *[97] * 5]},
        {"id": "other", "prompt": [96] * 17},
    ]
    turn = boundary(waiting=waiting, active=first, stack=[Lpm(), "mixed"], block_size=4)
    assert turn.order == ["long", "short", "new", "other"] == turn.admitted
    assert turn.tokens["long"] == 17 - 12


def test_lpm_shares_more_than_arrival_order_does() -> None:
    """Two conversations take turns in a pool that holds one of them."""
    talks = [[7] * 24, [8] * 24]
    entries = [R(0, talks[i % 2], 1) for i in range(8)]

    def cached(stack: list[Any]) -> int:
        run = play(*entries, stack=stack, S=1, N=7, bs=4, caching=True)
        return sum(outcome.cached_tokens for outcome in run.outcomes.values())

    assert cached([Lpm(), "mixed"]) > cached(["fcfs", "mixed"])


# -- quota


def test_a_quota_holds_at_every_boundary() -> None:
    entries = [R(i % 3, 3, 5, tenant="x" if i % 4 else "y") for i in range(16)]
    seen: list[dict[str, int]] = []

    class Looks(Policy):
        def select(self, plan: Any, view: Any) -> None:
            names = [view.tenants[code] for code in view.tenant[view.active]]
            seen.append(dict(Counter(names)))

    play(*entries, stack=["fcfs", Quota(slots=2), Looks(), "mixed"], S=8)
    assert max(max(counts.values(), default=0) for counts in seen) == 2
    assert {"x": 2, "y": 2} in seen


def test_a_quota_lets_the_other_tenants_past() -> None:
    waiting = [{"id": f"x{i}", "prompt": 4, "tenant": "x"} for i in range(3)] + [
        {"id": "y0", "prompt": 4, "tenant": "y"}
    ]
    active = [{"id": "x", "prompt": 4, "tenant": "x"}]
    turn = boundary(waiting=waiting, active=active, stack=["fcfs", Quota(), "mixed"])
    assert turn.admitted == ["x0", "y0"] and turn.waits == {"x1": "limit", "x2": "limit"}
