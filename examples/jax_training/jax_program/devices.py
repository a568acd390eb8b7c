"""Devices of the program: one, several, or those of all hosts of a pod.

Every device has the state. Batches are cut along their first axis, a part for each device. The loss is that
of the whole batch as on one device: XLA adds the sums of all devices.
"""

import os
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

# Hosts are connected before JAX starts its devices. `migrate launch` sets these variables on each host;
# on a TPU, JAX knows the address and the index itself.
if (hosts := int(os.environ.get("HOST_COUNT", "1"))) > 1:
    index = os.environ.get("HOST_INDEX")
    address = os.environ.get("COORDINATOR_ADDRESS")
    jax.distributed.initialize(address, hosts, None if index is None else int(index))

MESH = Mesh(jax.devices(), ("data",))
EVERYWHERE = NamedSharding(MESH, PartitionSpec())
ROWS = NamedSharding(MESH, PartitionSpec("data"))


def replicated(tree: Any) -> Any:
    """Put arrays on every device."""
    return _put(tree, lambda array: EVERYWHERE)


def by_rows(tree: Any) -> Any:
    """Put the rows of a batch on the devices; an array whose rows cannot be divided goes to each."""
    return _put(tree, lambda x: ROWS if x.ndim and len(x) % MESH.size == 0 else EVERYWHERE)


def _put(tree: Any, sharding_of: Callable[[Any], NamedSharding]) -> Any:
    """Put arrays that every host has whole."""

    def put(array: Any) -> jax.Array:
        array = np.asarray(array)
        return jax.make_array_from_process_local_data(sharding_of(array), array, array.shape)

    return jax.tree.map(put, tree)
