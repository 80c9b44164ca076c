"""Named tensors: read from safetensors files, and copied into a module that wants exactly these."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from interlock.core import ConfigError
from interlock.core.config_errors import one_line, show

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TOLD = 3

Shape: TypeAlias = tuple[int, ...]


def read_json(path: Path) -> dict[str, Any]:
    """The mapping in a JSON file. Raises ConfigError, one line."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {one_line(error)}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: found {show(data)}, allowed: a mapping")
    return data


def files_of(folder: Path) -> list[Path]:
    """The safetensors files of a Hugging Face folder. Raises ConfigError when there is none, or one is missing."""
    if (folder / INDEX).is_file():
        places = read_json(folder / INDEX).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise ConfigError(f"{folder / INDEX}: weight_map: found {show(places)}, allowed: a file for each tensor")
        files = [folder / str(name) for name in sorted(set(places.values()))]
        for path in files:
            if not path.is_file():
                raise ConfigError(f"{folder / INDEX}: weight_map: names {path.name}, which is not in the folder")
        return files
    if not (folder / SINGLE).is_file():
        raise ConfigError(f"{folder}: found no weights, allowed: {SINGLE}, or {INDEX} and the files that it names")
    return [folder / SINGLE]


def shapes_in(files: Iterable[Path]) -> dict[str, Shape]:
    """Names and shapes of all tensors, from the headers alone. Raises ConfigError for a broken file."""
    shapes: dict[str, Shape] = {}
    for path in files:
        with _opened(path) as file:
            shapes |= {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    return shapes


def tensors_in(files: Iterable[Path]) -> Iterator[tuple[str, Tensor]]:
    """Name and tensor, one at a time, on the CPU. Raises ConfigError for a broken file."""
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                yield name, file.get_tensor(name)


def _opened(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{path}: not a whole safetensors file: {one_line(error)}") from None


def copy_into(
    module: nn.Module,
    weights: Iterable[tuple[str, Tensor]],
    origin: str,
    rename: Callable[[str], str | None] | None = None,
) -> None:
    """Copy weights into the parameters and persistent buffers of a module, cast to the dtype and device it has there.

    `rename` gives the module's name for one of the file's, None for a tensor that is not needed. Strict: raises
    ConfigError when a tensor is missing, is unexpected or has another shape; of tied parameters one name is enough.
    """
    wanted: Mapping[str, Tensor] = module.state_dict(keep_vars=True)
    filled: set[int] = set()
    unexpected: list[str] = []
    mismatched: list[tuple[str, Shape, Shape]] = []
    with torch.no_grad():
        for given, tensor in weights:
            name = given if rename is None else rename(given)
            if name is None:
                continue
            if name not in wanted:
                unexpected.append(given)
                continue
            target = wanted[name]
            filled.add(id(target))
            if target.shape == tensor.shape:
                target.copy_(tensor)
            else:
                mismatched.append((name, tuple(tensor.shape), tuple(target.shape)))
    missing = [name for name, target in wanted.items() if id(target) not in filled]
    refuse_mismatch(origin, missing, unexpected, mismatched)


def refuse_mismatch(
    origin: str, missing: Iterable[str], unexpected: Iterable[str], mismatched: Iterable[tuple[str, Shape, Shape]]
) -> None:
    """Raise ConfigError, one line, if any of these is not empty: names, and (name, found shape, allowed shape)."""
    shapes = [f"{name} {_dims(found)} for {_dims(allowed)}" for name, found, allowed in mismatched]
    kinds = {"missing": sorted(missing), "unexpected": sorted(unexpected), "of another shape": sorted(shapes)}
    told = "; ".join(f"{kind}: {_some(names)}" for kind, names in kinds.items() if names)
    if told:
        raise ConfigError(f"{origin}: the weights are not those of the config: {told}")


def _dims(shape: Sequence[int]) -> str:
    return "x".join(str(size) for size in shape) or "scalar"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
    return ", ".join(names[:_TOLD]) + more
