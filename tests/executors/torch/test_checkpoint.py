"""Folders of Hugging Face and built-in tiny models: what is read, and the one line that says why something is not."""

from __future__ import annotations

import re
import socket
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from interlock.core import ConfigError
from interlock.executors.torch.checkpoint import open_checkpoint
from interlock.executors.torch.folder import DENSE

from .saved import CPU, edit, logits, model_of, saved, with_tokenizer

F32 = torch.float32


def refused(model: str | Path, load: bool = False) -> str:
    """The one line of why a checkpoint cannot be opened, or loaded."""
    with pytest.raises(ConfigError) as caught:
        checkpoint = open_checkpoint(str(model), Path())
        if load:
            checkpoint.load_dense("sdpa", F32, CPU)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- what is read


@pytest.mark.parametrize("family", DENSE)
def test_a_folder_gives_the_model_that_was_saved(family: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(saved(tmp_path / "m", family)), tmp_path)
    model = checkpoint.load_dense("sdpa", F32, CPU)
    assert (checkpoint.architecture, checkpoint.looped, checkpoint.tiny) == (family, False, False)
    assert torch.equal(logits(model), logits(model_of(family)))
    assert model.config._attn_implementation == "sdpa"
    assert not model.training
    assert not any(weight.requires_grad for weight in model.parameters())


def test_a_sharded_folder_gives_the_same(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", shard="100KB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    checkpoint = open_checkpoint("m", tmp_path)
    assert torch.equal(logits(checkpoint.load_dense("sdpa", F32, CPU)), logits(model_of()))
    assert dict(checkpoint.weights()).keys() == model_of().state_dict().keys()


def test_paths_are_relative_to_the_base_and_may_begin_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "models" / "m")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, base in (("../models/m", tmp_path / "configs"), ("~/models/m", Path("/nowhere"))):
        (tmp_path / "configs").mkdir(exist_ok=True)
        assert open_checkpoint(name, base).architecture == "llama"


@pytest.mark.parametrize(
    ("generation", "config", "found"),
    [({}, 1, (1,)), ({"eos_token_id": [5, 6]}, 1, (5, 6)), ({"eos_token_id": 7}, [1, 2], (7,)), (None, [1, 2], (1, 2))],
)
def test_the_generation_config_says_first_what_ends_an_answer(
    generation: dict[str, Any] | None, config: Any, found: tuple[int, ...], tmp_path: Path
) -> None:
    saved(tmp_path)
    edit(tmp_path / "config.json", eos_token_id=config)
    (tmp_path / "generation_config.json").unlink()
    if generation is not None:
        (tmp_path / "generation_config.json").write_text("{}")
        edit(tmp_path / "generation_config.json", **generation)
    assert open_checkpoint(str(tmp_path), Path()).eos_token_ids == found


def test_a_folder_may_have_a_tokenizer(tmp_path: Path) -> None:
    saved(tmp_path)
    assert open_checkpoint(str(tmp_path), Path()).tokenizer() is None
    tokenizer = open_checkpoint(str(with_tokenizer(tmp_path)), Path()).tokenizer()
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("猫 the fox")) == "猫 the fox"


def test_loading_is_silent_offline_and_leaves_settings_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("the network was asked")

    saved(with_tokenizer(tmp_path), vocab_size=321, eos_token_id=999)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    capfd.readouterr()
    logging.set_verbosity_info()  # type: ignore[no-untyped-call]  # transformers' own
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled(), list(warnings.filters))
    try:
        checkpoint = open_checkpoint(str(tmp_path), Path())
        checkpoint.load_dense("sdpa", F32, CPU)
        checkpoint.tokenizer()
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled(), list(warnings.filters)) == before
    finally:
        logging.set_verbosity_warning()  # type: ignore[no-untyped-call]
    assert capfd.readouterr() == ("", "")


# -- what is refused


def test_a_path_that_is_not_there_names_the_nearest_that_is(tmp_path: Path) -> None:
    saved(tmp_path / "llama-small")
    kinds = "a Hugging Face folder, a GGUF file, or one of tiny-llama, tiny-qwen, tiny-ouro, tiny-huginn, tiny-hrm"
    path = tmp_path / "lama-small"
    assert refused(path) == f"{path}: no such file or folder, allowed: {kinds}; did you mean 'llama-small'?"
    assert refused("tiny-lama").endswith("; did you mean 'tiny-llama'?")
    assert refused(tmp_path / "no" / "where").startswith(f"{tmp_path / 'no' / 'where'}: no such file or folder")


