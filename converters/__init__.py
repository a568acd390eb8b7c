"""Torch checkpoints into Flax pytrees, exactly, with every key accounted for.

    from converters import convert, load_pytree

    convert("model.pt", model="net.py:Net", output="net.flax.safetensors")
    variables = load_pytree("net.flax.safetensors")  # {"params": {...}}

Importing this package imports neither torch nor JAX nor NumPy; the functions do, as they need them.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from converters.checkpoint import Pytree, load_pytree
    from converters.conversion import Conversion, convert, convert_to_pytree, plan
    from converters.errors import ConversionError
    from converters.mapping import Outcome, Plan, Row

_PLACES = {
    "Conversion": "converters.conversion",
    "ConversionError": "converters.errors",
    "Outcome": "converters.mapping",
    "Plan": "converters.mapping",
    "Pytree": "converters.checkpoint",
    "Row": "converters.mapping",
    "convert": "converters.conversion",
    "convert_to_pytree": "converters.conversion",
    "load_pytree": "converters.checkpoint",
    "plan": "converters.conversion",
}

__all__ = [
    "Conversion",
    "ConversionError",
    "Outcome",
    "Plan",
    "Pytree",
    "Row",
    "convert",
    "convert_to_pytree",
    "load_pytree",
    "plan",
]


def __getattr__(name: str) -> object:
    """Import what is asked for, when it is asked for."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)
