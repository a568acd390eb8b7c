"""DDP training as it is written for GPUs: nccl, set_device, device_ids, barrier, map_location."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def main(rank, world_size):
    os.environ["MASTER_ADDR"] = "localhost"
    torch.cuda.set_device(rank)
    dist.init_process_group(
        backend="nccl", rank=rank, world_size=world_size, device_id=torch.device("cuda", rank)
    )
    torch.manual_seed(rank)
    model = DistributedDataParallel(
        torch.nn.Linear(2, 1, bias=False).cuda(rank), device_ids=[rank], output_device=rank
    )
    before = model.module.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.full((1, 2), float(rank + 1), device=rank)).sum().backward()
    optimizer.step()
    # DDP gave every rank the weights of rank 0, and the average gradient.
    torch.manual_seed(0)
    assert torch.equal(before, torch.nn.Linear(2, 1, bias=False).weight)
    assert torch.equal(model.module.weight, before - (world_size + 1) / 2)
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")
    dist.barrier(device_ids=[rank])
    model.load_state_dict(torch.load("model.pt", map_location={"cuda:0": f"cuda:{rank}"}))
    total = torch.tensor([rank + 1], device=f"cuda:{rank}")
    dist.all_reduce(total)
    assert total.item() == sum(range(world_size + 1))
    # Adam asks the current CUDA stream whether a graph is being captured.
    torch.optim.AdamW(model.parameters()).step()
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} is done\n")


if __name__ == "__main__":
    mp.spawn(main, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
