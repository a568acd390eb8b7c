"""Let the original round as another device might, to measure how far rounding alone moves its training.

Another order of its own sums (`record.noise.summation`) is not enough to represent XLA, whose arithmetic
differs. Measured on the CPU against float64 (torch 2.9, torch_xla 2.9), in units of 2**-24 of the root mean
square:

- results of linear and convolution layers: torch 1 to 6, XLA 1 to 4; attention 3 on both. These are units of
  the addends, not of the sum: where addends cancel, little is left but rounding.
- batch normalization: torch 1; XLA 3 over 32 numbers, 18 over 78,400, 310 on images with black margins, 1361
  where the mean is ten times the deviation. XLA computes a variance as E[x²] - E[x]², and loses the digits in
  which these agree. It also adds one number after the other, so that the equal numbers of a margin are all
  rounded the same way. Written out so, in 8 lanes or in one, the two means are as far off as XLA's (200 to
  900 units for 60 to 700 on those images).
- the gradient of a bias behind a layer in bfloat16: torch adds in float32, 0.2 % off, and so do simulated
  replicas of torch_xla (`shims._simulated.half_sums`). torch_tpu on XLA:CPU adds one number after the other
  in bfloat16, 3.7 % over 896 random numbers, bit for bit the result of one lane.

A ReLU or a pooling whose input is that close to another branch takes it. The gradient of a bias, a sum of
many terms that nearly cancel, then moves by 1e-3 of itself: no order of the original's sums showed that.

So a run that measures the noise moves the results of these layers, and the gradients that come back to them,
at random by the size of such rounding. Batch normalization, sums and losses are computed as XLA does. Exact
zeros stay: rounding does not move them. Each run has random numbers, and another order of its sums, of its
own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from migrate.prove.record.noise import reductions
from migrate.prove.record.variances import beside_torch_tpu
from migrate.prove.recording import dtypes
from migrate.prove.recording.operators import put

# Relative to the root mean square: four units of float32, as measured.
_SINGLE = 4 * 2.0**-24
# Relative to the value: half a unit of bfloat16 in its last place.
_HALF = 2.0**-8
# Relative to the weight: one unit of float32 in its last place.
_LAST_PLACE = 2.0**-23
# Number of partial sums of XLA:CPU in an addition, by the shape: the vectors of AVX2 or none. Each adds one
# number after the other. The first run of a proof that measures noise, its third of all, has 8. Where that
# does not explain a difference, later runs have one, which is off by as much as XLA was at most.
_LANES = (8, 1, 1)

_LAYERS = (
    *("linear", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
)

_generator = torch.Generator()
_as_autocast = [False]


def install(run: int, *, half: bool = False) -> None:
    """Replace the layers of `torch.nn.functional`, and its batch normalization.

    Args:
        run: number of the run, which gives each run its own random numbers.
        half: whether to round to 16 bits where autocast would, if the proof had not switched it off.
    """
    _generator.manual_seed(run)
    _as_autocast[0] = half
    functional = torch.nn.functional
    lanes = _LANES[run % len(_LANES)]
    for name in _LAYERS:
        put(functional, name, _layer(getattr(functional, name), lanes))
    attention = "scaled_dot_product_attention"
    put(functional, attention, _moved(getattr(functional, attention)))
    put(functional, "batch_norm", _normalization(functional.batch_norm, lanes))
    reductions.install(_is_real)


def install_in_weights() -> None:
    """Move each weight by up to a unit in its last place after each step of its optimizer.

    Two devices round an update differently, and the weights walk apart. This enters the next steps in other
    directions than the rounding of results does, so it may take a ReLU over its kink where that does not.
    """
    steps = [0]

    def moved(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        # Seeded by the step: all ranks move their copies of a weight alike.
        steps[0] += 1
        drawn = torch.Generator().manual_seed(_generator.initial_seed() * 1_000_003 + steps[0])
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if type(weight) in (torch.Tensor, torch.nn.Parameter) and weight.grad is not None:
                    value = weight.data
                    if value.dtype == torch.float32 and value.layout == torch.strided:
                        off = torch.rand(value.shape, generator=drawn).mul_(2).sub_(1)
                        value.mul_(1 + _LAST_PLACE * off.to(value.device))

    register_optimizer_step_post_hook(moved)


def _layer(multiply: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    @functools.wraps(multiply)
    def layer(
        input: Any,  # noqa: A002 - torch's name for it
        weight: Any,
        bias: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not isinstance(bias, torch.Tensor) or not _is_real(input):
            result = multiply(input, weight, bias, *args, **kwargs)
            return _rounded(result) if _is_real(result) else result
        result = multiply(input, weight, None, *args, **kwargs)
        # A linear layer has the features last, a convolution before the axes it moves over.
        behind = 0 if weight.dim() == 2 else weight.dim() - 2
        spread = bias.view(-1, *[1] * behind).to(result.dtype)
        if _is_half(result) and beside_torch_tpu():
            return _rounded(result + _Spread.apply(spread, result.shape, behind, lanes))
        return _rounded(result + spread)

    return layer


def _moved(layer: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(layer)
    def moved(*args: Any, **kwargs: Any) -> Any:
        result = layer(*args, **kwargs)
        return _rounded(result) if _is_real(result) else result

    return moved


def _is_real(value: Any) -> bool:
    """Whether a value is a plain tensor of numbers, not one of a trace."""
    return (
        type(value) is torch.Tensor
        and value.layout == torch.strided
        and value.is_floating_point()
        and value.dtype != torch.float64
        and not torch.compiler.is_compiling()
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _rounded(value: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = _Rounded.apply(value, _is_half(value))
    return result


def _is_half(value: torch.Tensor) -> bool:
    """Whether a value is in 16 bits, or treated as such."""
    return value.dtype != torch.float32 or (_as_autocast[0] and dtypes.meant_half())


class _Spread(torch.autograd.Function):
    """Bias for each result; on the way back its gradient is added up in bfloat16, one after the other."""

    @staticmethod
    def forward(
        ctx: Any, bias: torch.Tensor, shape: torch.Size, behind: int, lanes: int
    ) -> torch.Tensor:
        ctx.bias, ctx.behind, ctx.lanes = bias.shape, behind, lanes
        return bias.expand(shape)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        features = gradient.movedim(-1 - ctx.behind, -1)
        rows = features.reshape(-1, features.size(-1)).to(torch.bfloat16)
        whole = len(rows) // ctx.lanes * ctx.lanes
        total = torch.zeros_like(rows[: ctx.lanes])
        for row in rows[:whole].view(-1, *total.shape):
            total = total + row
        total = torch.cat([total, rows[whole:]]).float().sum(0)
        return total.view(ctx.bias).to(gradient.dtype), None, None, None


class _Rounded(torch.autograd.Function):
    """Value, and on the way back its gradient, each off by a possible rounding."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, half: bool) -> torch.Tensor:
        ctx.half = half
        return _off(value, half)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _off(gradient, ctx.half), None


