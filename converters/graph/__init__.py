"""From a torch module to the source of a Flax one: recorded, taken apart into its classes, and written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from converters.graph.draft import Missing
from converters.graph.trace import GraphError

__all__ = ["Argument", "GraphError", "Missing", "Port", "port"]


@dataclass(frozen=True)
class Argument:
    """An input of the port: numpy's name of its dtype; sides are integers, or names where they are free."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Port:
    """A ported model.

    Attributes:
        modeling: the source of `modeling.py`; it reads its sizes by `from .config import …`.
        config: the source of `config.py`.
        model_class: the class to make: `model_class(config_class())`.
        config_class: the dataclass of its sizes.
        inputs: what it is called with, by name.
        free: which sides of the inputs may be others.
        baked: what was fixed when the model was recorded.
        notes: what else to know.
        missing: operators without a lowering; the source is then incomplete.
        origin: class, file and first line of the originals.
        constants: arrays that go into the file of weights beside them, by path ("buffers/…").
    """

    modeling: str
    config: str
    model_class: str
    config_class: str
    inputs: tuple[Argument, ...]
    free: tuple[str, ...] = ()
    baked: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    origin: tuple[tuple[str, str, int], ...] = ()
    constants: Mapping[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    stages: Mapping[str, str] = field(default_factory=dict)


def port(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], *, allow_stubs: bool = False
) -> Port:
    """Write a torch model in Flax.

    Args:
        module: the model; it is put into `eval()`.
        inputs: what its forward is called with, by name; the shapes are examples.
        allow_stubs: write calls of functions that are still to be written for missing operators.

    Raises:
        GraphError: it cannot be recorded, or has a form that no port has.
    """
    from converters.graph.assemble import assemble

    return assemble(module, inputs, allow_stubs)
