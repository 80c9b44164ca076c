"""Linear layers on the CPU with weights in the blocked layout of oneDNN.

On plain weights PyTorch calls a general matrix product that repacks them at each step. That is most of a decode step
where the weights are larger than the caches (a vocabulary's head: 12 ms against 6 for 32 rows, measured on one core).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_WORTH_IT = 1 << 14  # weights; smaller ones stay in the caches, and packing gains nothing
_ROWS = 32  # the batch for which the layout is chosen


class PackedLinear(nn.Module):
    """What `nn.Linear` computes, for inference."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = linear.bias
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), _ROWS)

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def pack(model: nn.Module) -> None:
    """Replace the large linear layers of a model on the CPU, in place. Does nothing where PyTorch has no oneDNN."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _fits(child.weight):
                setattr(parent, name, PackedLinear(child))


def _fits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= _WORTH_IT
