"""Parts of a batch that functions of the loss take out of it before the model is called.

After `labels = batch.pop("labels")` the batch has none, and `labels` is a variable of its own.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Collection, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from migrate.train.watch.values import Path


class _Called(Exception):  # noqa: N818 (it ends the run)
    """The step calls its model."""


def taken_out(
    step: nn.Module,
    inputs: Mapping[tuple[str, Path], str],
    tensors: Mapping[str, torch.Tensor],
    text: str,
) -> dict[str, tuple[str, str]]:
    """Run the step to its first call of a trained module, and look for what is no longer in the batch.

    Args:
        step: the step.
        inputs: variable of the batch and keys in it → name of the input.
        tensors: inputs by name.
        text: statements of the step.

    Returns:
        Variable that holds a part there → the batch, and the part's key in it.
    """
    trained = {id(p) for p in step.parameters() if p.requires_grad}
    stored = {
        node.id
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    variables: dict[str, tuple[str, str]] = {}

    def before(module: nn.Module, _: Any) -> None:
        if module is step or not any(id(p) in trained for p in module.parameters()):
            return
        if torch.is_grad_enabled():
            variables.update(_taken(sys._getframe(1), step, inputs, tensors, stored))
            raise _Called

    handle = hooks.register_module_forward_pre_hook(before)
    try:
        step(**tensors)
    except _Called:
        pass
    finally:
        handle.remove()
    return variables


def _taken(
    frame: FrameType | None,
    step: nn.Module,
    inputs: Mapping[tuple[str, Path], str],
    tensors: Mapping[str, torch.Tensor],
    stored: Collection[str],
) -> dict[str, tuple[str, str]]:
    code = type(step).forward.__code__
    held: dict[str, torch.Tensor] = {}
    while frame is not None and frame.f_code is not code:
        for variable, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor):
                held.setdefault(variable, value)  # the innermost
        frame = frame.f_back
    if frame is None:
        return {}
    own = frame.f_locals
    held = {n: own[n] for n in stored if isinstance(own.get(n), torch.Tensor)} | held
    taken: dict[str, tuple[str, str]] = {}
    for (root, path), argument in inputs.items():
        batch = own.get(root)
        if len(path) != 1 or not isinstance(batch, dict) or path[0] in batch:
            continue
        # A move to a device may have made a copy.
        names = [name for name, value in held.items() if _same(value, tensors[argument])]
        if len(names) == 1 and names[0] not in {known for known, _ in inputs}:
            taken[names[0]] = (root, path[0])
    return taken


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or (a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b))
