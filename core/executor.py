"""What the engine asks of a backend: run a batch, and keep or forget what belongs to a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from interlock.core.batch import Batch, BatchResult, Ticket
from interlock.core.work import WorkKey

if TYPE_CHECKING:
    from interlock.core.request import PreemptMode, Request


class Capability(StrEnum):
    """What a policy may require of a backend (`Policy.requires`)."""

    STEP_COST = "step_cost"  # view.step_s answers
    VIRTUAL_TIME = "virtual_time"  # the engine's clock is the executor's
    STRETCH = "stretch"  # several decode steps per submission
    LOOPED = "looped"  # recurrent depth: prelude, recurrent and coda
    SPECULATION = "speculation"  # drafts are verified


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do.

    * `loops`: depth of a looped model, 1 for a dense one
    * `mixes`: sets of work keys that one batch may carry together; a set's subsets are allowed, too
    * `eos_token_ids`: tokens that end an answer. `vocab_size`: prompts with ids that are not below it are rejected
    * `whole_prompts`: each token of a prompt attends to all of it (prefix LM), so that it runs in one chunk, and one
      longer than the budget is rejected
    * `shares_prefixes`: the KV of a prefix depends on its tokens alone; otherwise there is no prefix caching
    * `shares_outputs`: of a looped model, the KV of a token is the same whether it was decoded or stood in a prompt.
      Where decoded tokens leave the loop early it is not, and only blocks of prompts are shared
    """

    features: frozenset[Capability] = frozenset()
    loops: int = 1
    eos_token_ids: tuple[int, ...] = (0,)
    max_model_len: int | None = None
    mixes: tuple[frozenset[WorkKey], ...] = (
        frozenset({WorkKey.PROMPT_ATOMIC, WorkKey.DECODE_ATOMIC, WorkKey.SPECULATIVE}),
    )
    vocab_size: int | None = None
    whole_prompts: bool = False
    shares_prefixes: bool = True
    shares_outputs: bool = True

    def can_mix(self, keys: frozenset[WorkKey]) -> bool:
        """Whether one batch may carry these work keys."""
        return len(keys) <= 1 or any(keys <= allowed for allowed in self.mixes)


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """The limits an executor is started with. `now_ns`: the engine's clock, by which a backend in real time tells its
    ends."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_blocks: int
    block_size: int
    prompt: str
    seed: int
    now_ns: Callable[[], int]


class Copy(NamedTuple):
    """KV blocks of one row that move between device and host, pairwise. int32 and int64 arrays of equal length."""

    row: int
    device: np.ndarray
    host: np.ndarray


class Executor(Protocol):
    """A backend. The engine calls it from one thread.

    Results of tickets come in the order of submission. An executor learns a request when it first sees its row, from
    `Batch.new`, and drops all it holds for a row at `forget`, after which the row may belong to another request.

    What a backend may offer besides, and is asked for by name: `auto_blocks(block_size, limits)`, the size of the pool
    under `kv.num_blocks: auto`; `refuses(request)`, why it can never run a request, else None; `tokenizer`, for text;
    `conformance(options, loops, exits)` on the class, the options under which the conformance suite runs it.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this backend can do. Constant."""
        ...

    def start(self, config: ExecutorConfig) -> None:
        """Get ready. Called once, before any batch."""
        ...

    def submit(self, batch: Batch) -> Ticket:
        """Begin to run a batch. The batch is immutable, and its arrays stay valid until its ticket is collected."""
        ...

    def collect(self, block: bool) -> Sequence[BatchResult]:
        """Results of finished tickets, each handed out once. With `block`, wait for at least one if any is out."""
        ...

    def suspend(self, rows: np.ndarray, modes: Sequence[PreemptMode], copies: Sequence[Copy]) -> None:
        """These rows gave way. YIELD keeps their KV where it is, OFFLOAD copies it to the host, RECOMPUTE drops it.

        What else is needed to go on (carried rows, random state) is kept until `forget`, but for RECOMPUTE, where only
        the random state is. The copies' device blocks may be written by the next batch: copy before it runs. A row that
        yielded before may be named again when its blocks are reclaimed.
        """
        ...

    def resume(self, rows: np.ndarray, copies: Sequence[Copy]) -> None:
        """These suspended rows have slots again; copy back before the next batch runs."""
        ...

    def forget(self, rows: np.ndarray) -> None:
        """These rows are retired. Idempotent."""
        ...

    def expect(self, number: int, request: Request, output: int | None) -> None:
        """Request `number` ends by itself after `output` tokens, as far as the workload knows; None for as it likes.

        What a simulated model goes by. A real one may hold its end tokens back until then, or ignore it.
        """
        ...

    def step_s(self, prompt_tokens: int, decode_rows: int, context_tokens: int) -> float:
        """Estimated seconds of a step, with the capability STEP_COST; otherwise it raises ExecutorError."""
        ...

    def stop(self) -> None:
        """Release everything. Idempotent."""
        ...
