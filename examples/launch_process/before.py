"""Starts one Process for each rank and waits for them.

    python before.py
"""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, world_size, device):
    torch.manual_seed(0)
    model = nn.Linear(4, 1).to(device)
    model = DDP(model, device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(32.0).reshape(8, 4) / 32 + rank
    y = x.sum(dim=1, keepdim=True)
    for step in range(3):
        inputs, labels = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
    print(f'rank {rank} of {world_size}: loss {loss.item():.4f}')


def init_process(rank, size, backend='gloo'):
    """Join the group and train."""
    os.environ['MASTER_ADDR'] = '127.0.0.1'
    os.environ['MASTER_PORT'] = '29512'
    dist.init_process_group(backend, rank=rank, world_size=size)
    train(rank, size, rank)
    dist.destroy_process_group()


if __name__ == '__main__':
    world_size = 2
    processes = []
    mp.set_start_method('spawn')
    for rank in range(world_size):
        p = mp.Process(target=init_process, args=(rank, world_size))
        p.start()
        processes.append(p)

    for p in processes:
        p.join()
