"""Independent copies of torch modules, including functions that they keep as attributes."""

from __future__ import annotations

import copy
import types
from typing import Any


def copied(module: Any, memo: dict[int, Any] | None = None) -> Any:
    """Apply `copy.deepcopy` to a module, and to functions kept as attributes by it and its submodules.

    deepcopy does not copy functions. The `lambda x: m.drop(m.fc(x))` of a constructor would keep
    using the original's layers, and so weights of another dtype, device or value than the copy's.

    Args:
        module: a torch module.
        memo: the memo of deepcopy, which is filled.

    Raises:
        Exception: deepcopy fails for a value of the module.
    """
    import torch

    memo = {} if memo is None else memo
    known = dict(memo)
    try:
        copy_of_module = copy.deepcopy(module, memo)
    except RuntimeError:
        # A tensor kept from the last pass (the old weight_norm's product) is not a leaf; the copy
        # recomputes it.
        for holder in module.modules():
            for name, value in vars(holder).items():
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    setattr(holder, name, value.detach())
        memo.clear()
        memo.update(known)
        copy_of_module = copy.deepcopy(module, memo)
    for submodule in copy_of_module.modules():
        for name, value in vars(submodule).items():
            if isinstance(value, types.FunctionType):
                vars(submodule)[name] = _rebound(value, memo)
    return copy_of_module


def _rebound(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """Return the function over copies of its closure; uncopied values stay."""
    if id(function) in memo:
        return memo[id(function)]
    cells = function.__closure__
    if not cells:
        return function
    closure = tuple(types.CellType() for _ in cells)
    rebound = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    rebound.__kwdefaults__ = function.__kwdefaults__
    rebound.__dict__.update(function.__dict__)
    memo[id(function)] = rebound  # before its closure, which may contain the function itself
    for old, new in zip(cells, closure, strict=True):
        try:
            value = old.cell_contents
        except ValueError:  # never filled
            continue
        is_function = isinstance(value, types.FunctionType)
        new.cell_contents = _rebound(value, memo) if is_function else memo.get(id(value), value)
    return rebound
