"""Ranks that name a host which does not exist, as an address in the environment and in a URL."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Of the block for documentation (RFC 5737): no host has it.
FAR = "192.0.2.7"


def main(rank: int, address: str) -> None:
    dist.init_process_group("nccl", address, world_size=2, rank=rank)
    total = torch.full((1,), rank + 1.0).cuda(rank)
    dist.all_reduce(total)
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} has {total.item()}\n")


if __name__ == "__main__":
    os.environ["MASTER_ADDR"] = FAR
    os.environ["MASTER_PORT"] = sys.argv[1]
    mp.spawn(main, args=("env://",), nprocs=2)
    mp.spawn(main, args=(f"tcp://{FAR}:{sys.argv[1]}",), nprocs=2)
