"""Fit a linear layer with DistributedDataParallel, one process per GPU."""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, world_size):
    dist.init_process_group(
        "nccl", init_method="tcp://localhost:12355", rank=rank, world_size=world_size
    )
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(10, 1).to(rank), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)  # every rank draws its own batches
    for step in range(20):
        inputs = torch.randn(8, 10, generator=data).to(rank)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()  # DDP averages the gradients here
        optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    mp.spawn(train, args=(torch.cuda.device_count(),), nprocs=torch.cuda.device_count())
