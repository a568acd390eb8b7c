"""Started by torchrun: one process per GPU, ranks in the environment.

    torchrun --nproc-per-node 2 before.py --name run
"""
import argparse
import os

import torch
import torch.distributed as dist
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


def main(name):
    dist.init_process_group('xla', init_method='xla://')
    local_rank = int(os.environ['LOCAL_RANK'])
    train(int(os.environ['RANK']), int(os.environ['WORLD_SIZE']), local_rank)
    report(name)
    dist.destroy_process_group()


def report(name):
    if dist.get_rank() == 0:
        print(name, 'with', args)


def _mp_fn(index):
    global args
    if 'TORCHELASTIC_RUN_ID' not in os.environ:  # else torchrun has set them
        os.environ['RANK'] = str(index)
        os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
        os.environ['WORLD_SIZE'] = str(xr.world_size())
        os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
    parser = argparse.ArgumentParser()
    parser.add_argument('--name', default='run')
    args = parser.parse_args()

    # Every process does the same
    main(args.name)


if __name__ == '__main__':
    torch_xla.launch(_mp_fn)
