"""Variables by which the ranks of torch_tpu find each other's chips, over all hosts of a slice.

torch_tpu 0.2.0 sets them by `torch.tpu.distributed.set_tpu_launch_env`, which never overwrites one that is
set. On several hosts it needs variables that only GKE sets, and takes the topology of the host for that of
the slice. So the job sets them, from the launcher's addresses and the table of products.
"""

from __future__ import annotations

import zlib

from migrate.launch.host.hosts import SliceHost
from migrate.launch.host.settings import HostSettings

_PORT = 8070  # torch_tpu's own: one port per rank of a host, from this one


def slice_variables(settings: HostSettings, host: SliceHost, port: str) -> dict[str, str]:
    """Return the variables of torch_tpu's ranks on this host.

    Args:
        settings: the settings of the job.
        host: this host.
        port: port of host 0, at which the ranks meet.
    """
    if host.count == 1 and settings.processes == "host":
        # The program starts its ranks, perhaps fewer than there are chips. In an indexed Job of GKE or xpk,
        # torch_tpu takes one host for several, and needs its name.
        return {"TPU_WORKER_HOSTNAMES": host.first}
    places = [
        f"{address}:{_PORT + rank}" for address in host.addresses for rank in range(settings.ranks)
    ]
    return {
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(places),
        "TORCH_TPU_TOPOLOGY": settings.topology,
        "TORCH_TPU_XPROF_SESSION_ID": str(zlib.crc32(settings.name.encode())),
        "TPU_WORKER_HOSTNAMES": ",".join(host.addresses),
        "NNODES": str(host.count),
        "NODE_RANK": str(host.index),
        "MASTER_ADDR": host.first,
        "MASTER_PORT": port,
    }
