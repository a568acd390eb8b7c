"""The batches of before.py: its own loop, without what trains."""

import numpy as np
import torch
import torch.distributed
from shims import patches

# before.py trains on a GPU. Here its tensors stay in the memory of the host.
patches.install("cpu", 1)

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def make_dataset(size=512):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 10, generator=generator)
    labels = torch.relu(inputs) @ torch.randn(10, 5, generator=generator)
    return TensorDataset(inputs, labels)


def _mp_fn(rank, world_size):
    dist.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    dataset = make_dataset()
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)  # another order in every epoch
        for inputs, labels in loader:
            yield [{"inputs": np.asarray(inputs), "labels": np.asarray(labels)}]
            loss = UPDATE["loss"]
        if rank == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")


# Values of the last update, which train.py sets.
UPDATE = {"loss": np.float32("nan")}


def batches():
    """Yield the micro-batches of each update of the weights."""
    yield from _mp_fn(0, 1)
