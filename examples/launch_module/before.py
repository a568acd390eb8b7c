"""No main function: everything runs while the file is read, also a configuration that is executed.

    torchrun --nproc-per-node 2 before.py
"""
import os

import torch
import torch.nn as nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

learning_rate: float = 0.1
steps = 3
exec("steps = 2")  # as scripts do with a configuration file
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    init_process_group(backend='nccl')
    rank = int(os.environ['RANK'])
    device = f"cuda:{os.environ['LOCAL_RANK']}"
    torch.cuda.set_device(device)
    world_size = int(os.environ['WORLD_SIZE'])
else:
    rank, world_size = 0, 1
    device = 'cuda'


def batch():
    x = torch.arange(32.0).reshape(8, 4) / 32 + rank
    return x.to(device), x.sum(dim=1, keepdim=True).to(device)


torch.manual_seed(0)
model: nn.Module = nn.Linear(4, 1).to(device)
if ddp:
    model = DDP(model, device_ids=[int(os.environ['LOCAL_RANK'])])
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
for step in range(steps):
    inputs, labels = batch()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), labels)
    loss.backward()
    optimizer.step()
print(f'rank {rank} of {world_size}: loss {loss.item():.4f} after {steps} steps')
if ddp:
    destroy_process_group()
