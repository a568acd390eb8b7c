"""Torch checkpoints into Flax pytrees, exactly, with every key accounted for.

    from converters import convert, load_pytree

    convert("model.pt", model="net.py:Net", output="net.flax.safetensors")
    variables = load_pytree("net.flax.safetensors")  # {"params": {...}}

Importing this package imports neither torch nor JAX; the functions do, as they need them.
"""

from converters.checkpoint import Pytree, load_pytree
from converters.convert import Conversion, convert, convert_to_pytree, plan
from converters.errors import ConversionError
from converters.mapping import Outcome, Plan, Row

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
