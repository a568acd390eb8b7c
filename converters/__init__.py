"""Exact conversion of torch checkpoints to Flax pytrees and back, accounting for every key.

    from converters import convert, load_pytree, to_torch

Importing this package imports neither torch nor JAX nor NumPy; the functions import them on demand.

A state dict in memory is converted in memory: `convert_to_pytree(model.state_dict(), model=model)`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converters.checkpoint import Pytree
    from converters.conversion import Conversion, convert, convert_to_mesh, convert_to_pytree, plan
    from converters.errors import ConversionError
    from converters.mapping import Outcome, Plan, Row
    from converters.optimizer.convert import convert_optimizer, optimizer_to_torch
    from converters.optimizer.load import load_optimizer, save_optimizer
    from converters.output import load_pytree
    from converters.reverse import to_state_dict, to_torch

_PLACES = {
    "Conversion": "converters.conversion",
    "ConversionError": "converters.errors",
    "Outcome": "converters.mapping",
    "Plan": "converters.mapping",
    "Pytree": "converters.checkpoint",
    "Row": "converters.mapping",
    "convert": "converters.conversion",
    "convert_to_mesh": "converters.conversion",
    "convert_optimizer": "converters.optimizer.convert",
    "convert_to_pytree": "converters.conversion",
    "load_optimizer": "converters.optimizer.load",
    "load_pytree": "converters.output",
    "optimizer_to_torch": "converters.optimizer.convert",
    "plan": "converters.conversion",
    "save_optimizer": "converters.optimizer.load",
    "to_state_dict": "converters.reverse",
    "to_torch": "converters.reverse",
}

__all__ = [
    "Conversion",
    "ConversionError",
    "Outcome",
    "Plan",
    "Pytree",
    "Row",
    "convert",
    "convert_optimizer",
    "convert_to_mesh",
    "convert_to_pytree",
    "load_optimizer",
    "load_pytree",
    "optimizer_to_torch",
    "plan",
    "save_optimizer",
    "to_state_dict",
    "to_torch",
]


def __getattr__(name: str) -> object:
    """Import a name on first access."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    """Return the public names, which are imported when they are used."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
