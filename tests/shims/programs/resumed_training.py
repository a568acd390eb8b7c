"""A training that may be ended by SIGTERM: the test kills it, starts it again, compares weights.

Arguments: device (cpu, xla), folder of checkpoints, file for the final weights, the rank and step
at which the process sends itself SIGTERM (-1: never), and on the CPU: rank, size, rendezvous file.
With LOADER_WORKERS=N the loader has N workers, and SIGTERM goes to them as well.
"""

# ruff: noqa: T201

import os
import random
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import shims
from shims.checkpoint import save
from shims.resume import resume

if sys.argv[1] == "xla":
    import torch_xla


class Noisy(Dataset):
    """Samples with augmentation from the global generators of Python and torch."""

    def __len__(self):
        return 26

    def __getitem__(self, index):
        x = torch.sin(torch.arange(4.0) * index)
        return x + 0.1 * torch.randn(4) + 0.1 * random.random(), x.sum()


def train(device, folder, weights, kill_rank, kill_step):
    workers = int(os.environ.get("LOADER_WORKERS", "0"))
    rank, size = dist.get_rank() if dist.is_initialized() else 0, 1
    if dist.is_initialized():
        size = dist.get_world_size()
    torch.manual_seed(1 + rank)
    random.seed(rank)
    data = Noisy()
    if size > 1:
        sampler = DistributedSampler(data, num_replicas=size, rank=rank, drop_last=True)
        loader = DataLoader(data, batch_size=3, sampler=sampler, drop_last=True)
    else:
        sampler = None
        own = torch.Generator().manual_seed(5) if device == "cpu" else None
        loader = DataLoader(
            data, 3, shuffle=True, generator=own, drop_last=True, num_workers=workers
        )
    if workers:
        loader = shims.loader(loader)  # starts the workers with the first batch only
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(),
        torch.nn.Dropout(0.3), torch.nn.Linear(8, 1),
    ).to(device)  # fmt: skip
    torch.manual_seed(100 + rank)
    if device == "xla":
        torch_xla.manual_seed(100 + rank)
    wrapped = torch.nn.parallel.DistributedDataParallel(model) if size > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
    with resume(folder, model=wrapped, optimizer=optimizer, every=4, scheduler=scheduler) as run:
        # One write: the replicas share the output.
        print(f"start at {run.step} {run.state.get('seen', 0)}\n", end="", flush=True)
        for epoch in run.epochs(3):
            if sampler is not None:
                sampler.set_epoch(epoch)
            for x, y in run.batches(loader):
                if (rank, run.step) == (kill_rank, kill_step):
                    if workers:
                        # From another process: to a worker its parent's signal is an order.
                        subprocess.run(["kill", "-TERM", "--", f"-{os.getpgrp()}"], check=False)
                        time.sleep(0.2)  # slow: a worker dies meanwhile, if it does
                    else:
                        os.kill(os.getpid(), signal.SIGTERM)
                loss = (wrapped(x.to(device)).squeeze(1) - y.to(device)).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if device == "xla":
                    torch_xla.sync()
                run.state["seen"] = run.state.get("seen", 0) + len(x)
            scheduler.step()
            torch.randn(3)  # as a validation with random crops would draw
    print(f"end at {run.step} {run.state['seen']}\n", end="", flush=True)
    save([model.state_dict(), torch.rand(1), random.random()], weights)


def replica(index, device, *args):
    if device == "xla":
        import torch_xla.distributed.xla_backend  # noqa: F401

        dist.init_process_group("xla", init_method="xla://")
    train(device, *args)


if __name__ == "__main__":
    device, folder, weights, kill_rank, kill_step, *place = sys.argv[1:]
    arguments = (device, folder, weights, int(kill_rank), int(kill_step))
    if device == "xla":
        torch_xla.launch(replica, args=arguments)
    else:
        if place:
            dist.init_process_group(
                "gloo",
                rank=int(place[0]),
                world_size=int(place[1]),
                init_method=f"file://{place[2]}",
            )
        train(*arguments)
        if place:
            dist.destroy_process_group()