def test_a_folder_or_file_of_another_kind(tmp_path: Path) -> None:
    assert refused(tmp_path) == f"{tmp_path}: found no config.json, allowed: a Hugging Face folder, or a GGUF file"
    (tmp_path / "m.bin").write_bytes(b"PK")
    assert refused(tmp_path / "m.bin").startswith(f"{tmp_path / 'm.bin'}: found a file that is not GGUF, allowed: ")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"model_type": "lama"}, r"model_type: found 'lama', allowed: llama, .*; did you mean 'llama'\?"),
        ({"model_type": "gpt2"}, "model_type: found 'gpt2', allowed: llama, mistral, .*, ouro, huginn_raven, hrm_text"),
        ({"model_type": None}, "model_type: found null, allowed: llama"),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window: found 64, allowed: null, because .*"),
        (
            {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
            r"layer_types: found \['full_attention', 'sliding_attention'\], allowed: full_attention",
        ),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type: found 'dynamic', allowed: one that .*"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "auto_map: found {'AutoModel': 'x.Y'}, allowed: none, because .*"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config: found .*, allowed: weights that .*"),
        ({"hidden_size": "wide"}, ".*hidden_size.*"),
    ],
)
def test_a_config_that_would_be_run_wrongly(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    edit(saved(tmp_path) / "config.json", rope_parameters=None, **changes)
    assert re.fullmatch(re.escape(f"{tmp_path}: config.json: ") + told + ".*", refused(tmp_path))


def test_a_window_that_is_off_is_none(tmp_path: Path) -> None:
    edit(saved(tmp_path, "qwen2") / "config.json", layer_types=None, use_sliding_window=False, sliding_window=64)
    assert open_checkpoint(str(tmp_path), Path()).architecture == "qwen2"


def test_broken_files_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    (folder / "config.json").write_text("{")
    assert refused(folder).startswith(f"{folder / 'config.json'}: cannot be read: ")
    (folder / "config.json").write_text("[]")
    assert refused(folder) == f"{folder / 'config.json'}: found [], allowed: a mapping"
    saved(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-9])
    assert refused(folder, load=True).startswith(f"{weights}: not a whole safetensors file: ")
    weights.unlink()
    assert refused(folder, load=True).startswith(f"{folder}: found no weights, allowed: model.safetensors, or ")


def test_a_missing_shard_and_a_broken_tokenizer_are_named(tmp_path: Path) -> None:
    folder = saved(tmp_path / "m", shard="100KB")
    gone = sorted(folder.glob("*.safetensors"))[1]
    gone.unlink()
    index = folder / "model.safetensors.index.json"
    assert refused(folder, load=True) == f"{index}: weight_map: names {gone.name}, which is not in the folder"
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="no usable tokenizer: "):
        open_checkpoint(str(folder), Path()).tokenizer()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_hidden_layers": 3}, r"missing: model\.layers\.2\.\S+, \S+, \S+ and 6 more"),
        ({"num_hidden_layers": 1}, r"unexpected: model\.layers\.1\.\S+, \S+, \S+ and 6 more"),
        ({"vocab_size": 330}, r"of another shape: lm_head\.weight 320x64 for 330x64, model\.embed_tokens\S+ .*"),
    ],
)
def test_weights_that_are_not_those_of_the_config(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    edit(saved(tmp_path) / "config.json", **changes)
    words = re.escape(f"{tmp_path}: the weights are not those of the config: ")
    assert re.fullmatch(words + told, refused(tmp_path, load=True))


# -- tiny models


@pytest.mark.parametrize(
    ("name", "family"), [("tiny-ouro", "ouro"), ("tiny-huginn", "huginn_raven"), ("tiny-hrm", "hrm_text")]
)
def test_a_tiny_looped_model_fills_a_module_of_ours(name: str, family: str) -> None:
    checkpoint = open_checkpoint(name, Path())
    assert (checkpoint.architecture, checkpoint.looped, checkpoint.eos_token_ids) == (family, True, (0,))
    first, second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    checkpoint.fill(first), checkpoint.fill(second)
    assert torch.equal(first.weight, second.weight)


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-qwen"])
def test_a_tiny_model_is_the_same_wherever_it_is_made(name: str) -> None:
    first, second = (open_checkpoint(name, Path("/nowhere")) for _ in range(2))
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    said = logits(first.load_dense("sdpa", F32, CPU))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(said, logits(second.load_dense("sdpa", F32, CPU)))
    assert len(set(said.argmax(-1).tolist())) > 9, "it does not say the same again and again"
    assert (first.tiny, first.looped, first.eos_token_ids, first.tokenizer()) == (True, False, (0,), None)
    assert dict(first.weights()).keys() == dict(second.weights()).keys()


def test_a_tiny_model_in_another_dtype_is_the_same_rounded() -> None:
    checkpoint = open_checkpoint("tiny-llama", Path())
    exact = checkpoint.load_dense("sdpa", F32, CPU).state_dict()
    for name, weight in checkpoint.load_dense("sdpa", torch.bfloat16, CPU).state_dict().items():
        assert torch.equal(weight, exact[name].bfloat16())
