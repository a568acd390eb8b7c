"""No main function: everything runs while the file is read, also a configuration that is executed.

    torchrun --nproc-per-node 2 before.py
"""
import os
import runpy
import sys

import torch_xla
import torch_xla.runtime as xr


def _mp_fn(index):
    """Run this file in a replica, as torchrun runs it in a process."""
    os.environ['RANK'] = str(index)
    os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
    os.environ['WORLD_SIZE'] = str(xr.world_size())
    os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
    runpy.run_path(__file__, run_name='__main__')


if __name__ == '__main__' and 'RANK' not in os.environ:
    # Forked: a spawned process would run this file while it imports it.
    torch_xla.launch(_mp_fn, start_method='fork')
    sys.exit()

import torch
import torch.nn as nn
import torch_xla.distributed.xla_backend
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

learning_rate: float = 0.1
steps = 3
exec("steps = 2")  # as scripts do with a configuration file
ddp = int(os.environ.get('RANK', -1)) != -1
if ddp:
    init_process_group(backend='xla', init_method='xla://')
    rank = int(os.environ['RANK'])
    device = 'xla'
    world_size = int(os.environ['WORLD_SIZE'])
else:
    rank, world_size = 0, 1
    device = 'xla'


def batch():
    x = torch.arange(32.0).reshape(8, 4) / 32 + rank
    return x.to(device), x.sum(dim=1, keepdim=True).to(device)


torch.manual_seed(0)
torch_xla.manual_seed(0)
model: nn.Module = nn.Linear(4, 1).to(device)
if ddp:
    model = DDP(model, gradient_as_bucket_view=True)
optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate)
for step in range(steps):
    with torch_xla.step():
        inputs, labels = batch()
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), labels)
        loss.backward()
        optimizer.step()
print(f'rank {rank} of {world_size}: loss {loss.item():.4f} after {steps} steps')
if ddp:
    destroy_process_group()
