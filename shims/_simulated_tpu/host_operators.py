"""Operators that the simulation's compiler ends the process on: torch computes them on the host.

The plugin for the CPU aborts on the kernels of cumulative sums that torch_tpu 0.2.0 makes. A TPU has another
compiler. `NAMES` is part of what a simulated run does not show.
"""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("cumsum", "cumprod")
_KEPT: list[torch.library.Library] = []


def install() -> None:
    """Replace the kernels of the operators for the device "tpu"."""
    library = torch.library.Library("aten", "IMPL")
    for name in NAMES:
        library.impl(name, _on_host(getattr(torch, name)), "PrivateUse1", allow_override=True)
        library.impl(f"{name}.out", _out(getattr(torch, name)), "PrivateUse1", allow_override=True)
    _KEPT.append(library)


def _on_host(function: Any) -> Any:
    def run(self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> torch.Tensor:
        result: torch.Tensor = function(self.cpu(), dim, dtype=dtype)
        return result.to(self.device)

    return run


def _out(function: Any) -> Any:
    def run(
        self: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None, out: torch.Tensor
    ) -> torch.Tensor:
        return out.copy_(function(self.cpu(), dim, dtype=dtype))

    return run
