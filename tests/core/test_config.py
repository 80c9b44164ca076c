"""A configuration is checked to its last option, and every mistake is one line: where, found, allowed, nearest."""

from __future__ import annotations

import json
import math
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interlock.core.config import EngineConfig, parse_stack
from interlock.core.errors import ConfigError
from interlock.core.yamlfile import dumps, read_text

PLUGINS = """
    from pathlib import Path
    from pydantic import BaseModel
    from interlock.core.policy import Policy, PolicyOptions
    from interlock.core.request import PreemptMode

    class Plain(Policy):
        pass

    class Ranked(Policy):
        class Options(PolicyOptions):
            preempt: PreemptMode = PreemptMode.RECOMPUTE
            levels: tuple[int, ...] = (1, 2)
            quantum_s: float | None = None

    class NoPolicy:
        pass

    class Backend:
        class Options(BaseModel):
            profile: Path | None = None
            speed: float = 1.0

        def __init__(self, options, base):
            self.options, self.base = options, base

    class Watcher:
        class Options(BaseModel):
            every: int = 1

        def __init__(self, options):
            self.options = options
"""
BASE = "policies: [plugins.py:Plain]\nexecutor: plugins.py:Backend\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "plugins.py").write_text(dedent(PLUGINS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(text: str, **options: Any) -> EngineConfig:
    Path("x.yaml").write_text(BASE + text if "policies" not in text else text + "\nexecutor: plugins.py:Backend")
    return EngineConfig.load("x.yaml", **options)


def refused(text: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 700
    return message


def test_defaults_are_those_of_the_documentation() -> None:
    found = load("").resolved()
    assert found["engine"] == {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "max_model_len": 8192,
        "long_prefill_token_threshold": 0,
        "prompt": "atomic",
        "pipeline_depth": 1,
        "on_violation": "raise",
        "seed": 0,
        "scan_limit": 64,
        "bypass_limit": 0,
        "max_waiting": None,
        "max_preemptions": 8,
        "progress_window": 256,
        "max_repeat": None,
        "hook_warn_s": 0.01,
    }
    assert found["kv"] == {
        "num_blocks": 4096,
        "block_size": 16,
        "enable_prefix_caching": True,
        "salt_by_tenant": False,
        "reserve": "prompt",
        "watermark": 0.0,
        "host_blocks": 4096,
    }
    assert found["slo"] == {"ttft_s": 1.0, "tpot_s": 0.05, "attain": 0.99}
    assert found["measure"] == {"warmup_s": 0.0, "cooldown_s": 0.0}
    assert found["records"] == {"tokens": True}
    assert found["plugins"] == []
    assert [spec.name for spec in EngineConfig().policies] == ["fcfs", "mixed"]
    assert EngineConfig().executor.plain() == {
        "simulated": {"cost": {"roofline": {"model": "llama-3-8b", "device": "a100-80gb"}}}
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kv: {block_size: 0}", "x.yaml:3: kv.block_size: found 0, allowed: an integer of at least 1"),
        ("kv:\n  block_size: 1.5", "x.yaml:4: kv.block_size: found 1.5, allowed: an integer of at least 1"),
        ("kv: {block_size: true}", "x.yaml:3: kv.block_size: found true, allowed: an integer of at least 1"),
        ("kv: {block_size: '16'}", "x.yaml:3: kv.block_size: found '16', allowed: an integer of at least 1"),
        ("kv: {watermark: .nan}", "x.yaml:3: kv.watermark: found nan, allowed: a number of at least 0 and below 1"),
        ("kv: {watermark: 1}", "x.yaml:3: kv.watermark: found 1, allowed: a number of at least 0 and below 1"),
        (
            "kv: {num_blocks: atuo}",
            "x.yaml:3: kv.num_blocks: found 'atuo', allowed: an integer of at least 1 or 'auto'; did you mean 'auto'?",
        ),
        (
            "kv: {reserve: promt}",
            "x.yaml:3: kv.reserve: found 'promt', allowed: 'none', 'prompt' or 'full'; did you mean 'prompt'?",
        ),
        ("engine: {on_violation: no}", "x.yaml:3: engine.on_violation: found 'no', allowed: 'raise' or 'repair'"),
        ("engine: {seed: -1}", "x.yaml:3: engine.seed: found -1, allowed: an integer of at least 0"),
        ("engine: {hook_warn_s: .inf}", "x.yaml:3: engine.hook_warn_s: found inf, allowed: a number of at least 0"),
        ("engine: {max_num_batched_tokens: null}", "found null, allowed: an integer of at least 1"),
        ("engine: 5", "x.yaml:3: engine: found 5, allowed: a mapping"),
        ("records: {tokens: 1}", "x.yaml:3: records.tokens: found 1, allowed: true or false"),
        ("name: a/b", "x.yaml:3: name: found 'a/b', allowed: text that can name a folder"),
        ("engine: {seed: 1}\nengine: {seed: 2}", "x.yaml:4: engine: found the key 'engine' twice"),
    ],
)
def test_a_wrong_value_names_line_key_found_and_allowed(text: str, message: str) -> None:
    assert message in refused(text)


