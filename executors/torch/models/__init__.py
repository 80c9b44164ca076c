"""Looped (recurrent-depth) models as modules of our own under their published names, and dense models.

`looped` is the interface an executor calls; `ouro`, `huginn` and `hrm_text` are the models, built from `fields` of a
configuration, `layers` and `noise`; `exits` decides when a token leaves the loop; `tiny` makes small random models.
`dense` runs models of `transformers`. `shape` and `kv` are what a model says of its cache and sees of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from interlock.executors.torch.models.looped import LoopedModel

LOOPED = {"ouro": "ouro:Ouro", "huginn_raven": "huginn:Huginn", "hrm_text": "hrm_text:HrmText"}
"""Where the class of each looped `model_type` is."""


def looped_class(model_type: str) -> type[LoopedModel]:
    """The class that builds models of this `model_type`; ValueError for one that is not in `LOOPED`."""
    if model_type not in LOOPED:
        raise ValueError(f"model_type is {model_type!r}, looped models are {', '.join(LOOPED)}")
    module, name = LOOPED[model_type].split(":")
    found: type[LoopedModel] = getattr(import_module(f"{__name__}.{module}"), name)
    return found
