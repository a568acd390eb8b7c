"""A port on Flax's side: its module, and weights for it."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from converters import convert_to_pytree
from converters.graph import Port

Inputs = dict[str, torch.Tensor]


def variables(model: torch.nn.Module, written: Port, inputs: Inputs) -> dict[str, Any]:
    """The weights as `migrate weights` writes them, with what the port computes nowhere."""
    found: dict[str, Any] = {}
    example = [tuple(one.shape) for one in inputs.values()]

    def put(tree: Any, path: tuple[str, ...]) -> None:
        if hasattr(tree, "items"):
            for name, value in tree.items():
                put(value, (*path, *name.split("/")))
            return
        at = found
        for part in path[:-1]:
            at = at.setdefault(part, {})
        at[path[-1]] = jnp.asarray(np.asarray(tree))

    put(convert_to_pytree(model.state_dict(), model=model, example=example, keep_parts=True), ())
    put(written.constants, ())
    return found
