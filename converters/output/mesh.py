"""Placement of a pytree directly on the devices of a mesh: each device's part is read separately."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from converters.checkpoint.dtypes import numpy_dtype
from converters.checkpoint.pytree import Pytree, PytreeLeaf, Sliceable, nest
from converters.errors import ShardingError
from converters.installing import missing_error
from converters.output.copying import copy_arranged
from converters.output.sharding import Partition
from converters.output.stream import Progress

# Each process reads smaller arrays completely.
_WORTH_EXCHANGE = 1 << 18
_EXCHANGED = frozenset(
    {"float32", "float16", "bfloat16", "int32", "int16", "int8", "uint32", "uint16", "uint8"}
    | {"float8_e4m3fn", "float8_e5m2"}
)


def place_on_mesh(
    leaves: Sequence[PytreeLeaf],
    partition: Partition,
    *,
    mesh: Any = None,
    progress: Progress | None = None,
) -> Pytree:
    """Return the pytree as `jax.Array`s sharded over a mesh; nothing is written.

    The arrays are made one after the other, from the parts that the devices of this process hold.
    No array is ever complete in this host's memory unless its devices hold all of it.

    Args:
        leaves: the arrays.
        partition: the sharding of the arrays.
        mesh: the `jax.sharding.Mesh`; None for a mesh of the partition's axes on the first devices.
        progress: called with the bytes of the arrays done and their total.

    Raises:
        ShardingError: there are fewer devices than the mesh has.
        MissingDependencyError: jax is not installed.
    """
    try:
        import jax
    except ImportError:
        raise missing_error("jax", needed_by="a device mesh") from None
    mesh = mesh or _mesh(partition.mesh)
    total = sum(leaf.info.nbytes for leaf in leaves)
    done = 0
    arrays = {}
    opened: deque[tuple[Sliceable, Any, Any]] = deque()
    for number, leaf in enumerate(leaves):
        # The next array is read while this one is copied to the devices.
        for begun in leaves[0:2] if number == 0 else leaves[number + 1 : number + 2]:
            spec = jax.sharding.PartitionSpec(*partition.specs[begun.path])
            wanted = jax.sharding.NamedSharding(mesh, spec)
            read = _read_as(begun, wanted)
            opened.append((_opened(begun, read), read, wanted))
        source, read, wanted = opened.popleft()
        array = _placed(leaf, source, read)
        arrays[leaf.path] = array if read is wanted else _exchanged(array, wanted)
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
    # Axes that the compiler may reshard freely, as code expects by default.
    return jax.sharding.Mesh(np.array(devices[:count]).reshape(tuple(axes.values())), tuple(axes))


def _read_as(leaf: PytreeLeaf, wanted: Any) -> Any:
    """Return the sharding for reading an array: the final one, or contiguous ranges of the tensors.

    Ranges are used if each process would otherwise read much that others hold; the devices then
    exchange their parts. All processes must agree: the result does not depend on the location of
    the tensors.
    """
    import jax

    mesh, sides = wanted.mesh, leaf.info.shape
    count = mesh.size
    processes = len({device.process_index for device in mesh.devices.flat})
    known = leaf.overreads is not None and leaf.info.nbytes >= _WORTH_EXCHANGE
    if processes == 1 or not known or leaf.info.dtype not in _EXCHANGED:
        return wanted
    assert leaf.overreads is not None

    def first(sharding: Any) -> tuple[slice, ...]:
        shape = sharding.shard_shape(sides)
        return tuple(slice(0, side) for side in shape)

    if not leaf.overreads(first(wanted)):
        return wanted
    flat = jax.sharding.Mesh(mesh.devices.reshape(-1), ("all",))
    for axis, side in enumerate(sides):
        spec = jax.sharding.PartitionSpec(*[None] * axis, "all")
        sharding = jax.sharding.NamedSharding(flat, spec)
        if side % count == 0 and not leaf.overreads(first(sharding)):
            return sharding
    return wanted


def _exchanged(array: Any, wanted: Any) -> Any:
    """Return the array in its final sharding, bit for bit: it is moved as integers."""
    import jax

    width = jax.numpy.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = _moving(array.sharding, width)(array)
    moved = _moving(wanted, width)(bits)
    return _moving(wanted, array.dtype)(moved)


@cache
def _moving(sharding: Any, dtype: Any) -> Any:
    import jax

    return jax.jit(lambda array: jax.lax.bitcast_convert_type(array, dtype), out_shardings=sharding)


def _opened(leaf: PytreeLeaf, sharding: Any) -> Sliceable:
    """Open the leaf, and begin to read the parts of this process's devices."""
    if leaf.parts is None:
        return (leaf.open or leaf.read)()
    parts = sharding.addressable_devices_indices_map(leaf.info.shape).values()
    boxes = dict.fromkeys(_ends(index, leaf.info.shape) for index in parts)
    wanted = [box for box in boxes if all(start < stop for start, stop in box)]
    return leaf.parts([tuple(slice(*pair) for pair in box) for box in wanted])


def _ends(index: tuple[slice, ...], sides: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(cut.indices(side)[:2] for cut, side in zip(index, sides, strict=True))


def _placed(leaf: PytreeLeaf, source: Sliceable, sharding: Any) -> Any:
    import jax

    dtype = numpy_dtype(leaf.info.dtype, leaf.path)
    # Devices with the same part share it here; it is read once.
    parts: dict[tuple[tuple[int, int], ...], np.ndarray[Any, Any]] = {}

    def part(index: tuple[slice, ...]) -> np.ndarray[Any, Any]:
        ends = _ends(index, leaf.info.shape)
        if ends not in parts:
            shape = tuple(stop - start for start, stop in ends)
            parts[ends] = np.empty(shape, dtype)
            if 0 not in shape:
                cut = np.asarray(source[tuple(slice(*pair) for pair in ends)])
                if cut.dtype != dtype:
                    cut = cut.astype(dtype)
                copy_arranged(parts[ends], cut)
        return parts[ends]

    # Dtypes that jax would narrow (float64 without jax_enable_x64) must not change silently.
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
