"""A real model, from a text to the text of an answer: SmolLM2, where `make run-model` has put it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenario import MIXED

from interlock.core import Engine, Request, SamplingParams
from interlock.executors.torch.checkpoint import open_checkpoint
from interlock.executors.torch.executor import Torch
from interlock.executors.torch.folder import Folder
from interlock.executors.torch.gguf import _name
from interlock.executors.torch.keep import cache_folder

from .answers import Theirs, agree
from .kit import COST

ROOT = Path(__file__).parents[3]
FILE = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
QUESTIONS = ("What is the capital of France?", "Name three prime numbers.")


def found() -> Path:
    """The file, or what was made of it before. Skips where there is neither."""
    (digest,) = re.findall(r'^SHA256 = "(\w+)"$', (ROOT / "scripts" / "fetch_model.py").read_text(), re.MULTILINE)
    kept = cache_folder() / _name(digest)
    place = next((place for place in (FILE, kept) if place.exists()), None)
    if place is None:
        pytest.skip(f"needs models/{FILE.name}, which `make run-model` fetches")
    return place


def test_greedy_answers_of_a_chat_are_those_of_generate() -> None:
    model = found()
    checkpoint = open_checkpoint(str(model), Path())
    assert isinstance(checkpoint, Folder)
    options = {"model": str(model), "device": "cpu", "dtype": "float32", "chat": True, **COST}
    limits = {"max_num_batched_tokens": 24, "max_model_len": 256}
    engine = Engine.from_config(
        {"engine": limits, "kv": {"num_blocks": 20}, "policies": list(MIXED), "executor": {"torch": options}}
    )
    assert isinstance(engine.executor, Torch) and engine.executor.tokenizer is not None
    prompts = [engine.executor.tokenizer.encode(question) for question in QUESTIONS]
    handles = [
        engine.submit(Request(f"r{at}", prompt, SamplingParams(max_tokens=20))) for at, prompt in enumerate(prompts)
    ]
    for _ in engine.run():
        pass
    theirs = Theirs(checkpoint.folder)
    for handle, prompt in zip(handles, prompts, strict=True):
        agree(handle.token_ids, theirs.greedy(prompt.tolist(), 20))
    assert "Paris" in "".join(handles[0].text())