def test_an_unknown_key_names_the_known_ones_and_the_nearest() -> None:
    message = refused("engine:\n  max_num_seq: 3")
    assert message.startswith(
        "x.yaml:4: engine.max_num_seq: unknown key; allowed: max_num_seqs, max_num_batched_tokens"
    )
    assert message.endswith("; did you mean 'max_num_seqs'?")
    assert refused("enginee: {}").endswith("did you mean 'engine'?")


def test_what_is_found_is_quoted_and_short() -> None:
    message = refused(f"kv: {{block_size: '{'x' * 1000}'}}")
    assert "found 'xxxx" in message
    assert len(message) < 160


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- a\n- policies", "found ['a', 'policies'], allowed: a mapping"),
        ("policies", "found 'policies', allowed: a mapping"),
    ],
)
def test_a_configuration_is_a_mapping(text: str, words: str) -> None:
    Path("x.yaml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        EngineConfig.load("x.yaml")
    assert str(caught.value) == f"x.yaml:1: {words}"


TRACE = "trace: {path: a.csv}"
ONE = "{constant: {value: 1}}"
GENERATE = f"generate: {{count: 1, arrivals: {{poisson: {{rate: 1}}}}, prompt: {ONE}, output: {ONE}}}"


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (
            f"{TRACE}, {GENERATE}",
            "workload: found trace and generate, allowed: exactly one of trace, generate",
        ),
        ("max_tokens: 5", "workload: found none, allowed: exactly one of trace, generate, requests"),
        ("trace: {}", "workload.trace.path: missing, allowed: a path"),
        (f"{TRACE}, predict: orakel", "found 'orakel', allowed: 'none', 'oracle' or a mapping with noisy or column"),
        (f"{TRACE}, max_tokens: all", "found 'all', allowed: an integer of at least 1, 'output' or 'context'"),
        (f"{GENERATE}, predict: {{column: c}}", "found predict from a column with generate, allowed: with a trace"),
        ("requests: [{id: a}]", "workload.requests.0: found none, allowed: exactly one of prompt, text"),
        (
            "requests: [{prompt: 1, cancel_at: 1, cancel_at_step: 2}]",
            "found cancel_at and cancel_at_step, allowed: at most one of cancel_at, cancel_at_step",
        ),
        ("requests: [{prompt: 1}, {prompt: [1, x]}]", "workload.requests.1.prompt.1: found 'x', allowed: an integer"),
        ("requests: [{prompt: 1, outptu: 2}]", "workload.requests.0.outptu: unknown key; allowed: id, arrival"),
        (
            "generate: {count: 1, arrivals: {posson: {rate: 1}}}",
            "arrivals.posson: unknown key; allowed: poisson, gamma, constant, closed; did you mean 'poisson'?",
        ),
        (
            GENERATE.replace("{poisson: {rate: 1}}", "{poisson: {rate: 1}, constant: {rate: 1}}"),
            "found poisson and constant, allowed: exactly one of poisson, gamma, constant, closed",
        ),
        (
            GENERATE.replace(", output: {constant: {value: 1}}", ""),
            "found prompt, allowed: prompt and output, or lengths",
        ),
        (GENERATE.replace(ONE, "{uniform: {low: 5, high: 2}}"), "allowed: high of at least low"),
        (
            GENERATE.replace(
                "{constant: {value: 1}}", "{hyperexponential: {probabilities: [0.5, 0.4], means: [1, 2]}}"
            ),
            "found probabilities that sum to 0.9, allowed: 1",
        ),
        (
            GENERATE.replace(ONE, "{hyperexponential: {probabilities: [1], means: [1, 2]}}"),
            "found 1 probabilities and 2 means, allowed: as many of each",
        ),
    ],
)
def test_a_wrong_workload_is_one_line(workload: str, message: str) -> None:
    found = refused(f"workload: {{{workload}}}")
    assert found.startswith("x.yaml:3: workload")
    assert message in found


