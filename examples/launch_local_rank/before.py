"""Started by torch.distributed.launch, which passes --local_rank to every process.

    python -m torch.distributed.launch --nproc-per-node 2 before.py
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument('--local_rank', type=int, default=-1)
parser.add_argument('--dist-backend', default='nccl', help='backend of the process group')
parser.add_argument('--dist-url', default='env://')


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


def main():
    args = parser.parse_args()
    args.distributed = 'WORLD_SIZE' in os.environ and int(os.environ['WORLD_SIZE']) > 1
    if args.distributed:
        torch.cuda.set_device(args.local_rank)
        dist.init_process_group(backend=args.dist_backend, init_method=args.dist_url)
    train(dist.get_rank(), dist.get_world_size(), args.local_rank)


if __name__ == '__main__':
    main()
