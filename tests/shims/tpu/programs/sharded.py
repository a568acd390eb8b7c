"""FSDP2, tensor parallelism and DTensor as a script for torch_tpu has them, on gloo or a simulated TPU.

    torchrun --nproc_per_node 2 sharded.py tpu|cpu OUT

Rank 0 writes losses and weights to OUT.
"""

import os
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from shims._shared import gloo_threads

DEVICE, OUT = sys.argv[1:]


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)


def trained(model, optimizer, seed):
    """Six losses; batches are those of the seed."""
    batches = torch.Generator().manual_seed(seed)
    losses = []
    for _ in range(6):
        rows = torch.randn(5, 8, generator=batches).to(DEVICE)
        classes = torch.randint(0, 4, (5,), generator=batches).to(DEVICE)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(rows), classes)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main():
    dist.init_process_group("tpu_dist" if DEVICE == "tpu" else "gloo")
    # Without shims on the CPU, nobody else waits for threads of gloo that still hold a tensor.
    gloo_threads.let_go_at_exit()
    rank = dist.get_rank()
    mesh = init_device_mesh(DEVICE, (2,))
    result = {}

    model = net()
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    result["fsdp"] = trained(model, optimizer, seed=rank)
    result["weight"] = model[0].weight.full_tensor().detach().cpu()

    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(net(), mesh, plan)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result["tensor parallel"] = trained(model, optimizer, seed=7)

    rows = distribute_tensor(torch.arange(8.0).reshape(4, 2).to(DEVICE), mesh, [Shard(0)])
    result["product"] = (rows @ rows.T).full_tensor().cpu()
    result["replicated"] = rows.redistribute(mesh, [Replicate()]).to_local().cpu()

    mean = torch.full((2,), float(rank), device=DEVICE)
    if DEVICE == "tpu":
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        with pytest.raises(RuntimeError, match="cpu"):
            # Refused as in a group of torch_tpu.
            dist.all_reduce(torch.ones(1))
        # As `batch_isend_irecv`: both send, or both receive, before they wait.
        other = torch.empty(3, device=DEVICE)
        works = [dist.irecv(other, 1 - rank)]
        works.append(dist.isend(torch.full((3,), float(rank), device=DEVICE), 1 - rank))
        for work in works:
            work.wait()
        assert other.tolist() == [1.0 - rank] * 3, other
        assert mean.tolist() == [0.5, 0.5], mean
        assert os.environ["WORLD_SIZE"] == "2"
    if rank == 0:
        torch.save(result, OUT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
