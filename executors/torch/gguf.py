"""GGUF files: dequantised once, kept as a Hugging Face folder, and read as one from then on."""

from __future__ import annotations

import atexit
import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from interlock.core import ConfigError, MissingExtra
from interlock.core.config_errors import one_line
from interlock.executors.torch.folder import Folder
from interlock.executors.torch.keep import cache_folder
from interlock.executors.torch.quiet import quietly
from interlock.executors.torch.weights import SINGLE, refuse_mismatch

if TYPE_CHECKING:
    from gguf import GGUFReader
    from transformers import PreTrainedConfig

_ARCHITECTURES = ("llama", "qwen2", "qwen3")
_FORM = 1  # of what is kept; one more whenever the same file is to be read differently


def opened_gguf(path: Path) -> Folder:
    """The checkpoint in a GGUF file. Raises ConfigError, one line, for another file, or a model that is not supported.

    Dequantising takes seconds for each 100 million weights, and the result four bytes a weight. It is kept in the cache
    folder; where that cannot be written, in a temporary one until this process ends.
    """
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"{path}: found a file that is not GGUF, allowed: a GGUF file, or a Hugging Face folder")
        file.seek(0)
        place = cache_folder() / _name(hashlib.file_digest(file, "sha256").hexdigest())
    if not place.is_dir():
        work = _work_folder(place.parent)
        atexit.register(shutil.rmtree, work, ignore_errors=True)
        _convert(path, work / "model")
        place = _moved(work / "model", place)
    return Folder(place, str(path))


def _name(digest: str) -> str:
    import transformers

    return f"gguf-{digest[:32]}-{_FORM}-transformers-{transformers.__version__}"


def _work_folder(parent: Path) -> Path:
    """A new folder beside the place of the result, or where temporary files go."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=".partial-", dir=parent))
    except OSError:
        return Path(tempfile.mkdtemp(prefix="interlock-"))


def _moved(made: Path, place: Path) -> Path:
    """Where the folder is after it was put at its place whole, unless another process was faster, or it cannot be."""
    try:
        return made.rename(place)
    except OSError:
        return place if place.is_dir() else made


def _convert(path: Path, folder: Path) -> None:
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError:
        raise MissingExtra(f"reading {path}", "torch") from None
    try:
        reader = GGUFReader(path)
        _check(reader, path)
        with quietly():
            _write(reader, path, folder)
    except ConfigError:
        raise
    except Exception as error:  # whatever readers meet in a file that is broken
        raise ConfigError(f"{path}: cannot be converted: {one_line(error)[:300]}") from error


def _check(reader: GGUFReader, path: Path) -> None:
    """Refuse what would be read wrongly."""
    architecture = _field(reader, "general.architecture")
    if architecture not in _ARCHITECTURES:
        allowed = ", ".join(_ARCHITECTURES)
        raise ConfigError(f"{path}: general.architecture: found {architecture!r}, allowed: {allowed}")
    for key in ("rope.scaling.type", "attention.sliding_window"):
        found = _field(reader, f"{architecture}.{key}")
        if found not in (None, "none", 0):
            raise ConfigError(f"{path}: {architecture}.{key}: found {found!r}, allowed: none")


def _field(reader: GGUFReader, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _write(reader: GGUFReader, path: Path, folder: Path) -> None:
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoTokenizer, GenerationConfig

    here: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    config = AutoConfig.from_pretrained(path.parent, **here)
    head = _field(reader, f"{_field(reader, 'general.architecture')}.attention.key_length")
    if head is not None and hasattr(config, "head_dim"):
        config.head_dim = int(head)  # which transformers leaves at the family's default
    tensors = _tensors(reader, config, str(path))
    folder.mkdir()
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    if _field(reader, "tokenizer.ggml.model") is not None:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **here)
        _split_digits(tokenizer, _field(reader, "tokenizer.ggml.pre"))
        tokenizer.save_pretrained(folder)


def _split_digits(tokenizer: Any, kind: str | None) -> None:
    """SmolLM splits every digit off before anything else, which the tokenizer made from a GGUF file does not know."""
    from tokenizers.pre_tokenizers import Digits, Sequence

    if kind == "smollm":
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = Sequence([Digits(individual_digits=True), backend.pre_tokenizer])


def _tensors(reader: GGUFReader, config: PreTrainedConfig, origin: str) -> dict[str, Tensor]:
    """All weights by their names in `transformers`, float32. Raises ConfigError unless each tensor has its place."""
    from gguf import dequantize
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # transformers' own
    wanted = model.state_dict()
    places = _places(reader, config, list(wanted))
    sources = {tensor.name: tensor for tensor in reader.tensors}
    tied = set(model._tied_weights_keys or ()) if config.tie_word_embeddings else set()
    missing = [name for name, place in places.items() if place not in sources and name not in tied]
    refuse_mismatch(origin, missing, set(sources) - set(places.values()), ())
    heads = _interleaved_heads(reader, config)
    tensors = {
        name: _tensor(dequantize(sources[place].data, sources[place].tensor_type), heads.get(place.split(".")[-2]))
        for name, place in places.items()
        if place in sources
    }
    shapes = [(name, tuple(tensor.shape), tuple(wanted[name].shape)) for name, tensor in tensors.items()]
    refuse_mismatch(origin, (), (), [one for one in shapes if one[1] != one[2]])
    return tensors


def _places(reader: GGUFReader, config: PreTrainedConfig, names: list[str]) -> dict[str, str]:
    """For each name in `transformers` that of the GGUF tensor; a name that GGUF does not know stays as it is."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == _field(reader, "general.architecture"))
    known = get_tensor_name_map(kind, config.num_hidden_layers)
    return {name: known.get_name(name, try_suffixes=(".weight", ".bias")) or name for name in names}


def _interleaved_heads(reader: GGUFReader, config: PreTrainedConfig) -> dict[str, int]:
    """Heads of the projections whose rows GGUF has in another order than `transformers`."""
    if _field(reader, "general.architecture") != "llama":
        return {}
    return {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}


def _tensor(values: np.ndarray, heads: int | None) -> Tensor:
    """A weight, float32. GGUF's llama rotates rows (2i, 2i + 1) of a head together, `transformers` (i, i + d / 2)."""
    if heads is not None:
        values = values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.array(values, np.float32))
