"""Flax pytrees on disk (safetensors, msgpack, orbax) and on a device mesh; and their loading."""

from converters.output.fingerprint import recipe_of
from converters.output.load import load_pytree
from converters.output.mesh import place_on_mesh
from converters.output.sharding import Partition, load_rules, parse_mesh, partition
from converters.output.stream import Progress
from converters.output.units import leaves_of
from converters.output.write import WrittenLeaf, WrittenOutput, require_output, write_pytree

__all__ = [
    "Partition",
    "Progress",
    "WrittenLeaf",
    "WrittenOutput",
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
