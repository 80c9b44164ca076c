"""HRM-Text against the model of that name in `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from paged_run import PagedRun, tiny_model
from safetensors.torch import load_file, save_file
from serial import serial_logits
from torch import Tensor
from transformers import HrmTextConfig, HrmTextForCausalLM

PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6], [27])
OUTPUTS = 8


def theirs(folder: Path, prompt: list[int]) -> Tensor:
    """Logits of a greedy run, (OUTPUTS, vocabulary). The prompt is one bidirectional block if the model allows it."""
    model = HrmTextForCausalLM.from_pretrained(folder)
    ids, cache, rows = torch.tensor([prompt]), None, []
    kinds = {"token_type_ids": torch.ones_like(ids)} if model.config.prefix_lm else {}
    with torch.no_grad():
        for _ in range(OUTPUTS):
            out = model(input_ids=ids, cache=cache, use_cache=True, **kinds)
            rows.append(out.logits[0, -1])
            ids, cache, kinds = rows[-1].argmax()[None, None], out.cache, {}
    return torch.stack(rows)


@pytest.mark.parametrize("prefix_lm", [False, True])
@pytest.mark.parametrize("changes", [{}, {"embedding_scale": None, "initializer_range": 0.5}], ids=["scale", "range"])
def test_logits_and_greedy_tokens_are_those_of_transformers(
    prefix_lm: bool, changes: dict[str, object], tmp_path: Path
) -> None:
    model = tiny_model("tiny-hrm", torch.float32, seed=2, prefix_lm=prefix_lm, **changes)
    (tmp_path / "config.json").write_text(json.dumps(model.config))
    save_file(dict(model.named_parameters()), tmp_path / "model.safetensors", metadata={"format": "pt"})
    run = PagedRun(model, 16, 4)
    for prompt in PROMPTS:
        expected = theirs(tmp_path, prompt)
        row = run.admit(prompt, [len(prompt)] if prefix_lm else [1] * len(prompt), OUTPUTS)
        while len(row.logits) < OUTPUTS:
            run.step([row])
        torch.testing.assert_close(torch.stack(row.logits), expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(serial_logits(model, prompt, OUTPUTS)[0], expected, rtol=0, atol=1e-4)
        assert row.ids[len(prompt) :] == expected.argmax(dim=-1).tolist()


def test_the_prompt_attends_to_all_of_itself_only_with_prefix_lm(tmp_path: Path) -> None:
    prefix, causal = (serial_logits(tiny_model("tiny-hrm", prefix_lm=on), PROMPTS[0], 1)[0] for on in (True, False))
    assert (prefix - causal).abs().max() > 0.1


def test_a_checkpoint_that_transformers_wrote_has_our_names_and_a_config_that_we_read(tmp_path: Path) -> None:
    """It writes the layers of a stack apart from their number over all passes."""
    sizes = {"vocab_size": 40, "hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8}
    HrmTextForCausalLM(HrmTextConfig(**sizes, num_hidden_layers=3, H_cycles=2, L_cycles=2)).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["num_hidden_layers"] == 3 * 2 * (2 + 1)
    model = type(tiny_model("tiny-hrm")).build(config)
    model.load_state_dict(load_file(tmp_path / "model.safetensors"), strict=True)
    assert model.shape.recurrent_layers == 3 * (2 + 1)
