"""Operators of a pass that torch_tpu does not implement: all of them, not only the first."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from migrate.parity.ground.errors import ParityError
from migrate.parity.sides import frames
from shims._simulated_tpu.missing import missing_operator


def missing_operators(run: Callable[[], object]) -> dict[str, str]:
    """Return the operators that a pass needs and torch_tpu does not implement, with their lines.

    Args:
        run: the pass. It may end early by another error; operators after it are then unknown.
    """
    on_host = _OnHost()
    with contextlib.suppress(Exception), on_host:
        run()
    return on_host.operators


def missing_error(shown: str, operators: Mapping[str, str]) -> ParityError:
    """Return the error for operators that torch_tpu does not implement.

    Args:
        shown: the user's name for the model.
        operators: operator → `file.py:line`, or "" where no line is known.
    """
    named = [f"{name} ({line})" if line else name for name, line in operators.items()]
    return ParityError(
        f"{shown}: torch_tpu does not implement {', '.join(named)}",
        "write the model without them, or run them on the CPU",
    )


class _OnHost(TorchDispatchMode):
    """Mode that runs operators which torch_tpu does not implement on the CPU, and records them."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: dict[str, str] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            name = missing_operator(error)
            if not name:
                raise
            self.operators.setdefault(name, frames.caller())
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        devices = {x.device for x in tensors if x.device.type != "cpu"}
        host_args, host_kwargs = _moved((args, kwargs), torch.device("cpu"))
        result = func(*host_args, **host_kwargs)
        if func._schema.is_mutable:
            # An operator in place, or with `out`: its results are arguments.
            before_and_after = [
                *zip(
                    pytree.tree_leaves((args, kwargs)),
                    pytree.tree_leaves((host_args, host_kwargs)),
                    strict=True,
                )
            ]
            own = {id(after): before for before, after in before_and_after}
            for before, after in before_and_after:
                if isinstance(before, torch.Tensor):
                    before.copy_(after)
            return pytree.tree_map(lambda leaf: own.get(id(leaf), leaf), result)
        return _moved(result, devices.pop()) if devices else result


def _moved(values: Any, where: torch.device) -> Any:
    """Move the tensors and the devices among values."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(where)
        return where if isinstance(leaf, torch.device) else leaf

    return pytree.tree_map(moved, values)
