"""Seconds of a model call from first principles: a named model on named devices.

With T tokens, R sampled rows, A = sum of q k + q (q + 1) / 2 over prompt chunks, C tokens of decode context, L layers
run (a layer counts each time it runs), h hidden, d = heads * head_dim, V vocabulary, b bytes per value:

    call = max(2 M T / (tp F mfu), W / (tp B mbu))        matrices of the layers; W bytes of weights, read once a run
         + max(2 h V R / (tp F mfu), h V b / (tp B mbu))  the head, only if R > 0; the embedding is not read
         + T L a / (B mbu)                                activations: the a bytes that a layer's kernels read and write
         + 4 d L (A + n0 P / 2) / (tp F e)                prompt attention of P prompt tokens
         + C kv L / (tp B attention_mbu)                  decode attention reads keys and values
         + kernel_s (kernels_per_layer L + 4) + host_s    launches; 4 are embedding, final norm, head and sampling
         + 2 L r, tp > 1                                  two all-reduces of T h b bytes per layer

F and B are a device's peak FLOP/s and bytes/s. M is the number of matrix parameters of the layers run, kv = 2 kv_heads
head_dim b the KV bytes of a token in one layer. An all-reduce is a ring: r = 2 (tp - 1) / tp * T h b / link + kernel_s.
Prompt attention over n tokens reaches e n / (n + n0) of the peak; because A / P is about n / 2, that is the same as
n0 / 2 more keys for each token, so the term is additive over chunks. KV heads are split over at most kv_heads devices.
Decode attention is bound by memory for every model of the catalog.

Factors. mfu 0.80: large matrix products reach 0.66 to 0.74 of peak on an A100 in Vidur's profiles, 0.87 in a newer
engine's, and 0.80 on an H100. mbu 0.80: small ones reach 0.65 to 0.80 of bandwidth. attention_mbu 0.70: decode
attention reaches 0.67 to 0.78 of bandwidth. e and n0 per device from measured kernels (`catalog`). kernel_s 4
microseconds, 10 kernels per layer: norm, QKV, rotation, cache write, attention, output, norm, gate and up, activation,
down. host_s 0: an engine's own 1 to 2 ms per step are not the model's.

Known error. Against measured kernels a hard-maximum roofline with these factors errs by 13 % on matrix products and by
12 to 30 % on attention, most between 128 and 512 tokens, where neither bound is sharp. A fitted profile replaces it
where one exists.
"""

from __future__ import annotations

from dataclasses import dataclass

from interlock.core.work import Operation
from interlock.executors.costs.catalog import Device, LanguageModel
from interlock.executors.costs.cost import Affine, Load

_CALL_KERNELS = 4


@dataclass(frozen=True)
class Factors:
    """Efficiencies (fractions of peak) and overheads (seconds); None takes the device's own."""

    mfu: float = 0.80
    mbu: float = 0.80
    attention_mbu: float = 0.70
    attention_mfu: float | None = None
    attention_n0: float | None = None
    kernel_s: float = 4e-6
    kernels_per_layer: int = 10
    host_s: float = 0.0
    value_bytes: int = 2


@dataclass(frozen=True, slots=True)
class _Rates:
    """A call's terms of the formula in seconds, per unit named."""

    token_compute: float
    weights: float
    row_compute: float
    head_weights: float
    token: float  # activations and all-reduces, per token
    prompt_token: float
    prompt_attention: float
    context_token: float
    launch: float


