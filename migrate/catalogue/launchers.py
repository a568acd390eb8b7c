"""Calls that start replicas, or processes that may each be a replica."""

from __future__ import annotations

from migrate.catalogue import torch_other
from migrate.catalogue.entry import names

SPAWN = names(*torch_other.SPAWN)
SPAWN_PARAMETERS = ("fn", "args", "nprocs", "join", "daemon", "start_method")
# Holds the model of a replica.
DDP = names(*torch_other.DDP)
# Its parameters that name CUDA devices; with them its forward moves the inputs there.
DDP_DEVICES = frozenset({"device_ids", "output_device"})
# Runs a whole file in each replica.
SCRIPT = "shims.launch_script"
LAUNCH = "torch_xla.launch"
LAUNCH_PARAMETERS = ("fn", "args", "start_method", "debug_single_process")
# Start the replicas of torch_xla.
XLA_LAUNCHES = frozenset({LAUNCH, "torch_xla.distributed.xla_multiprocessing.spawn"})
# Run the function in a thread of each replica.
IN_THREADS = XLA_LAUNCHES | {"shims.launch", SCRIPT}
LAUNCHERS = SPAWN | IN_THREADS
PROCESS = frozenset(
    {
        "multiprocessing.Process",
        "multiprocessing.context.Process",
        "torch.multiprocessing.Process",
    }
)
STARTS = LAUNCHERS | PROCESS
# Functions passed to one of these run in a job of a cluster: the script only submits the job.
SUBMITTERS = frozenset({"submitit"})
