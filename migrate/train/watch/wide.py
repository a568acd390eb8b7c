"""A run of a script in float64: what float32 rounds away is not in its record."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from migrate.parity.sides.torch.float64 import Float64Mode, in_float64


class WideRun:
    """Weights in float64 from the first loss on, and the statements of each loss in float64.

    Outside of these, what is computed with the weights is in float64 too (an evaluation), but batches are
    drawn as in any run: they stay the same numbers.
    """

    def __init__(self) -> None:
        self._inside = contextlib.ExitStack()
        self._has_begun, self._widened = False, False

    def begin(self, modules: Iterable[torch.nn.Module]) -> None:
        """Compute in float64 from here on; the first time, widen the weights of the modules."""
        self.end()
        if not self._has_begun:
            self._has_begun = True
            self._widen()
            for module in modules:
                module._apply(_wide)
        self._inside.enter_context(in_float64())

    def widen(self, parameters: Iterable[torch.Tensor]) -> None:
        """Widen what an optimizer trains: the losses of other updates compute with it too."""
        self._widen()
        for parameter in parameters:
            parameter.data = _wide(parameter.data)

    def _widen(self) -> None:
        """Let what is computed with wide weights be wide."""
        if not self._widened:
            self._widened = True
            for mode in (_DrawnInFloat32(), Float64Mode(creates=False)):
                mode.__enter__()  # until the process ends
            _without_sums()

    def end(self) -> None:
        """Compute as between two losses."""
        self._inside.close()


# Operators that draw tensors of the default dtype, or of the dtype of another tensor.
_FACTORIES = frozenset(f"aten::{n}" for n in ("rand", "rand_like", "randn", "randn_like", "normal"))


class _DrawnInFloat32(TorchDispatchMode):
    """Mode in which random numbers are those of a run in float32: float64 draws others.

    It is entered before the modes that widen what an operation is given.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        own = torch.get_default_dtype() if first is None else first.dtype
        if own == torch.float64 and func._schema.is_mutable and first is not None:
            narrow = torch.empty_like(first, dtype=torch.float32)
            return first.copy_(func(narrow, *args[1:], **kwargs))
        is_factory = func._schema.name in _FACTORIES
        if own == torch.float64 and is_factory and kwargs.get("dtype") is None:
            return func(*args, **{**kwargs, "dtype": torch.float32}).double()
        return func(*args, **kwargs)


def _without_sums() -> None:
    """Let DistributedDataParallel of one rank call its module: its sums keep their first dtype."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_world_size() > 1:
        return
    parallel = torch.nn.parallel.DistributedDataParallel
    setattr(parallel, "forward", lambda self, *args, **kwargs: self.module(*args, **kwargs))  # noqa: B010


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """Tensor of float32 in float64. Others stay: to compute in 16 bits is what the script says."""
    return tensor.double() if tensor.dtype == torch.float32 else tensor
