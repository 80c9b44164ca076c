"""GGUF files: the model that was written, kept and found again, and refused where it would be read wrongly."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from interlock.core import ConfigError
from interlock.executors.torch import gguf as ours
from interlock.executors.torch.checkpoint import open_checkpoint

from .saved import CPU, SIZES, logits, model_of
from .written import write_gguf

F32 = torch.float32
WORDS = SIZES | {"vocab_size": 318}  # as many as the tokenizer has


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "interlock"


def said(path: Path) -> torch.Tensor:
    """What the model in a file says."""
    return logits(open_checkpoint(str(path), Path()).load_dense("sdpa", F32, CPU))


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(str(path), Path())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are converted from now on."""
    made: list[Path] = []
    convert = ours._convert
    monkeypatch.setattr(ours, "_convert", lambda path, folder: (made.append(path), convert(path, folder)))
    return made


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_file_gives_the_model_that_was_written(family: str, tied: bool, tmp_path: Path) -> None:
    model = model_of(family, **WORDS, tie_word_embeddings=tied, head_dim=16)
    checkpoint = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model)), Path())
    assert (checkpoint.architecture, checkpoint.origin) == (family, str(tmp_path / "m.gguf"))
    assert checkpoint.eos_token_ids == (1,)
    assert torch.equal(logits(checkpoint.load_dense("sdpa", F32, CPU)), logits(model))


def test_quantised_weights_are_what_their_blocks_say(tmp_path: Path) -> None:
    model, kind = model_of(**WORDS), gguf.GGMLQuantizationType.Q8_0
    found = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model, quantised=True)), Path())
    weights = found.load_dense("sdpa", F32, CPU).state_dict()
    for name, weight in model.state_dict().items():
        exact = weight.numpy()
        rounded = gguf.dequantize(gguf.quantize(exact, kind), kind) if weight.ndim == 2 else exact
        assert np.array_equal(weights[name].numpy(), rounded)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_of(**WORDS), width=97)
    told = "of another shape: model.layers.0.mlp.down_proj.weight 64x96 for 64x97, "
    assert refused(path).startswith(f"{path}: the weights are not those of the config: {told}")


def test_the_tokenizer_comes_with_it(tmp_path: Path) -> None:
    tokenizer = open_checkpoint(str(write_gguf(tmp_path / "m.gguf", model_of(**WORDS))), Path()).tokenizer()
    assert tokenizer is not None
    assert tokenizer.decode(tokenizer.encode("the 猫 12", add_special_tokens=False)) == "the 猫 12"
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("  1", add_special_tokens=False))[-1] == "1"
    assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "<s>x</s>"
    bare = write_gguf(tmp_path / "bare.gguf", model_of(), words=False)
    assert open_checkpoint(str(bare), Path()).tokenizer() is None


# -- what is kept


def test_a_file_is_converted_once_whatever_its_name(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = counted(monkeypatch)
    path = write_gguf(tmp_path / "m.gguf", model_of(**WORDS))
    first = said(path)
    path.rename(tmp_path / "n.gguf")
    assert torch.equal(first, said(tmp_path / "n.gguf"))
    assert made == [path]
    write_gguf(path, model_of(**WORDS, seed=1))
    assert not torch.equal(first, said(path)), "another file of the same name is another model"
    assert len(made) == 2
    assert len([one for one in cache.iterdir() if not one.name.startswith(".")]) == 2


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    model = model_of(**WORDS)
    path = write_gguf(tmp_path / "m.gguf", model)
    assert torch.equal(said(path), logits(model))


def test_of_two_that_convert_at_once_both_go_on(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds the folder of the first at its place."""
    path, convert = write_gguf(tmp_path / "m.gguf", model_of(**WORDS)), ours._convert
    monkeypatch.setattr(ours, "_convert", lambda *args: (convert(*args), monkeypatch.undo(), cached(), None))

    def cached() -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent))
        other = threading.Thread(target=open_checkpoint, args=(str(path), Path()))
        other.start(), other.join()

    assert torch.equal(said(path), logits(model_of(**WORDS)))
    assert len([one for one in cache.iterdir() if not one.name.startswith(".")]) == 1


def test_a_conversion_that_fails_leaves_nothing_that_would_be_found(tmp_path: Path, cache: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", model_of(**WORDS))
    os.truncate(path, path.stat().st_size - 4096)
    assert refused(path).startswith(f"{path}: cannot be converted: ")
    assert [one for one in cache.iterdir() if not one.name.startswith(".")] == []


# -- what is refused


def test_tensors_without_a_place_are_refused(tmp_path: Path) -> None:
    """They would change the model: those of Llama 3, for instance, stretch its positions."""
    path = write_gguf(tmp_path / "m.gguf", model_of(**WORDS), extra={"rope_freqs.weight": np.ones(8, np.float32)})
    assert refused(path) == f"{path}: the weights are not those of the config: unexpected: rope_freqs.weight"


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = model_of(**WORDS)
    path = write_gguf(tmp_path / "m.gguf", model)
    data = path.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight")
    path.write_bytes(data)
    told = "missing: model.layers.1.mlp.up_proj.weight; unexpected: blk.1.ffn_xx.weight"
    assert refused(path) == f"{path}: the weights are not those of the config: {told}"


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "gemma")
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    where = re.escape(f"{tmp_path / 'm.gguf'}: general.architecture: ")
    assert re.fullmatch(where + "found 'gemma', allowed: llama, qwen2, qwen3", refused(tmp_path / "m.gguf"))


def test_positions_that_are_scaled_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    assert refused(tmp_path / "m.gguf").endswith("llama.rope.scaling.type: found 'yarn', allowed: none")