def _off(value: torch.Tensor, half: bool) -> torch.Tensor:
    known = value.detach().float()
    # Drawn on the host, where its generator is, wherever the value is.
    noise = torch.empty_like(known, device="cpu")
    if half:
        noise = noise.uniform_(-_HALF, _HALF, generator=_generator).to(known.device) * known
    else:
        scale = known.square().mean().sqrt() * _SINGLE
        noise = noise.normal_(generator=_generator).to(known.device) * scale * (known != 0)
    return value + noise.to(value.dtype)


def _normalization(normalize: Callable[..., Any], lanes: int) -> Callable[..., Any]:
    @functools.wraps(normalize)
    def batch_norm(
        input: torch.Tensor,  # noqa: A002 - torch's name for it
        running_mean: torch.Tensor | None,
        running_var: torch.Tensor | None,
        weight: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if not training or not _is_real(input):
            return normalize(
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )
        wide = input.float()
        axes = [axis for axis in range(input.dim()) if axis != 1]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        mean = _mean(wide, axes, lanes)
        variance = (_mean(wide.square(), axes, lanes) - mean.square()).clamp_min(0)
        if running_mean is not None and running_var is not None:
            with torch.no_grad():
                # `data`: a backward pass may have saved the buffers. The variance is the other side's, too.
                size = input.numel() // input.size(1)
                kept = variance * (size / (size - 1)) if beside_torch_tpu() else variance
                running_mean.data.lerp_(mean.to(running_mean.dtype), momentum)
                running_var.data.lerp_(kept.to(running_var.dtype), momentum)
        result = (wide - mean.view(shape)) * (variance + eps).rsqrt().view(shape)
        if weight is not None:
            result = result * weight.view(shape)
        if bias is not None:
            result = result + bias.view(shape)
        return _rounded(result.to(input.dtype))

    return batch_norm


def _mean(value: torch.Tensor, axes: list[int], lanes: int) -> torch.Tensor:
    """Mean of each channel as XLA:CPU rounds it; its gradient is that of the mean."""
    exact = value.mean(axes)
    if value.device.type == "xla":  # rounds so itself, and a step may forbid a read
        return exact
    rows = value.detach().movedim(1, -1).reshape(-1, value.size(1)).contiguous().cpu().numpy()
    whole = len(rows) // lanes * lanes
    # numpy adds the rows of a matrix one after the other, in float32.
    sums = rows[:whole].reshape(-1, lanes * rows.shape[1]).sum(0, dtype=np.float32)
    total = sums.reshape(lanes, -1).sum(0) + rows[whole:].sum(0, dtype=np.float32)
    mean = torch.from_numpy(total / np.float32(len(rows))).to(exact.device)
    return exact + (mean - exact).detach()
