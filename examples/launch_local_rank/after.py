"""Started by torch.distributed.launch, which passes --local_rank to every process.

    python -m torch.distributed.launch --nproc-per-node 2 before.py
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

parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', type=int, default=-1)
parser.add_argument('--dist-backend', default='nccl', help='backend of the process group (no effect on a TPU)')
parser.add_argument('--dist-url', default='env://', help='no effect on a TPU')


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


def main():
    args = parser.parse_args()
    args.local_rank = int(os.environ['LOCAL_RANK'])
    args.distributed = 'WORLD_SIZE' in os.environ and int(os.environ['WORLD_SIZE']) > 1
    if args.distributed:
        dist.init_process_group(backend='xla', init_method='xla://')
    train(dist.get_rank(), dist.get_world_size(), args.local_rank)


def _mp_fn(index):
    if 'TORCHELASTIC_RUN_ID' not in os.environ:  # else torchrun has set them
        os.environ['RANK'] = str(index)
        os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
        os.environ['WORLD_SIZE'] = str(xr.world_size())
        os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
    main()


if __name__ == '__main__':
    torch_xla.launch(_mp_fn)
