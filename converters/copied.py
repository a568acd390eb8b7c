"""A copy of a torch module that shares nothing with it, functions that it keeps included."""

from __future__ import annotations

import copy
import types
from typing import Any


def copied(module: Any, memo: dict[int, Any] | None = None) -> Any:
    """`copy.deepcopy` of a module, and of the functions that it and the modules below keep as attributes.

    deepcopy takes a function as it is: the `lambda x: m.drop(m.fc(x))` of a constructor would go on with the
    original's layers, and so with weights of another dtype, device or value than the copy's.

    Args:
        module: a torch module.
        memo: what stands for what, as of deepcopy; filled.

    Raises:
        Exception: whatever deepcopy raises for what the module holds.
    """
    import torch

    memo = {} if memo is None else memo
    known = dict(memo)
    try:
        made = copy.deepcopy(module, memo)
    except RuntimeError:
        # What a module keeps of its last pass (the old weight_norm's product) is no leaf; it is made anew.
        for holder in module.modules():
            for name, value in vars(holder).items():
                if isinstance(value, torch.Tensor) and not value.is_leaf:
                    setattr(holder, name, value.detach())
        memo.clear()
        memo.update(known)
        made = copy.deepcopy(module, memo)
    for one in made.modules():
        for name, value in vars(one).items():
            if isinstance(value, types.FunctionType):
                vars(one)[name] = _rebound(value, memo)
    return made


def _rebound(function: types.FunctionType, memo: dict[int, Any]) -> types.FunctionType:
    """The function over the copies of what it closes over; what was not copied stays."""
    if id(function) in memo:
        return memo[id(function)]
    cells = function.__closure__
    if not cells:
        return function
    closure = tuple(types.CellType() for _ in cells)
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
    )
    made.__kwdefaults__ = function.__kwdefaults__
    made.__dict__.update(function.__dict__)
    memo[id(function)] = made  # before what it holds: it may hold itself
    for old, new in zip(cells, closure, strict=True):
        try:
            value = old.cell_contents
        except ValueError:  # never filled
            continue
        is_function = isinstance(value, types.FunctionType)
        new.cell_contents = _rebound(value, memo) if is_function else memo.get(id(value), value)
    return made
