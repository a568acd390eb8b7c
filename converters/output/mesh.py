"""A pytree straight onto the devices of a mesh: each device's part is read and arranged by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import Leaf, Pytree, nest
from converters.errors import MissingDependencyError, ShardingError
from converters.output.copying import copy_arranged
from converters.output.sharding import Partition
from converters.output.stream import Progress


def place_on_mesh(
    leaves: Sequence[Leaf],
    partition: Partition,
    *,
    mesh: Any = None,
    progress: Progress | None = None,
) -> Pytree:
    """The pytree as `jax.Array`s that are sharded over a mesh; nothing is written.

    One array after the other is made, from the parts that the devices of this process hold; no array is
    ever whole in this host's memory unless its devices hold all of it.

    Args:
        leaves: the arrays.
        partition: how they lie on the mesh.
        mesh: the `jax.sharding.Mesh`; None: one of the partition's axes, of the first devices.
        progress: called with the bytes of the arrays done and their total.

    Raises:
        ShardingError: there are fewer devices than the mesh has.
        MissingDependencyError: jax is not installed.
    """
    try:
        import jax
    except ImportError:
        raise MissingDependencyError(
            "a device mesh needs jax, which is not installed", 'pip install "tpu-migrate[jax]"'
        ) from None
    mesh = mesh or _mesh(partition.mesh)
    total = sum(leaf.info.nbytes for leaf in leaves)
    done = 0
    arrays = {}
    for number, leaf in enumerate(leaves):
        # The next one is read while this one goes onto the devices.
        for begun in leaves[0:2] if number == 0 else leaves[number + 1 : number + 2]:
            if begun.prepare is not None:
                begun.prepare()
        spec = jax.sharding.PartitionSpec(*partition.specs[leaf.path])
        arrays[leaf.path] = _placed(leaf, jax.sharding.NamedSharding(mesh, spec))
        done += leaf.info.nbytes
        if progress:
            progress(done, total)
    return nest(arrays.items())


def _mesh(axes: Mapping[str, int]) -> Any:
    import jax

    count = math.prod(axes.values())
    devices = jax.devices()
    if len(devices) < count:
        raise ShardingError(
            [f"the mesh has {count} devices, jax sees {len(devices)}"],
            "give a smaller mesh; to try one on the CPU set "
            f"XLA_FLAGS=--xla_force_host_platform_device_count={count}",
        )
    # Axes that the compiler may reshard at will, as all code expects that does not say otherwise.
    return jax.sharding.Mesh(np.array(devices[:count]).reshape(tuple(axes.values())), tuple(axes))


def _placed(leaf: Leaf, sharding: Any) -> Any:
    import jax

    source = (leaf.open or leaf.read)()
    dtype = numpy_dtype(leaf.info.dtype, leaf.path)
    # Devices that hold the same part share it here; it is read once.
    parts: dict[tuple[tuple[int, int], ...], np.ndarray[Any, Any]] = {}

    def part(index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        sides = leaf.info.shape
        ends = tuple(cut.indices(side)[:2] for cut, side in zip(index, sides, strict=True))
        if ends not in parts:
            shape = tuple(stop - start for start, stop in ends)
            parts[ends] = np.empty(shape, dtype)
            if 0 not in shape:
                cut = np.asarray(source[tuple(slice(*pair) for pair in ends)])
                if cut.dtype != dtype:
                    cut = cut.astype(dtype)
                copy_arranged(parts[ends], cut)
        return parts[ends]

    # Dtypes that jax would narrow (float64 without jax_enable_x64) must not change unseen.
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ShardingError(
            [f"{leaf.path} is {leaf.info.dtype}, which jax narrows"],
            'set jax.config.update("jax_enable_x64", True), or cast it (--dtype)',
        )
    array = jax.make_array_from_callback(leaf.info.shape, sharding, part)
    array.block_until_ready()
    if leaf.release is not None:
        leaf.release()
    return array
