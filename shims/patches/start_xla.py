"""Installation of the CUDA answers on XLA, right after torch_xla has been imported."""

from __future__ import annotations

import functools
import os

import torch_xla
from torch_xla._internal import pjrt
from torch_xla.core import xla_model

from shims import activate, patches


def install() -> None:
    """Answer for CUDA on XLA in this process; a rank of `python -m shims` becomes a replica."""
    count = activate.replicas()
    simulated = os.environ.get("PJRT_DEVICE") == "CPU"
    if simulated:
        from shims._simulated import autocast, half_sums, launch, resize

        half_sums.install("XLA")
        resize.install()
        autocast.install()
        pjrt.run_multiprocess = functools.partial(launch.run_multiprocess, count)
    if activate.STORE_PORT in os.environ and "RANK" in os.environ:
        rank = int(os.environ["RANK"])
        if simulated:
            from shims._simulated import replica

            replica.join(rank, count, int(os.environ[activate.STORE_PORT]), serve=rank == 0)
        # torch_xla.launch does the same in each of its workers.
        pjrt.initialize_multiprocess(int(os.environ["LOCAL_RANK"]), count)
        torch_xla._XLAC._xla_set_default_device(xla_model.get_xla_supported_devices()[0])
        torch_xla.runtime._init_world_size_ordinal()
    patches.install("xla", count)