class Roofline(Affine):
    """The formula of this module for a model on `tp` devices. `loops` runs of the recurrent part make a FORWARD."""

    def __init__(
        self, model: LanguageModel, device: Device, tp: int, loops: int, factors: Factors | None = None
    ) -> None:
        self._model, self._device, self._tp, self._factors = model, device, tp, factors or Factors()
        whole = model.prelude + model.recurrent * loops + model.coda
        self.kv_bytes_per_token = whole * 2 * model.kv_size * self._factors.value_bytes
        self._rates = {
            Operation.FORWARD: self._of(whole, loops, head=True),
            Operation.PRELUDE: self._of(model.prelude, 0, head=False),
            Operation.RECURRENT: self._of(model.recurrent, 1, head=False),
            Operation.CODA: self._of(model.coda, 0, head=True),
        }

    def split(self, load: Load) -> tuple[float, float]:
        """(everything but decode attention, seconds per token of decode context)."""
        r = self._rates[load.operation]
        tokens = load.prompt_tokens + load.decode_tokens
        fixed = max(tokens * r.token_compute, r.weights) + tokens * r.token + r.launch
        if load.sampled:
            fixed += max(load.sampled * r.row_compute, r.head_weights)
        if load.prompt_tokens:
            fixed += load.prompt_tokens * r.prompt_token + load.prompt_attention * r.prompt_attention
        return fixed, r.context_token

    def _of(self, layers: int, injections: int, *, head: bool) -> _Rates:
        """The rates of a call that runs `layers` layers and the injection so many times."""
        m, f, tp = self._model, self._factors, self._tp
        flops, bandwidth = tp * self._device.flops * f.mfu, tp * self._device.bandwidth * f.mbu
        injected = injections * m.injection_parameters
        key, late = self._prompt_attention(layers)
        return _Rates(
            token_compute=2 * (layers * m.layer_matrices + injected) / flops,
            weights=(layers * m.layer_parameters + injected) * f.value_bytes / bandwidth,
            row_compute=2 * m.head_parameters / flops if head else 0.0,
            head_weights=m.head_parameters * f.value_bytes / bandwidth if head else 0.0,
            token=layers * (self._activations_s() + self._all_reduce_s()),
            prompt_token=late,
            prompt_attention=key,
            context_token=layers * self._context_s(),
            launch=f.host_s + f.kernel_s * (layers * self._kernels() + _CALL_KERNELS),
        )

    def _activations_s(self) -> float:
        """Seconds per token and layer in which kernels read their inputs and write their outputs.

        Widths of h are whole on each device: both norms (state and residual, in and out, 8 h), the inputs of QKV and of
        gate and up, the outputs of the output and down projections (4 h). The others are split: QKV out (q + 2 kv),
        rotation (2 q + 2 kv), cache write (4 kv), attention (2 q), output in (q), gate and up out (2 f), activation
        (3 f), down in (f).
        """
        m, f = self._model, self._factors
        split = 6 * m.q_size + 8 * m.kv_size + 6 * m.ffn
        return (12 * m.hidden + split / self._tp) * f.value_bytes / (self._device.bandwidth * f.mbu)

    def _all_reduce_s(self) -> float:
        """Seconds per token and layer on the link: two rings of h values, each sent 2 (tp - 1) / tp times."""
        sent = 2 * (self._tp - 1) / self._tp * self._model.hidden * self._factors.value_bytes
        return 2 * sent / self._device.link

    def _prompt_attention(self, layers: int) -> tuple[float, float]:
        """(seconds per unit of prompt attention, seconds per prompt token for the kernel's slow start)."""
        f, d = self._factors, self._device
        mfu = d.attention_mfu if f.attention_mfu is None else f.attention_mfu
        n0 = d.attention_n0 if f.attention_n0 is None else f.attention_n0
        key = 4 * self._model.q_size * layers / (self._tp * d.flops * mfu)
        return key, key * n0 / 2

    def _context_s(self) -> float:
        """Seconds per layer to read the keys and values of one token of context."""
        ways = min(self._tp, self._model.kv_heads)
        width = 2 * self._model.kv_size * self._factors.value_bytes
        return width / (ways * self._device.bandwidth * self._factors.attention_mbu)

    def _kernels(self) -> int:
        """Kernels per layer, the two all-reduces included."""
        return self._factors.kernels_per_layer + (2 if self._tp > 1 else 0)
