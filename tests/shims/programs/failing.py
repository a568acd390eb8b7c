"""Two replicas, of which one does something that the other does not, in the way that the argument names.

The lines that an error must name end in a comment `# first` (of replica 0) or `# second`.
"""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend


def main(rank, how):
    dist.init_process_group("xla", init_method="xla://")
    on_host = dist.new_group(backend="gloo") if how in ("host barrier", "busy") else None
    value = torch.ones(3, device="xla")
    dist.all_reduce(value)
    torch_xla.sync()
    if rank == 1:
        if how == "raises":
            raise ValueError("the second replica gives up")
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exits":
            sys.exit(3)
        if how == "returns":
            return
        if how == "other shape":
            value = torch.ones(4, device="xla")
        if how == "host barrier":
            dist.barrier(group=on_host)  # second
        if how == "busy":
            time.sleep(5)  # slow: second
    if how == "raises":
        # Not even in a collective.
        time.sleep(600)  # slow: it has to be stopped
    if how == "rendezvous" and rank == 0:
        xm.rendezvous("save")  # first
    if how in ("guarded save", "guarded read", "guarded sync", "read at the end"):
        dist.all_reduce(value)
        doubled = value * 2
        if rank == 0 and how == "guarded save":
            xm.save({"value": doubled}, os.devnull)  # first
        if rank == 0 and how == "guarded sync":
            torch_xla.sync()  # first
        if rank == 0 and how in ("guarded read", "read at the end"):
            sys.stdout.write(f"{doubled}\n")  # first
        if how == "read at the end":
            return
    if how == "receives" and rank == 1:
        dist.recv(value, 0)  # second
    dist.all_reduce(value)  # first second


if __name__ == "__main__":
    torch_xla.launch(main, args=(sys.argv[1],))
