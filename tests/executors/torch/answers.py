"""What answers are held to: `transformers` for dense models, and the serial reference for looped ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from serial import FULL, Exits, serial_logits
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from interlock.core.hashing import splitmix64
from interlock.executors.torch.loading import load
from interlock.executors.torch.options import TorchOptions
from interlock.executors.torch.quiet import quietly

LONGEST = 24
NEAR = 1e-4
"""Logits that are nearer to each other than this may change places in float32."""


class Answer(NamedTuple):
    """Greedy tokens, and the logits that each was taken from, (tokens, vocabulary)."""

    tokens: list[int]
    logits: Tensor

    def first(self, count: int) -> Answer:
        """The first tokens of it."""
        return Answer(self.tokens[:count], self.logits[:count])


class Theirs:
    """The model in a folder as `transformers` runs it: eager attention, its own cache, its own `generate`."""

    def __init__(self, folder: Path) -> None:
        with quietly():
            self.model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
        self._known: dict[tuple[bool, tuple[int, ...]], Answer] = {}

    def greedy(self, prompt: Sequence[int], count: int = LONGEST, ends: bool = True) -> Answer:
        """At most `count` tokens, of `LONGEST` that are remembered. `ends`: whether end tokens end it."""
        key = ends, tuple(prompt)
        if key not in self._known:
            given = torch.tensor([list(prompt)])
            said = self.model.generate(
                given, attention_mask=torch.ones_like(given), max_new_tokens=LONGEST, do_sample=False, pad_token_id=0,
                return_dict_in_generate=True, output_logits=True, **({} if ends else {"eos_token_id": -1}),
            )  # fmt: skip
            self._known[key] = Answer(said.sequences[0, len(prompt) :].tolist(), torch.cat(said.logits))
        return self._known[key].first(count)

    def logits(self, tokens: Sequence[int]) -> Tensor:
        """The logits after each of these tokens, (tokens, vocabulary)."""
        with torch.inference_mode():
            out: Tensor = self.model(torch.tensor([list(tokens)])).logits[0]
        return out


class Serially:
    """A looped model, one sequence at a time, in float64."""

    def __init__(self, model: str | Path) -> None:
        self.model = load(TorchOptions(model=str(model), dtype="float64", device="cpu"), Path()).model
        self._known: dict[tuple[object, ...], tuple[list[int], list[int]]] = {}

    def greedy(
        self, prompt: Sequence[int], count: int, exits: Exits = FULL, seed: int = 0
    ) -> tuple[list[int], list[int]]:
        """`count` tokens, end tokens or not, and the loops that each ran. `seed`: the request's own."""
        key = tuple(prompt), repr(exits), seed
        if len(self._known.get(key, ((), ()))[0]) < count:
            assert isinstance(self.model, nn.Module)
            mixed = int(splitmix64(np.array([seed], np.uint64))[0])
            logits, depths = serial_logits(self.model, prompt, count, exits, mixed)
            self._known[key] = logits.argmax(-1).tolist(), depths
        tokens, depths = self._known[key]
        return tokens[:count], depths[:count]


def hrm_greedy(folder: Path, prompt: Sequence[int], count: int) -> Answer:
    """What HRM-Text of `transformers` says; the prompt is one bidirectional block where the model allows it."""
    with quietly():
        model: Any = AutoModelForCausalLM.from_pretrained(folder)
    ids, cache, rows = torch.tensor([list(prompt)]), None, []
    kinds = {"token_type_ids": torch.ones_like(ids)} if model.config.prefix_lm else {}
    with torch.inference_mode():
        for _ in range(count):
            out = model(input_ids=ids, cache=cache, use_cache=True, **kinds)
            rows.append(out.logits[0, -1])
            ids, cache, kinds = rows[-1].argmax()[None, None], out.cache, {}
    logits = torch.stack(rows)
    return Answer(logits.argmax(-1).tolist(), logits)


def agree(said: Sequence[int], expected: Answer) -> None:
    """The same tokens, up to where the reference's two best logits are as good as equal, if they are anywhere."""
    for at, (one, other) in enumerate(zip(said, expected.tokens, strict=False)):
        if one != other:
            apart = float(expected.logits[at, other] - expected.logits[at, one])
            assert apart < NEAR, f"token {at} is {one}, of {list(said)}; expected {other}, of {expected.tokens}"
            return
    assert len(said) == len(expected.tokens), f"said {list(said)}, expected {expected.tokens}"