def test_a_workload_is_needed_only_for_its_feed() -> None:
    with pytest.raises(ConfigError, match=r"^x\.yaml: workload: missing, allowed: a mapping with exactly one of trace"):
        load("").build_feed()


@pytest.mark.parametrize("stack", ["plugins.py:Ranked", "[plugins.py:Ranked]", "{plugins.py:Ranked: {}}"])
def test_a_bare_name_is_a_stack_of_one(stack: str, folder: Path) -> None:
    (spec,) = load(f"policies: {stack}").policies
    assert spec.name == f"{folder}/plugins.py:Ranked"
    assert spec.options == {"preempt": "recompute", "levels": [1, 2]}


def test_policies_are_built_in_order_with_their_options() -> None:
    plain, ranked = load("policies: [plugins.py:Plain, {plugins.py:Ranked: {preempt: offload}}]").build_policies()
    assert (type(plain).__name__, type(ranked).__name__) == ("Plain", "Ranked")
    assert ranked.options.preempt == "offload"


@pytest.mark.parametrize(
    ("stack", "message"),
    [
        ("[fcsf]", "policies.0.fcsf: unknown policy 'fcsf'; allowed: fcfs"),
        ("[plugins.py:Plan]", "policies.0.plugins.py:Plan: policy 'plugins.py:Plan': no 'Plan' in it; it has"),
        ("[plugins.py:NoPolicy]", "found the class NoPolicy, allowed: a subclass of interlock.core.Policy"),
        ("['json:dumps']", "found a function, allowed: a class"),
        ("[{a: {}, b: {}}]", "policies.0: found {'a': {}, 'b': {}}, allowed: a name, or a mapping of one name"),
        ("[3]", "policies.0: found 3, allowed: a name"),
        ("[{plugins.py:Ranked: 3}]", "policies.0.plugins.py:Ranked: found 3, allowed: a mapping of options"),
        (
            "[plugins.py:Plain, {plugins.py:Ranked: {preempt: ofload}}]",
            "policies.1.plugins.py:Ranked.preempt: found 'ofload', allowed: 'yield', 'offload' or 'recompute'; did you",
        ),
        (
            "[{plugins.py:Ranked: {premept: offload}}]",
            "policies.0.plugins.py:Ranked.premept: unknown key; allowed: preempt, levels, quantum_s; did you mean",
        ),
        ("[{plugins.py:Ranked: {levels: [1, true]}}]", "Ranked.levels.1: found true, allowed: an integer"),
        ("[{plugins.py:Ranked: {quantum_s: .nan}}]", "Ranked.quantum_s: found nan, allowed: a number"),
    ],
)
def test_a_wrong_policy_or_option_is_one_line(stack: str, message: str) -> None:
    found = refused(f"policies: {stack}")
    assert found.startswith("x.yaml:1: policies.")
    assert message in found


def test_the_installed_policies_take_their_options_by_name() -> None:
    message = refused("policies: [fcfs, {priority: {preempt: ofload}}]")
    assert message.startswith("x.yaml:1: policies.1.priority.preempt: found 'ofload', allowed: ")


def test_executor_and_plugins_are_checked_and_built_likewise(folder: Path) -> None:
    config = load("plugins: [{plugins.py:Watcher: {every: 3}}, plugins.py:NoPolicy]")
    watcher, plain = config.build_plugins()
    assert (watcher.options.every, type(plain).__name__) == (3, "NoPolicy")
    assert config.build_executor().base == folder  # type: ignore[attr-defined]
    assert "plugins.0.plugins.py:Watcher.evry: unknown key" in refused("plugins: [{plugins.py:Watcher: {evry: 3}}]")
    assert "NoPolicy.x: unknown key; allowed: none" in refused("plugins: [{plugins.py:NoPolicy: {x: 1}}]")
    with pytest.raises(ConfigError, match=r"^configuration: executor.simulatd: unknown executor 'simulatd'; allowed: "):
        EngineConfig.load({"executor": "simulatd"})


