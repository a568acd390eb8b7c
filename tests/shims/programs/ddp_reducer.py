"""The averaging of DDP's gradients in the simulation against DDP's own Reducer, bit for bit.

Run as `python ddp_reducer.py` with the simulation switched on.
"""

import sys

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from shims._simulated import reducer

BY_REDUCER = set()
is_bypassed = reducer._is_bypassed
reducer._is_bypassed = lambda model: model not in BY_REDUCER and is_bypassed(model)


class Branches(nn.Module):
    """`first` is always used; of the others the one that is asked for."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 5)
        self.norm = nn.BatchNorm1d(5)
        self.others = nn.ModuleList([nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(5, 3)])

    def forward(self, inputs, branch):
        return self.others[branch](self.norm(self.first(inputs)).relu())


class Whole(Branches):
    """All branches, added up: every parameter is used."""

    def forward(self, inputs):
        return sum(super(Whole, self).forward(inputs, branch) for branch in range(3))


def models(device, kind=Branches, dtype=torch.float32, **options):
    """The same model twice: one that the simulation averages, one that DDP's Reducer does."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(DistributedDataParallel(kind().to(device, dtype), **options))
    BY_REDUCER.add(made[1])
    return made


def gradients(model):
    torch_xla.sync()
    return {
        name: None if parameter.grad is None else parameter.grad.cpu()
        for name, parameter in model.named_parameters()
    }


def same(name, bypassed, reduced):
    ours, theirs = gradients(bypassed), gradients(reduced)
    for parameter, wanted in theirs.items():
        got = ours[parameter]
        if (got is None) != (wanted is None) or (got is not None and not torch.equal(got, wanted)):
            raise AssertionError(f"{name}: {parameter}: {got} is not {wanted}")
    for (buffer, one), other in zip(bypassed.named_buffers(), reduced.buffers(), strict=True):
        if not torch.equal(one.cpu(), other.cpu()):
            raise AssertionError(f"{name}: buffer {buffer}")
    if xr.global_ordinal() == 0:
        count = sum(value is not None for value in theirs.values())
        sys.stdout.write(f"equal: {name}, {count} gradients\n")


def batch(seed, device):
    generator = torch.Generator().manual_seed(10 * seed + xr.global_ordinal())
    return torch.randn(4, 6, generator=generator).to(device)


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    device = torch_xla.device()

    pair = models(device, kind=Whole, gradient_as_bucket_view=True)
    for model in pair:
        model(batch(1, device)).square().mean().backward()
    same("all parameters", *pair)

    for model in pair:
        model.zero_grad()
        with model.no_sync():
            model(batch(2, device)).square().mean().backward()
    alone = gradients(pair[0])
    same("no_sync: nothing is averaged", *pair)
    for model in pair:
        model(batch(3, device)).square().mean().backward()
    same("accumulated, then averaged", *pair)
    assert not torch.equal(alone["module.first.weight"], gradients(pair[0])["module.first.weight"])

    # Each replica uses another branch, and none the last.
    unused = models(device, find_unused_parameters=True)
    for model in unused:
        model(batch(4, device), xr.global_ordinal() % 2).square().mean().backward()
    same("unused parameters", *unused)
    assert gradients(unused[0])["module.others.2.weight"] is None

    strict, _ = models(device)
    strict(batch(5, device), 0).sum().backward()
    try:
        strict(batch(6, device), 0)
    except RuntimeError as error:
        if xr.global_ordinal() == 0:
            sys.stdout.write(f"refused: {error}\n")

    half = models(device, kind=Whole, dtype=torch.bfloat16)
    for model in half:
        model(batch(7, device).to(torch.bfloat16)).square().mean().backward()
    same("bfloat16", *half)


if __name__ == "__main__":
    torch_xla.launch(worker)
