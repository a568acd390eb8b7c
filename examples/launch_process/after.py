"""Starts one Process for each rank and waits for them.

    python before.py
"""

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn as nn
import torch_xla
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank, world_size, device):
    torch.manual_seed(0)
    torch_xla.manual_seed(0)
    model = nn.Linear(4, 1).to('xla')
    model = DDP(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.arange(32.0).reshape(8, 4) / 32 + rank
    y = x.sum(dim=1, keepdim=True)
    for step in range(3):
        with torch_xla.step():
            inputs, labels = x.to('xla'), y.to('xla')
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), labels)
            loss.backward()
            optimizer.step()
    print(f'rank {rank} of {world_size}: loss {loss.item():.4f}')


def init_process(rank, backend='gloo'):
    """Join the group and train."""
    size = xr.world_size()
    dist.init_process_group('xla', init_method='xla://')
    train(rank, size, rank)
    dist.destroy_process_group()


if __name__ == '__main__':
    mp.set_start_method('spawn')
    torch_xla.launch(init_process)
