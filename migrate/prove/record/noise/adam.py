"""Movement of parameters in Adam's first step by the rounding of gradients.

That step is lr * g / (|g| + eps) for each element: the sign of its gradient, whatever its size, so that
rounding changes nothing. But where a gradient is about as small as eps (1e-8), or as its own rounding,
rounding decides the step.

Measured in `examples/transformer`: in a bias of 32 elements, one element had a gradient of 1.0e-7, the
others of 1e-4 and more. With the sums of the backward pass in four other orders, and on XLA, this element
moved the whole bias by 2e-6 to 2.5e-5 of itself. All other parameters moved by less than 5e-7. So its
gradient was off by up to 1.2e-7 of the root mean square of the bias's gradients, one unit of float32. Every
element's gradient is assumed to be off by that much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from migrate.prove.record import sums
from migrate.prove.recording.shards import local
from migrate.prove.recording.weights import NOISE_SHARE, parts


def first_moves(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], step: int
) -> Callable[[Mapping[str, Sequence[float]]], dict[str, float]]:
    """Inspect an optimizer right after a step; nothing is computed before it is read.

    Args:
        optimizer: any optimizer. Only Adam's own first step counts, not the first after its state was loaded.
        names: names of its parameters, by their id.
        step: its number in this process, from 1.

    Returns:
        Function that reads, for each parameter by name, the L2 norm of the step's change by rounding,
        relative to that of the parameter. It gets the shares of the parameters' parts in the gradient norm:
        parts that are noise are left out, as in all comparisons of parameters.
    """
    squares_by_name: dict[str, torch.Tensor] = {}
    if step == 1 and isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    if _is_first(state) and id(parameter) in names:
                        squares_by_name[names[id(parameter)]] = _squares(parameter, state, group)

    lazy = sums.joined(squares_by_name.values()) if squares_by_name else None

    def read(shares: Mapping[str, Sequence[float]]) -> dict[str, float]:
        moves = {}
        values = iter(lazy.tolist() if lazy is not None else ())
        for name, each in squares_by_name.items():
            norm, *moved = (next(values) for _ in each)
            known = shares.get(name, ())
            kept = [
                square
                for square, share in zip(moved, known, strict=False)
                if not 0.0 < share < NOISE_SHARE
            ]
            if norm and (total := sum(kept)):
                moves[name] = math.sqrt(total / norm)
        return moves

    return read


def _is_first(state: Mapping[str, Any]) -> bool:
    step = state.get("step")
    # All but the fused optimizers hold it on the CPU; a value on a device is not read here.
    if isinstance(step, torch.Tensor):
        step = step.item() if step.device.type == "cpu" else None
    return step == 1 and "exp_avg" in state and "exp_avg_sq" in state


def _squares(
    parameter: torch.Tensor, state: Mapping[str, Any], group: Mapping[str, Any]
) -> torch.Tensor:
    """Sums of squares of the parameter, and of the change of each of its parts by rounding."""
    rate, eps, beta = group["lr"], group["eps"], group["betas"][0]
    gradient = (sums.wide(state["exp_avg"]) / (1 - beta)).abs()
    # A gradient of exactly zero (an unused row of an embedding) has no rounding.
    off = torch.finfo(state["exp_avg"].dtype).eps * gradient.square().mean().sqrt()
    off = torch.where(gradient == 0, 0.0, off)
    most, least = gradient + off, gradient - off
    # The difference of the two steps, written so that it does not cancel.
    same_sign = 2 * off * eps / ((most + eps) * (least.abs() + eps))
    other_sign = most / (most + eps) + least.abs() / (least.abs() + eps)
    moved = torch.where(least >= 0, same_sign, other_sign) * (rate / 2)
    return sums.joined([sums.squares(parameter), sums.squares(moved, parts(local(parameter)))])
