"""Started by torchrun, by SLURM or by MPI, whichever has set its variables.

    torchrun --nproc-per-node 2 before.py
"""
import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def init_distributed_mode(args):
    if args.on_mpi:
        args.rank = int(os.environ['OMPI_COMM_WORLD_RANK'])
        args.world_size = int(os.environ['OMPI_COMM_WORLD_SIZE'])
        args.gpu = int(os.environ['OMPI_COMM_WORLD_LOCAL_RANK'])
    elif 'RANK' in os.environ and 'WORLD_SIZE' in os.environ:
        args.rank = int(os.environ['RANK'])
        args.world_size = int(os.environ['WORLD_SIZE'])
        args.gpu = int(os.environ['LOCAL_RANK'])
    elif 'SLURM_PROCID' in os.environ:
        args.rank = int(os.environ['SLURM_PROCID'])
        args.gpu = int(os.environ['SLURM_LOCALID'])
    else:
        args.distributed = False
        return
    args.distributed = True
    torch.cuda.set_device(args.gpu)
    dist.init_process_group(
        backend='nccl', init_method=args.dist_url, world_size=args.world_size, rank=args.rank
    )


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


def main(args):
    init_distributed_mode(args)
    train(args.rank, args.world_size, args.gpu)


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--on-mpi', action='store_true')
    parser.add_argument('--world-size', default=1, type=int)
    parser.add_argument('--dist-url', default='env://', help='where the processes meet')
    main(parser.parse_args())
