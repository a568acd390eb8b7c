"""Name the parameters of a running program in the same way on both sides of a proof.

A name is the name in the model's own state dict. Wrappers (DDP, torch.compile) are looked through; the
second and further models of a program are told apart by a prefix, `model1.`, in the order in which
they were made.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn.parallel import DistributedDataParallel


def roots(modules: Mapping[int, torch.nn.Module]) -> dict[str, torch.nn.Module]:
    """Return the outermost models, unwrapped, by the prefix of their parameters' names.

    Args:
        modules: all living modules, by the order in which they were created.
    """
    living = dict(sorted(modules.items()))
    # A module may have no truth value: torch.compile's asks the module inside for its length.
    children = {
        id(child)
        for module in living.values()
        for child in module._modules.values()
        if child is not None
    }
    outermost = [
        _unwrapped(module)
        for module in living.values()
        if id(module) not in children and next(module.parameters(), None) is not None
    ]
    created = {id(module): number for number, module in living.items()}
    # A model inside two wrappers has two outermost modules, but is one model.
    models = {id(model): model for model in outermost}.values()
    ordered = sorted(models, key=lambda model: created.get(id(model), len(created)))
    return {f"model{index}." if index else "": model for index, model in enumerate(ordered)}


def parameter_names(models: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """Return the name of each parameter, by its id; a shared parameter has its first name."""
    return {
        id(parameter): prefix + name
        for prefix, model in models.items()
        for name, parameter in model.named_parameters()
    }


def _unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif "_orig_mod" in module._modules:  # torch.compile
            module = module._orig_mod
        else:
            return module
