"""The engines of `generate.py`: each loads a model from a folder and answers waves of requests, greedily."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch

from interlock.core import BoundaryRecord, Engine, Request, SamplingParams

Wave = Sequence[tuple[list[int], int]]
"""Prompts and how many tokens each is answered with, whatever they are."""

BLOCK, BLOCKS, CHUNK = 16, 1024, 2048  # tokens of a KV block, blocks, tokens of a batch


class Answered(NamedTuple):
    """A wave's outputs in its order, how long it took, and what else an engine says about it."""

    seconds: float
    outputs: list[list[int]]
    notes: dict[str, float] = {}


class Generator(Protocol):
    """An engine with a model."""

    name: str

    def answer(self, wave: Wave) -> Answered:
        """Answer a wave whose requests arrive all at once."""
        ...

    def close(self) -> None:
        """It is not asked again."""


class Interlock(Generator):
    """The torch executor under a stack of policies."""

    def __init__(self, folder: Path, stack: str, rows: int, threads: int) -> None:
        self.name = f"Interlock {stack}"
        self._engine = Engine.from_config(
            {
                "engine": {"max_num_seqs": rows, "max_num_batched_tokens": CHUNK, "max_model_len": 1024},
                "kv": {"num_blocks": BLOCKS, "block_size": BLOCK},
                "policies": list(stack.split("+")),
                "executor": {"torch": {"model": str(folder), "device": "cpu", "cpu_threads": threads}},
            }
        )

    def answer(self, wave: Wave) -> Answered:
        """The engine goes on from wave to wave, as a server's would."""
        engine, before = self._engine, self._engine.stats.scheduler_ns
        records: list[BoundaryRecord] = []
        started = time.perf_counter()
        handles = [
            engine.submit(Request(str(at), ids, SamplingParams(max_tokens=count, ignore_eos=True)))
            for at, (ids, count) in enumerate(wave)
        ]
        while (record := engine.step()) is not None:
            records.append(record)
        spent = time.perf_counter() - started
        share = (engine.stats.scheduler_ns - before) / 1e9 / spent
        return Answered(spent, [list(handle.token_ids) for handle in handles], {"share": share, **_decode(records)})


def _decode(records: Sequence[BoundaryRecord]) -> dict[str, float]:
    """Milliseconds of a step of decode rows alone, and how many rows it has on average."""
    results = [one for record in records for one in record.collected if one.batch.decode_only]
    runs = sum(len(one.result.ends_ns) for one in results)
    spent = sum(int(one.result.ends_ns[-1]) - one.batch.start_ns for one in results)
    rows = sum(len(one.batch) * len(one.result.ends_ns) for one in results)
    return {"step_ms": spent / 1e6 / runs, "rows": rows / runs} if runs else {}


class Padded(Generator):
    """`generate` of transformers: one batch, padded on the left, run as long as the longest answer is."""

    name = "transformers, padded"

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
        self._config = _greedy(self._model)

    def answer(self, wave: Wave) -> Answered:
        """All rows run to the end; the tokens that nobody asked for are not counted."""
        started = time.perf_counter()
        longest, most = max(len(ids) for ids, _ in wave), max(count for _, count in wave)
        ids = torch.tensor([[0] * (longest - len(ids)) + ids for ids, _ in wave])
        mask = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids, _ in wave])
        with torch.inference_mode():
            said = self._model.generate(ids, attention_mask=mask, generation_config=self._config, max_new_tokens=most)
        spent = time.perf_counter() - started
        rows = zip(said[:, longest:].tolist(), wave, strict=True)
        return Answered(spent, [row[:count] for row, (_, count) in rows])


class Continuous(Generator):
    """Continuous batching of transformers, with the batch size and page size that suit it best here."""

    name = "transformers, continuous"

    def __init__(self, folder: Path, rows: int) -> None:
        from transformers import AutoModelForCausalLM
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        # Eager attention takes twice as long, and by default it takes most of the memory and batches to match.
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype="float32", attn_implementation="sdpa"
        ).eval()
        self._config = _greedy(self._model)
        self._batching = ContinuousBatchingConfig(
            num_blocks=BLOCKS, page_size=BLOCK, max_batch_tokens=512, max_requests_per_batch=rows
        )

    def answer(self, wave: Wave) -> Answered:
        """Starting and stopping its thread is not timed."""
        said: dict[str, list[int]] = {}
        with self._model.continuous_batching_context_manager(
            generation_config=self._config, continuous_batching_config=self._batching, block=True, warmup=False
        ) as manager:
            started = time.perf_counter()
            for at, (ids, count) in enumerate(wave):
                manager.add_request(ids, request_id=str(at), max_new_tokens=count, eos_token_id=-1)
            while len(said) < len(wave):
                one = manager.get_result(timeout=1)
                if one is not None and one.is_finished():
                    said[one.request_id] = one.generated_tokens
                elif one is None and not manager.is_running():
                    raise RuntimeError("its thread ended before the requests did")
            spent = time.perf_counter() - started
        return Answered(spent, [said[str(at)] for at in range(len(wave))])


def _greedy(model: Any) -> Any:
    """Greedy, and nothing ends an answer."""
    from transformers import GenerationConfig

    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=None, bos_token_id=None)
    return model.generation_config


class Vllm(Generator):
    """vLLM's offline engine in a process of another Python. See `vllm_generate.py`."""

    def __init__(self, python: str, folder: Path, rows: int, threads: int, eager: bool) -> None:
        limits = {"rows": rows, "chunk": CHUNK, "eager": eager}
        environment = {
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # nobody else is bound either
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # else a second process takes a core of its own
            "VLLM_LOGGING_LEVEL": "ERROR",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name("vllm_generate.py")), str(folder), json.dumps(limits)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self.name = f"vLLM {self._read()['version']}{' eager' if eager else ''}"

    def answer(self, wave: Wave) -> Answered:
        """Timed by itself."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(wave) + "\n")
        self._process.stdin.flush()
        told = self._read()
        return Answered(told["seconds"], told["outputs"])

    def close(self) -> None:
        """The other process ends with its input."""
        self._process.communicate()

    def _read(self) -> dict[str, Any]:
        """The next line that is an answer. RuntimeError with its reason when there is none."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                told: dict[str, Any] = json.loads(line)
                if "error" in told:
                    raise RuntimeError(told["error"])
                return told
        raise RuntimeError(f"it ended with code {self._process.wait()}")