def test_paths_are_relative_to_the_configuration_and_absolute_once_resolved(folder: Path) -> None:
    below = folder / "below"
    below.mkdir()
    (below / "y.yaml").write_text(
        "policies: ../plugins.py:Plain\nexecutor: {../plugins.py:Backend: {profile: p.json}}\n"
        "workload: {trace: {path: t.csv}}\n"
    )
    config = EngineConfig.load("below/y.yaml")
    found = config.resolved()
    assert (config.base, config.origin) == (below, "below/y.yaml")
    assert found["policies"] == [{f"{folder}/plugins.py:Plain": {}}]
    assert found["executor"] == {f"{folder}/plugins.py:Backend": {"profile": f"{below}/p.json", "speed": 1.0}}
    assert found["workload"]["trace"]["path"] == f"{below}/t.csv"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("kv.block_size=0", "--set kv.block_size: found 0, allowed: an integer of at least 1"),
        ("kv.blok_size=1", "--set kv.blok_size: unknown key; allowed: num_blocks, block_size"),
        ("kv={block_size: 0}", "--set kv: kv.block_size: found 0"),
        ("kv.block_size.x=1", "--set kv.block_size.x: kv.block_size: found {'x': 1}"),
        ("engine.seed=no", "--set engine.seed: found 'no', allowed: an integer of at least 0"),
        ("policies.4=x", "--set policies.4: found item 4, allowed: 0 to 0"),
        ("name.x=1", "--set name.x: name: found 'here', allowed: a mapping, to set 'x' in it"),
        ("policies.0=fcsf", "--set policies.0: policies.0.fcsf: unknown policy 'fcsf'"),
        ("kv.block_size", "--set: found 'kv.block_size', allowed: KEY=VALUE"),
        ("kv.block_size=[", "--set kv.block_size: broken YAML"),
    ],
)
def test_an_error_of_set_names_its_key(override: str, message: str) -> None:
    assert refused("name: here", overrides=[override]).startswith(message)


def test_set_reaches_sections_lists_and_options() -> None:
    overrides = ["engine.seed=7", "kv.watermark=1e-2", "policies.0=plugins.py:Ranked"]
    overrides += ["policies.0.plugins.py:Ranked.preempt=yield", "workload={requests: [{prompt: 3}]}"]
    config = load("kv: {watermark: 0.5}", overrides=[*overrides[:3], *overrides[4:]])
    assert (config.engine.seed, config.kv.watermark) == (7, 0.01)
    assert config.workload is not None
    name = config.policies[0].name
    again = EngineConfig.load(config.resolved(), overrides=[f"policies.0.{name}.preempt=yield"])
    assert again.policies[0].options["preempt"] == "yield"
    item = load("workload: {requests: [{prompt: 3}, {prompt: 4}]}", overrides=["workload.requests.1.prompt=9"])
    assert item.resolved()["workload"]["requests"][1]["prompt"] == 9


def test_set_changes_only_what_it_names_where_yaml_shares() -> None:
    text = "workload: {requests: [&a {prompt: 3}, *a]}"
    requests = load(text, overrides=["workload.requests.1.prompt=9"]).resolved()["workload"]["requests"]
    assert [request["prompt"] for request in requests] == [3, 9]


@pytest.mark.parametrize(
    "stack", ["plugins.py:Plain+plugins.py:Ranked", "[plugins.py:Plain, {plugins.py:Ranked: {}}]", "s.yaml", "m.yaml"]
)
def test_a_stack_of_the_command_line_is_relative_to_the_current_folder(
    stack: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "below").mkdir()
    (folder / "below" / "y.yaml").write_text("executor: ../plugins.py:Backend\npolicies: absent\n")
    (folder / "s.yaml").write_text("- plugins.py:Plain\n- plugins.py:Ranked\n")
    (folder / "m.yaml").write_text("policies: [plugins.py:Plain, plugins.py:Ranked]\n")
    config = EngineConfig.load("below/y.yaml", policy=stack)
    assert [spec.name for spec in config.policies] == [f"{folder}/plugins.py:{name}" for name in ("Plain", "Ranked")]
    assert parse_stack(stack) == config.policies


