"""Recorded traces: ours and the public ones as they are, and one line for each malformed row."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from interlock.core.config_workload import WorkloadSection
from interlock.core.errors import ConfigError
from interlock.core.feed import Arrival
from interlock.core.request import Request
from interlock.plugins.workload import build

HEADER = "arrival_s,prompt_tokens,output_tokens"


def arrivals(folder: Path, name: str, content: str | None = None, *, seed: int = 0, **workload: Any) -> list[Arrival]:
    """All arrivals of a trace."""
    if content is not None:
        (folder / name).write_text(content)
    options = {"path": name, **workload.pop("trace", {})}
    section = WorkloadSection.model_validate_json(json.dumps({"trace": options, **workload}))
    feed = build(section, base=folder, seed=seed, max_model_len=8192)
    events = feed.due(2**62, 0, [])
    assert feed.next_ns() is None
    return [event for event in events if isinstance(event, Arrival)]


def facts(found: list[Arrival]) -> list[tuple[str, int, int, int | None]]:
    return [(one.request.id, one.at_ns, one.request.prompt_tokens, one.output) for one in found]


def requests(found: list[Arrival]) -> list[Request]:
    return [one.request for one in found]


def test_a_row_is_a_request(tmp_path: Path) -> None:
    found = arrivals(tmp_path, "t.csv", f"{HEADER}\n0.5,10,3\n1.25,20,4\n")
    assert facts(found) == [("r0", 500_000_000, 10, 3), ("r1", 1_250_000_000, 20, 4)]
    assert found[1].request.arrival == 1.25


def test_rows_are_handed_out_once_when_their_time_has_come(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{HEADER}\n0,1,1\n1,1,1\n1,1,1\n2,1,1\n")
    section = WorkloadSection.model_validate_json('{"trace": {"path": "t.csv"}}')
    feed = build(section, base=tmp_path, seed=0, max_model_len=9)
    assert feed.next_ns() == 0
    assert [len(feed.due(now, 0, [])) for now in (0, 999_999_999, 1_000_000_000, 1_000_000_000)] == [1, 0, 2, 0]
    assert (feed.next_ns(), feed.next_step()) == (2_000_000_000, None)


def test_rows_out_of_order_are_sorted_and_equal_times_keep_their_order(tmp_path: Path) -> None:
    found = arrivals(tmp_path, "t.csv", f"{HEADER},tenant\n2,1,1,c\n1,2,2,a\n1,3,3,b\n")
    assert [(request.id, request.tenant, request.prompt_tokens) for request in requests(found)] == [
        ("r0", "a", 2),
        ("r1", "b", 3),
        ("r2", "c", 1),
    ]


def test_optional_columns_may_be_empty(tmp_path: Path) -> None:
    text = f"{HEADER},priority,tenant,deadline_s\n0,1,1,-3,no,2.5\n0,1,1,,,\n"
    first, second = requests(arrivals(tmp_path, "t.csv", text))
    assert (first.priority, first.tenant, first.deadline_s) == (-3, "no", 2.5)
    assert (second.priority, second.tenant, second.deadline_s) == (0, "", None)


def test_limit_speedup_and_further_columns(tmp_path: Path) -> None:
    text = f"{HEADER},user_id\n0,1,1,007\n4,1,1,008\n9,1,1,009\n"
    trace = {"limit": 2, "speedup": 2.0, "columns": {"user": "user_id"}}
    found = arrivals(tmp_path, "t.csv", text, trace=trace)
    assert [one.at_ns for one in found] == [0, 2_000_000_000]
    assert [dict(request.metadata) for request in requests(found)] == [{"user": "007"}, {"user": "008"}]


def test_an_azure_trace_is_read_as_it_is(tmp_path: Path) -> None:
    rows = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}"
    assert facts(arrivals(tmp_path, "t.csv", text)) == [("r0", 0, 4808, 10), ("r1", 52_000_000, 3180, 8)]
    later = text.replace("9799600", "979960+00:00").replace("0319600", "031960+00:00")
    assert facts(arrivals(tmp_path, "u.csv", later)) == facts(arrivals(tmp_path, "t.csv"))


def test_a_burstgpt_trace_is_read_without_its_failures(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,API log\n"
    )
    with capture_logs() as logs:
        found = arrivals(tmp_path, "t.csv", text, trace={"limit": 2})
    assert facts(found) == [("r0", 5_000_000_000, 472, 18), ("r1", 118_000_000_000, 417, 276)]
    assert [(log["log_level"], log["count"]) for log in logs] == [("warning", 1)]


def test_a_mooncake_trace_shares_the_tokens_of_equal_ids(tmp_path: Path) -> None:
    rows = [
        {"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 27, "input_length": 1100, "output_length": 6, "hash_ids": [0, 1, 3]},
        {"timestamp": 30, "input_length": 600, "output_length": 6, "hash_ids": [9]},
    ]
    found = arrivals(tmp_path, "t.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
    assert facts(found) == [("r0", 0, 1030, 5), ("r1", 27_000_000, 1100, 6), ("r2", 30_000_000, 600, 6)]
    first, second, third = [request.prompt_ids() for request in requests(found)]
    assert np.array_equal(first[:1024], second[:1024])
    assert not np.array_equal(first[1024:], second[1024:1030])
    assert not np.array_equal(first[1:512], first[512:1023]), "neighbouring ids are no shifted copies"
    assert len(third) == 600, "tokens without an id are the request's own"


def test_prefix_ids_of_our_own_traces_stay_with_their_rows_when_sorted(tmp_path: Path) -> None:
    text = f"{HEADER},prefix_hash_ids\n1,1024,1,7 8\n0,512,1,7\n2,512,1,\n"
    first, second, third = [request.prompt_ids() for request in requests(arrivals(tmp_path, "t.csv", text))]
    assert np.array_equal(first, second[:512])
    assert len(second) == 1024
    assert not np.array_equal(first, third)


def test_parquet_is_read_alike(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {"arrival_s": [0.0, 1.0], "prompt_tokens": [3, 4], "output_tokens": [5, 6]}
    ids = {"prefix_hash_ids": [[1], None], "tenant": ["a", None]}
    pq.write_table(pa.table({**columns, **ids}), tmp_path / "t.parquet")
    found = arrivals(tmp_path, "t.parquet")
    assert facts(found) == [("r0", 0, 3, 5), ("r1", 1_000_000_000, 4, 6)]
    assert [request.tenant for request in requests(found)] == ["a", ""]
    pq.write_table(pa.table({**columns, "prompt_tokens": [3, None]}), tmp_path / "t.parquet")
    with pytest.raises(
        ConfigError, match=r"t\.parquet:row 2: prompt_tokens: found null, allowed: an integer of at least 0"
    ):
        arrivals(tmp_path, "t.parquet")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{HEADER}\n0,1,1\n0,x,1\n", "t.csv:3: prompt_tokens: found 'x', allowed: an integer of at least 0"),
        (f"{HEADER}\n0,1,1\n\n0,1,nan\n", "t.csv:4: output_tokens: found 'nan', allowed: an integer of at least 1"),
        (f"{HEADER}\n0,-1,1\n", "t.csv:2: prompt_tokens: found '-1', allowed: an integer of at least 0"),
        (f"{HEADER}\n0,1.5,1\n", "t.csv:2: prompt_tokens: found '1.5', allowed: an integer of at least 0"),
        (f"{HEADER}\n0,1,0\n", "t.csv:2: output_tokens: found '0', allowed: an integer of at least 1"),
        (f"{HEADER}\n,1,1\n", "t.csv:2: arrival_s: found '', allowed: a number of at least 0"),
        (f"{HEADER}\n-1,1,1\n", "t.csv:2: arrival_s: found '-1', allowed: a number of at least 0"),
        (f"{HEADER}\ninf,1,1\n", "t.csv:2: arrival_s: found 'inf', allowed: a number of at least 0"),
        (f"{HEADER}\n0,1,1\n0,1\n", "t.csv:3: found 2 fields, allowed: 3"),
        (f"{HEADER}\n", "t.csv: found no rows, allowed: at least one"),
        ("", "t.csv:1: found the header [], allowed: column names, each once"),
        (
            "arrival_s,prompt_tokens\n0,1\n",
            "t.csv:1: missing output_tokens: found columns arrival_s, prompt_tokens, allowed:",
        ),
        (f"{HEADER},priority\n0,1,1,1\n0,1,1,high\n", "t.csv:3: priority: found 'high', allowed: an integer"),
        (
            f"{HEADER},deadline_s\n0,1,1,\n0,1,1,nan\n",
            "t.csv:3: deadline_s: found 'nan', allowed: a number of at least 0",
        ),
        (
            f"{HEADER},prefix_hash_ids\n0,9,1,5\n0,9,1,x\n",
            "t.csv:3: prefix_hash_ids: found 'x', allowed: integers of 64",
        ),
        (
            f"{HEADER},prefix_hash_ids\n0,9,1,5 6\n",
            "found '5 6', allowed: at most 1 ids, one per 512 tokens of the prompt",
        ),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\nyesterday,1,1\n",
            "t.csv:3: TIMESTAMP: found 'yesterday', allowed: a time like 2023-11-16",
        ),
    ],
)
def test_a_malformed_row_names_file_line_column_found_and_allowed(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arrivals(tmp_path, "t.csv", text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/t.csv:")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"timestamp": 0, "input_length": 1, "output_length": 1}\n{"timestamp": 0\n', ":2: broken JSON: "),
        ("[1]\n", ":1: found [1], allowed: an object"),
        (
            '\n{"timestamp": 0, "input_length": true, "output_length": 1}',
            ":2: input_length: found true, allowed: an integer",
        ),
        ('{"timestamp": 0, "input_length": 1, "output_length": null}', ":1: output_length: found null, allowed:"),
    ],
)
def test_a_malformed_json_line_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        arrivals(tmp_path, "t.jsonl", text)
    assert message in str(caught.value)


def test_a_file_that_is_missing_or_of_no_known_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.csv: found no such file, allowed: a trace$"):
        arrivals(tmp_path, "absent.csv")
    with pytest.raises(
        ConfigError, match=r"t\.txt: found the ending '\.txt', allowed: \.csv, \.jsonl, \.ndjson, \.parquet$"
    ):
        arrivals(tmp_path, "t.txt", "")
    (tmp_path / "t.csv").write_bytes(b"arrival_s\n\xff\xff")
    with pytest.raises(ConfigError, match=r"t\.csv:2: found a byte that is not UTF-8"):
        arrivals(tmp_path, "t.csv")
    with pytest.raises(ConfigError, match=r"t\.parquet: not Parquet: "):
        arrivals(tmp_path, "t.parquet", "PAR1")


def test_a_column_that_is_not_there_is_answered_with_the_nearest(tmp_path: Path) -> None:
    text = f"{HEADER},user\n0,1,1,x\n"
    with pytest.raises(
        ConfigError, match=r"columns\.who: found the column 'usr', allowed: .*user; did you mean 'user'\?"
    ):
        arrivals(tmp_path, "t.csv", text, trace={"columns": {"who": "usr"}})
    with pytest.raises(ConfigError, match=r"predict\.column: found the column 'usr', allowed: "):
        arrivals(tmp_path, "t.csv", text, predict={"column": "usr"})


def test_max_tokens_is_what_policies_see_of_the_output(tmp_path: Path) -> None:
    text = f"{HEADER}\n0,1,7\n0,1,9\n"

    def seen(limit: Any) -> list[int | None]:
        return [
            request.sampling.max_tokens for request in requests(arrivals(tmp_path, "t.csv", text, max_tokens=limit))
        ]

    assert (seen("output"), seen(100), seen("context")) == ([7, 9], [100, 100], [None, None])


def test_predictions(tmp_path: Path) -> None:
    text = f"{HEADER},guess\n" + "".join(f"{i},1,100,{'' if i == 1 else i + 0.4}\n" for i in range(2000))

    def predicted(predict: Any, seed: int = 0) -> list[int]:
        return [one.predicted for one in requests(arrivals(tmp_path, "t.csv", text, predict=predict, seed=seed))]

    assert set(predicted("none")) == {-1}
    assert set(predicted("oracle")) == {100}
    assert predicted({"column": "guess"})[:4] == [0, -1, 2, 3]
    noisy = predicted({"noisy": {"sigma": 0.5}})
    assert np.std(np.log(noisy)) == pytest.approx(0.5, rel=0.1)
    assert np.median(noisy) == pytest.approx(100, rel=0.1)
    assert noisy == predicted({"noisy": {"sigma": 0.5}})
    assert noisy != predicted({"noisy": {"sigma": 0.5}}, seed=1)


def test_a_long_trace_loads_in_a_fraction_of_a_second(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(f"{HEADER}\n" + "".join(f"{i / 7:.6f},{i % 999 + 1},5\n" for i in range(20_000)))
    section = WorkloadSection.model_validate_json('{"trace": {"path": "t.csv"}}')
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        build(section, base=tmp_path, seed=0, max_model_len=8192)
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.3
