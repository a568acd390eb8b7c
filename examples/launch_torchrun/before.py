"""Started by torchrun: one process per GPU, ranks in the environment.

    torchrun --nproc-per-node 2 before.py --name run
"""
import argparse
import os

import torch
import torch.distributed as dist
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


def main(name):
    dist.init_process_group('nccl')
    local_rank = int(os.environ['LOCAL_RANK'])
    torch.cuda.set_device(local_rank)
    train(int(os.environ['RANK']), int(os.environ['WORLD_SIZE']), local_rank)
    report(name)
    dist.destroy_process_group()


def report(name):
    if dist.get_rank() == 0:
        print(name, 'with', args)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--name', default='run')
    args: argparse.Namespace = parser.parse_args()

    # Every process does the same
    main(args.name)
