"""What starts replicas, or processes of which each may be one."""

from __future__ import annotations

SPAWN = frozenset(
    {
        "torch.multiprocessing.spawn",
        "torch.multiprocessing.spawn.spawn",
        "torch.multiprocessing.spawn.start_processes",
        "torch.multiprocessing.start_processes",
    }
)
# Runs a whole file in each replica.
SCRIPT = "shims.launch_script"
LAUNCHERS = SPAWN | {
    "shims.launch",
    SCRIPT,
    "torch_xla.launch",
    "torch_xla.distributed.xla_multiprocessing.spawn",
}
PROCESS = frozenset(
    {
        "multiprocessing.Process",
        "multiprocessing.context.Process",
        "torch.multiprocessing.Process",
    }
)
