"""Give the running variances of the original the definition that they have on XLA.

`BatchNorm` normalises alike on both sides, but what it keeps for evaluation differs: torch averages the
unbiased variance of each batch (divided by n - 1), torch_xla the biased one (divided by n; measured, 2.9).
That is so of every script, and no fault of a rewrite. To find a fault all the same (another momentum,
another batch), the original is made to keep what torch_xla would, and the two are held to the same gate as
every other buffer; `compare.verdict.notes` says so.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch


def install() -> None:
    """Replace `torch.nn.functional.batch_norm`; what it does on XLA stays."""
    functional = torch.nn.functional
    normalise = functional.batch_norm
    inside = threading.local()

    @functools.wraps(normalise)
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
        rest = (weight, bias, training, momentum, eps)
        # Under a TorchFunctionMode torch's function calls the one of its name, this one, once more.
        again = getattr(inside, "running", False)
        if again or not training or running_var is None or input.device.type == "xla":
            return normalise(input, running_mean, running_var, *rest)
        before = running_var.detach().clone()
        inside.running = True
        try:
            output = normalise(input, running_mean, running_var, *rest)
        finally:
            inside.running = False
        size = input.numel() // input.size(1)
        # `data`: the backward pass has saved this buffer, and would refuse one that has changed.
        running_var.data.sub_((running_var.data - (1 - momentum) * before) / size)
        return output

    functional.batch_norm = batch_norm
