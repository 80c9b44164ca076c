"""How the next token is chosen from logits."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from interlock.executors.torch.rows import Rows


def choose(logits: Tensor, rows: np.ndarray, positions: np.ndarray, known: Rows) -> Tensor:
    """The token of each row, int64 (n,), on the device of `logits` (n, vocabulary).

    `positions` are the tokens' own. Greedy at temperature 0; else drawn by the inverse of the cumulative probability at
    the row's random number, after temperature, top-k and top-p, in this order. End tokens do not stand before
    `min_tokens`, nor before an end that is known beforehand.
    """
    early = known.early(rows, positions)
    if len(early):
        _forbid_ends(logits, rows, early, known)
    tokens = _likeliest(logits)
    drawn = np.flatnonzero(known.temperature[rows] > 0)
    if len(drawn):
        at = torch.from_numpy(drawn).to(logits.device)
        tokens[at] = _draw(logits[at], rows[drawn], known.uniform(rows[drawn], positions[drawn]), known)
    due = np.flatnonzero(known.ends(rows, positions))
    if len(due):
        tokens[torch.from_numpy(due).to(logits.device)] = known.eos[0]
    return tokens


def _likeliest(logits: Tensor) -> Tensor:
    """The place of each row's largest logit; of equal ones the first."""
    if logits.device.type == "cpu" and logits.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(logits.numpy().argmax(-1))  # ten times as fast as PyTorch's on the CPU
    return logits.argmax(-1)


def _forbid_ends(logits: Tensor, rows: np.ndarray, early: np.ndarray, known: Rows) -> None:
    """Take the end tokens out of the running for the rows at these places."""
    at = torch.from_numpy(early).to(logits.device)
    if known.eos:
        logits[at[:, None], torch.tensor(known.eos, device=logits.device)] = -torch.inf
    for place in early.tolist():
        stops = [token for token in known.stops(int(rows[place])) if 0 <= token < logits.shape[-1]]
        if stops:
            logits[place, stops] = -torch.inf


def _draw(logits: Tensor, rows: np.ndarray, uniform: np.ndarray, known: Rows) -> Tensor:
    """One token per row, int64 (n,)."""
    column = partial(_column, device=logits.device)
    top_k, top_p = known.top_k[rows], known.top_p[rows]
    ordered, ids = (logits.double() / column(known.temperature[rows])).sort(dim=-1, descending=True, stable=True)
    if (top_k > 0).any():
        rank = torch.arange(ordered.shape[-1], device=logits.device)
        ordered = ordered.masked_fill(rank >= column(np.where(top_k > 0, top_k, len(rank))), -torch.inf)
    mass = ordered.softmax(-1)
    before = mass.cumsum(-1) - mass
    mass = mass.masked_fill(before >= column(top_p), 0.0)  # the first always stays, since top_p is above 0
    reached = mass.cumsum(-1)
    place = torch.searchsorted(reached, column(uniform) * reached[:, -1:], right=True)
    last = (mass > 0).sum(-1, keepdim=True) - 1
    return ids.gather(-1, torch.minimum(place, last)).squeeze(-1)


def _column(values: np.ndarray, device: torch.device) -> Tensor:
    """A value per row, beside the vocabulary: (n, 1)."""
    return torch.from_numpy(values).to(device)[:, None]