def test_an_error_of_a_stack_names_the_option() -> None:
    assert refused("", policy="fcsf").startswith("--policy 'fcsf': policies.0.fcsf: unknown policy 'fcsf'")
    assert refused("", policy="[a").startswith("--policy '[a': inline YAML: broken YAML")
    assert refused("", policy="no.yaml").startswith("--policy 'no.yaml': no.yaml: cannot be read")
    assert refused("", seed=-1).startswith("--seed: engine.seed: found -1")
    with pytest.raises(ConfigError, match=r"^--policy 'fcsf': policies.0.fcsf: unknown policy"):
        parse_stack("fcsf")


def test_the_seed_is_the_engines_and_others_default_to_it() -> None:
    config = load("workload: {generate: {count: 3, arrivals: {poisson: {rate: 1}}, lengths: {path: l.csv}}}", seed=5)
    assert config.engine.seed == 5
    assert config.workload is not None
    assert config.workload.seed is None


def test_a_missing_configuration_names_the_packaged_ones() -> None:
    with pytest.raises(ConfigError, match=r"^nope: found no such file, allowed: a YAML file, or a packaged one "):
        EngineConfig.load("nope")
    with pytest.raises(ConfigError, match="found a folder"):
        EngineConfig.load(Path.cwd())


def test_an_empty_section_means_its_defaults() -> None:
    assert load("engine:\nkv:\nslo: null") == load("")


def test_python_values_of_a_mapping_are_taken_for_what_they_are() -> None:
    import numpy as np

    mapping = {"executor": "plugins.py:Backend", "policies": (), "kv": {"num_blocks": np.int64(7)}}
    assert EngineConfig.load(mapping).kv.num_blocks == 7
    with pytest.raises(ConfigError, match="found <object object"):
        EngineConfig.load({**mapping, "name": object()})


def test_the_schema_has_the_options_of_what_is_installed() -> None:
    schema = EngineConfig.json_schema()
    json.dumps(schema)
    assert set(schema["properties"]) == set(EngineConfig.model_fields)
    names = {option["const"] for option in schema["$defs"]["policies"]["anyOf"] if "const" in option}
    assert {"fcfs", "priority", "mixed"} <= names


def configurations() -> st.SearchStrategy[dict[str, Any]]:
    """Valid configurations, with as many sections as Hypothesis likes."""
    number = st.floats(0, 1e6, allow_nan=False).map(lambda value: math.ldexp(value, -3))
    request = st.fixed_dictionaries(
        {"prompt": st.integers(0, 9) | st.lists(st.integers(0, 99), max_size=3)},
        optional={
            "id": st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5),
            "arrival": number,
            "deadline_s": st.none() | number,
            "tenant": st.sampled_from(["no", "1", "1e-3", "x: y"]),
            "stop_token_ids": st.lists(st.integers(0, 9), max_size=2),
        },
    )
    predict = st.sampled_from(["none", "oracle", {"noisy": {"sigma": 0.5}}])
    sources = [{"requests": st.lists(request, max_size=3)}, {"trace": st.just({"path": "t.csv", "limit": 3})}]
    extra = {
        "max_tokens": st.sampled_from(["output", "context", 5]),
        "predict": predict,
        "seed": st.none() | st.just(3),
    }
    sections = {
        "name": st.sampled_from(["no", "1", "é"]),
        "engine": st.fixed_dictionaries({}, optional={"max_waiting": st.none() | st.just(3), "hook_warn_s": number}),
        "kv": st.fixed_dictionaries({}, optional={"num_blocks": st.sampled_from(["auto", 9])}),
        "slo": st.fixed_dictionaries({}, optional={"ttft_s": st.none() | st.just(2)}),
        "workload": st.one_of(*(st.fixed_dictionaries(source, optional=extra) for source in sources)),
    }
    policies = st.lists(st.sampled_from(["plugins.py:Plain", {"plugins.py:Ranked": {"levels": [3]}}]), max_size=2)
    fixed = {"executor": st.just("plugins.py:Backend"), "policies": policies}
    return st.fixed_dictionaries(fixed, optional=sections)


def test_a_resolved_configuration_loads_to_an_equal_one() -> None:
    @settings(derandomize=True, deadline=None)
    @given(configurations())
    def round_trip(data: dict[str, Any]) -> None:
        config = EngineConfig.load(data)
        again = EngineConfig.load(read_text(dumps(config.resolved()), "again").data)
        assert again == config
        assert again.resolved() == config.resolved()

    round_trip()
