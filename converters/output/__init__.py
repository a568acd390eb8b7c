"""Flax pytrees on disk: safetensors, msgpack, orbax, and straight onto a device mesh; read again."""

from converters.output.fingerprint import recipe_of
from converters.output.load import load_pytree
from converters.output.mesh import place_on_mesh
from converters.output.sharding import Partition, load_rules, parse_mesh, partition
from converters.output.stream import Progress
from converters.output.units import leaves_of
from converters.output.write import WrittenOutput, WrittenLeaf, require_output, write_pytree

__all__ = [
    "Partition",
    "Progress",
    "WrittenOutput",
    "WrittenLeaf",
    "leaves_of",
    "load_pytree",
    "load_rules",
    "parse_mesh",
    "partition",
    "place_on_mesh",
    "recipe_of",
    "require_output",
    "write_pytree",
]
