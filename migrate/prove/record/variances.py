"""Give the running variances of the original the definition that they have on XLA.

`BatchNorm` normalizes alike on both sides, but its statistics for evaluation differ. torch averages the
unbiased variance of each batch (divided by n - 1), torch_xla the biased one (divided by n; measured, 2.9).
That holds for every script, and is no fault of a rewrite. To still find faults (another momentum, another
batch), the original keeps what torch_xla would keep, and the two have the same gate as every other buffer.
`compare.verdict.notes` says so. Beside torch_tpu, whose rewritten scripts keep torch's own
(`shims.update_running_statistics`), nothing is replaced.
"""

from __future__ import annotations

import functools
import importlib.util
import threading
from collections.abc import Callable
from typing import Any

import torch

BatchNorm = Callable[..., Any]


@functools.cache
def beside_torch_tpu() -> bool:
    """Whether the simulated TPU is torch_tpu's, which is never installed beside torch_xla."""
    return importlib.util.find_spec("torch_tpu") is not None


def install() -> None:
    """Replace `torch.nn.functional.batch_norm`; its behavior on XLA stays."""
    if beside_torch_tpu():
        return
    functional = torch.nn.functional
    functional.batch_norm = corrected(
        functional.batch_norm, lambda device: device.type != "xla", lambda count: -count
    )


def corrected(
    normalize: BatchNorm, on: Callable[[torch.device], bool], divisor: Callable[[int], int]
) -> BatchNorm:
    """Return `torch.nn.functional.batch_norm` with other running variances on some devices.

    Args:
        normalize: torch's function.
        on: whether the running variances on a device are other ones.
        divisor: from the number of values of a channel, n, what its variance is divided by before it is added
            to itself: -n makes an unbiased variance a biased one, n - 1 makes a biased one unbiased.
    """
    inside = threading.local()

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
        rest = (weight, bias, training, momentum, eps)
        # Under a TorchFunctionMode torch's function calls the function of its name, which is this one,
        # again.
        again = getattr(inside, "running", False)
        if again or not training or running_var is None or not on(input.device):
            return normalize(input, running_mean, running_var, *rest)
        before = running_var.detach().clone()
        inside.running = True
        try:
            output = normalize(input, running_mean, running_var, *rest)
        finally:
            inside.running = False
        count = input.numel() // input.size(1)
        # `data`: the backward pass has saved this buffer, and would reject a changed one.
        running_var.data.add_((running_var.data - (1 - momentum) * before) / divisor(count))
        return output

    return batch_norm
