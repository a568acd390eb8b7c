"""Stand-in for the package `adam_atan2`, which has a kernel for CUDA: the same update by torch."""

from __future__ import annotations

from typing import Any

import torch


class AdamATan2(torch.optim.Optimizer):
    """Adam whose quotient is an arctangent, with decoupled decay."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Make an update."""
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state.update(step=0, mean=torch.zeros_like(p), square=torch.zeros_like(p))
                state["step"] += 1
                state["mean"].lerp_(p.grad, 1 - first)
                state["square"].lerp_(p.grad.square(), 1 - second)
                mean = state["mean"] / (1 - first ** state["step"])
                root = (state["square"] / (1 - second ** state["step"])).sqrt()
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.sub_(group["lr"] * torch.atan2(mean, root))
