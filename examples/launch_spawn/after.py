"""Starts its own processes, on one of several nodes.

    python before.py --node 0 --nodes 1
"""
import argparse

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


def worker(gpu, args):
    ngpus_per_node = xr.local_device_count()
    args.world_size = xr.world_size()
    args.rank = gpu
    dist.init_process_group(
        backend='xla', init_method='xla://'
    )
    args.batch_size = int(args.batch_size / ngpus_per_node)
    train(args.rank, args.world_size, gpu)
    print(f'batch size {args.batch_size}')
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--nodes', default=1, type=int)
    parser.add_argument('--node-rank', default=0, type=int)
    parser.add_argument('--batch-size', default=64, type=int)
    args = parser.parse_args()
    torch_xla.launch(worker, args=(args,))


if __name__ == '__main__':
    main()
