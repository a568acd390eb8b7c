"""The batches of before.py: its own loop, without what trains."""

import contextlib
import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed
from config import ARGV

FOLDER = (
    Path(__file__).resolve().parent.joinpath("../../ddp_toy").resolve()
)  # of the script, with its modules
sys.path.append(str(FOLDER))


class Ended(BaseException):
    """The script ends here."""


@contextlib.contextmanager
def command_line():
    """The command line of before.py: its own statements read it."""
    kept, sys.argv = sys.argv, [str(FOLDER / "before.py"), *ARGV]
    try:
        yield
    finally:
        sys.argv = kept


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
            yield {"inputs": inputs, "labels": labels}
            yield None


def micro_batches():
    """Yield each micro-batch, and None where the weights are updated."""
    yield from _mp_fn(0, 1)


def arrays(value):
    """The value as dictionaries, lists and NumPy arrays."""
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    if isinstance(value, tuple | list):
        return [arrays(item) for item in value]
    if isinstance(value, Mapping):
        return {key: arrays(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {f.name: arrays(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def batches():
    """Yield the micro-batches of each update of the weights."""
    micro = []
    with command_line(), contextlib.suppress(Ended):
        for batch in micro_batches():
            if batch is None:
                yield micro
                micro = []
            else:
                micro.append(arrays(batch))
