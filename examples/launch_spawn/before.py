"""Starts its own processes, on one of several nodes.

    python before.py --node 0 --nodes 1
"""
import argparse
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


def worker(gpu, ngpus_per_node, args):
    args.rank = args.node_rank * ngpus_per_node + gpu
    dist.init_process_group(
        backend='nccl', init_method='env://', world_size=args.world_size, rank=args.rank
    )
    args.batch_size = int(args.batch_size / ngpus_per_node)
    torch.cuda.set_device(gpu)
    train(args.rank, args.world_size, gpu)
    print(f'batch size {args.batch_size}')
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--nodes', default=1, type=int)
    parser.add_argument('--node-rank', default=0, type=int)
    parser.add_argument('--batch-size', default=64, type=int)
    args = parser.parse_args()
    ngpus_per_node = torch.cuda.device_count()
    args.world_size = ngpus_per_node * args.nodes
    os.environ['MASTER_ADDR'] = '127.0.0.1'
    os.environ['MASTER_PORT'] = '29511'
    mp.spawn(worker, nprocs=ngpus_per_node, args=(ngpus_per_node, args))


if __name__ == '__main__':
    main()
