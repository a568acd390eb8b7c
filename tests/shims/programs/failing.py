"""Two replicas, of which the second one fails in the way that the argument names."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend


def main(rank, how):
    dist.init_process_group("xla", init_method="xla://")
    value = torch.ones(3, device="xla")
    dist.all_reduce(value)
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
    if how == "raises":
        # Not even in a collective: it has to be stopped.
        time.sleep(600)
    dist.all_reduce(value)


if __name__ == "__main__":
    torch_xla.launch(main, args=(sys.argv[1],))
