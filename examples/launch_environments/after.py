"""Started by torchrun, by SLURM or by MPI, whichever has set its variables.

    torchrun --nproc-per-node 2 before.py
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


def init_distributed_mode(args):
    if 'RANK' not in os.environ and args.on_mpi:
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
    dist.init_process_group(
        backend='xla', init_method='xla://'
    )


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


def main(args):
    init_distributed_mode(args)
    train(args.rank, args.world_size, args.gpu)


def _mp_fn(index):
    if 'TORCHELASTIC_RUN_ID' not in os.environ:  # else torchrun has set them
        os.environ['RANK'] = str(index)
        os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
        os.environ['WORLD_SIZE'] = str(xr.world_size())
        os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
    parser = argparse.ArgumentParser()
    parser.add_argument('--on-mpi', action='store_true')
    parser.add_argument('--world-size', default=1, type=int)
    parser.add_argument('--dist-url', default='env://', help='where the processes meet (no effect on a TPU)')
    main(parser.parse_args())


if __name__ == '__main__':
    torch_xla.launch(_mp_fn)
