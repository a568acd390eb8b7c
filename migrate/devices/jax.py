"""The chips that JAX has here. One program for all of them, so that all run the same instructions."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from migrate.devices.programs import ChipJob
from migrate.devices.report import Chip

Array = np.ndarray[Any, Any]
_AXIS = "chips"


class JaxChips:
    """See `probe.Chips`."""

    left_out: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._devices = jax.local_devices()
        self._mesh = mesh_of(self._devices)
        self.runtime = f"jax {jax.__version__}"
        self.platform: str = self._devices[0].platform
        self.chips = tuple(_chip(device) for device in self._devices)

    def prepared(self, job: ChipJob) -> Callable[[], dict[int, Callable[[], Array]]]:
        """See `probe.Chips`."""
        compiled, sharding = program(self._mesh, job)
        placed = [jax.device_put(array, sharding) for array in job.inputs]

        def launch() -> dict[int, Callable[[], Array]]:
            shards = compiled(*placed).addressable_shards
            return {shard.device.id: functools.partial(_take, shard.data) for shard in shards}

        return launch


def mesh_of(devices: Sequence[Any]) -> Mesh:
    """Mesh with one axis over all chips."""
    return Mesh(np.array(devices), (_AXIS,))


def program(mesh: Mesh, job: ChipJob) -> tuple[Any, NamedSharding]:
    """The jitted program of a job on all chips of a mesh, and how its inputs are laid on them."""
    together = job.kind == "all-reduce"
    spec = PartitionSpec(_AXIS) if together else PartitionSpec()
    function = jax.shard_map(
        functools.partial(_all_reduce if together else _local, job=job),
        mesh=mesh,
        in_specs=spec,
        out_specs=PartitionSpec(_AXIS),
        check_vma=False,
    )
    return jax.jit(function), NamedSharding(mesh, spec)


def _local(*arrays: Any, job: ChipJob) -> Any:
    if job.kind == "softmax":
        return jax.nn.softmax(arrays[0], axis=-1)[None]
    whole = job.inputs[0].dtype == np.int8
    return jnp.matmul(
        *arrays,
        precision=lax.Precision.HIGHEST if job.highest else lax.Precision.DEFAULT,
        preferred_element_type=jnp.int32 if whole else jnp.float32,
    )[None]


def _all_reduce(array: Any, job: ChipJob) -> Any:
    del job
    return lax.psum(array, _AXIS)


def _take(data: Any) -> Array:
    return np.asarray(data)[0]


def _chip(device: Any) -> Chip:
    coordinates = getattr(device, "coords", None)
    core = getattr(device, "core_on_chip", None)
    parts = [f"at {','.join(map(str, coordinates))}"] if coordinates is not None else []
    parts += [f"core {core}"] if core is not None else []
    parts += [f"process {device.process_index}"] if jax.process_count() > 1 else []
    return Chip(device.id, device.device_kind, " ".join(parts), platform.node())
