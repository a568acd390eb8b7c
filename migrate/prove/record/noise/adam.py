"""How far the rounding of gradients moves parameters in Adam's first step.

That step is lr * g / (|g| + eps) for each element: the sign of its gradient, whatever its size, so that
rounding changes nothing. But where a gradient is about as small as eps (1e-8), or as its own rounding, that
decides what the step is. Measured in `examples/transformer`: of a bias of 32 elements one had a gradient of
1.0e-7, the others of 1e-4 and more. With the sums of the backward pass in four other orders, and on XLA, this
one element moved the whole bias by 2e-6 to 2.5e-5 of itself; all other parameters moved by less than 5e-7.
So its gradient was off by up to 1.2e-7 of the root mean square of the bias's gradients, one unit of
float32: by so much every element's gradient is taken to be off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from migrate.prove.record import sums
from migrate.prove.recording.weights import NOISE_SHARE, parts


def first_moves(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str], step: int
) -> Callable[[Mapping[str, Sequence[float]]], dict[str, float]]:
    """Look at an optimizer right after a step; nothing is computed before it is read.

    Args:
        optimizer: any. Only Adam's own first step is looked at, not that after its state was loaded.
        names: of its parameters, by their id.
        step: its number in this process, from 1.

    Returns:
        What reads, for each parameter by name, the L2 norm of what rounding does to the step, relative to
        that of the parameter. It is given the shares of the parameters' parts in the gradient norm: parts
        that are noise are left out, as they are wherever parameters are compared.
    """
    found: dict[str, torch.Tensor] = {}
    if step == 1 and isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state.get(parameter, {})
                    if _is_first(state) and id(parameter) in names:
                        found[names[id(parameter)]] = _squares(parameter, state, group)

    lazy = sums.joined(found.values()) if found else None

    def read(shares: Mapping[str, Sequence[float]]) -> dict[str, float]:
        moves = {}
        values = iter(lazy.tolist() if lazy is not None else ())
        for name, each in found.items():
            norm, *moved = (next(values) for _ in each)
            known = shares.get(name, ())
            kept = [
                one
                for one, share in zip(moved, known, strict=False)
                if not 0.0 < share < NOISE_SHARE
            ]
            if norm and (total := sum(kept)):
                moves[name] = math.sqrt(total / norm)
        return moves

    return read


def _is_first(state: Mapping[str, Any]) -> bool:
    step = state.get("step")
    # Held on the CPU by all but the fused ones; what a device holds is not read here.
    if isinstance(step, torch.Tensor):
        step = step.item() if step.device.type == "cpu" else None
    return step == 1 and "exp_avg" in state and "exp_avg_sq" in state


def _squares(
    parameter: torch.Tensor, state: Mapping[str, Any], group: Mapping[str, Any]
) -> torch.Tensor:
    """The sums of squares of the parameter, and of what rounding does to each of its parts."""
    rate, eps, beta = group["lr"], group["eps"], group["betas"][0]
    gradient = (sums.wide(state["exp_avg"]) / (1 - beta)).abs()
    # Of a gradient of exactly zero (an unused row of an embedding) there is no rounding.
    off = torch.finfo(state["exp_avg"].dtype).eps * gradient.square().mean().sqrt()
    off = torch.where(gradient == 0, 0.0, off)
    most, least = gradient + off, gradient - off
    # The difference of the two steps, which cancels if it is not written so.
    same_sign = 2 * off * eps / ((most + eps) * (least.abs() + eps))
    other_sign = most / (most + eps) + least.abs() / (least.abs() + eps)
    moved = torch.where(least >= 0, same_sign, other_sign) * (rate / 2)
    return sums.joined([sums.squares(parameter), sums.squares(moved, parts(parameter))])
