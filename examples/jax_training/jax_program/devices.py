"""Devices of the program: one, several, or those of all hosts of a pod.

Every device has the state. Batches are cut along their first axis, a part for each device. The loss is that
of the whole batch as on one device: XLA adds the sums of all devices.
"""

import os
from typing import Any

import jax
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
    return _put(tree, jax.tree.map(lambda x: EVERYWHERE, tree))


def by_rows(tree: Any) -> Any:
    """Put the rows of a batch on the devices; an array whose rows cannot be divided goes to each."""

    def sharding(x: Any) -> NamedSharding:
        return ROWS if x.ndim and len(x) % MESH.size == 0 else EVERYWHERE

    return _put(tree, jax.tree.map(sharding, tree))


def _put(tree: Any, shardings: Any) -> Any:
    """Put arrays that every host has whole."""
    if jax.process_count() == 1:
        return jax.device_put(tree, shardings)
    put = jax.make_array_from_process_local_data
    return jax.tree.map(lambda x, sharding: put(sharding, x, x.shape), tree, shardings)
