"""A training step written by hand against the same step written with the shims' explicit API.

    python benchmarks/shims_overhead.py

Both take steps of one model of 10 million parameters, in turn in the same process: A B B A A B B A ….
Prints the medians, and the ratio of neighboring steps with its spread; native against native shows what
the machine's noise gives alone. A model of next to nothing shows the cost of the calls. Runs on the GPU if
there is one (`MIGRATE_BACKEND=cpu` for the CPU). Exit code 1 if the median ratio is over 1.01.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from history import append
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import shims

LIMIT = 1.01
PAIRS = int(os.environ.get("PAIRS", "100"))
WARM_UP = 3
ROWS, WIDTH, LAYERS = 64, 1580, 4

Step = Callable[[], None]


@dataclass(frozen=True)
class Training:
    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler


def make_training(width: int) -> Training:
    """What both steps train: where its weights lie in memory changes a step by more than 1 %."""
    model = shims.ddp(shims.to_device(make_model(width)))
    scaler = shims.grad_scaler()
    # Nothing of the shims is in these objects.
    assert type(model) is DistributedDataParallel
    assert type(scaler) is torch.amp.GradScaler
    return Training(model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), scaler)


def make_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(LAYERS):
        layers += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers)


def native(training: Training, batches: list[torch.Tensor], device: torch.device) -> Step:
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    seen = torch.zeros((), device=device)

    def step() -> None:
        for batch in batches:
            inputs = batch.to(device, non_blocking=True)
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=False):
                loss = model(inputs).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            seen.copy_(loss.detach())
            dist.all_reduce(seen)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


def with_shims(training: Training, batches: list[torch.Tensor]) -> Step:
    model, optimizer, scaler = training.model, training.optimizer, training.scaler
    loader = shims.loader(batches)
    seen = torch.zeros((), device=shims.device())

    def step() -> None:
        for inputs in loader:
            with shims.step():
                optimizer.zero_grad()
                with shims.autocast(enabled=False):
                    loss = model(inputs).square().mean()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                shims.clip_grad_norm(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            seen.copy_(loss.detach())
            shims.all_reduce(seen)
        shims.synchronize()

    return step


def seconds(step: Step) -> float:
    # On the CPU the process's own time: other programs on the machine do not count.
    clock = time.perf_counter if shims.device().type == "cuda" else time.process_time
    started = clock()
    step()
    return clock() - started


def pairs(first: Step, second: Step, count: int) -> list[tuple[float, float]]:
    """The seconds of both steps, taken one after the other."""
    for _ in range(WARM_UP):
        first()
        second()
    taken = []
    for pair in range(count):
        # Every second pair the other way round: neither is always the later one.
        if pair % 2:
            b, a = seconds(second), seconds(first)
        else:
            a, b = seconds(first), seconds(second)
        taken.append((a, b))
    return taken


def compare(name: str, first: Step, second: Step) -> tuple[float, float]:
    """Print and return the median ratio second / first, and the first's median in seconds."""
    taken = pairs(first, second, PAIRS)
    low, median, high = statistics.quantiles([b / a for a, b in taken], n=4)
    a, b = (statistics.median(times) for times in zip(*taken, strict=True))
    print(
        f"{name}: {a * 1000:.2f} ms and {b * 1000:.2f} ms; ratio {median:.4f}, "
        f"middle half {low:.4f} to {high:.4f}, of {PAIRS} pairs"
    )
    append(
        "shims-overhead",
        {
            "a step": name.strip(),
            "pairs": PAIRS,
            "ratio": f"{median:.4f}",
            "middle half": f"{low:.3f} to {high:.3f}",
            "limit": LIMIT if "shims" in name else "",
            "device": str(shims.device()),
        },
    )
    return median, a


def main() -> int:
    shims.init_distributed()
    device = shims.device()
    training = make_training(WIDTH)
    count = sum(parameter.numel() for parameter in training.model.parameters())
    print(f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads")
    print(f"{count / 1e6:.2f} M parameters, {ROWS} rows, {shims.backend()}")
    batches = [torch.randn(ROWS, WIDTH)]
    by_hand = native(training, batches, device)
    compare("native and native", by_hand, native(training, batches, device))
    ratio, whole = compare("native and shims ", by_hand, with_shims(training, batches))
    # With next to nothing to compute, the difference is what the calls themselves cost.
    small, batches = make_training(4), [torch.randn(1, 4)]
    taken = pairs(native(small, batches, device), with_shims(small, batches), 20 * PAIRS)
    calls = statistics.median(b - a for a, b in taken)
    print(f"the calls alone: {calls * 1e6:.0f} µs a step, {calls / whole:.3%} of the step above")
    print(f"shims over native: {(ratio - 1) * 100:+.2f} % (limit +1 %)")
    dist.destroy_process_group()
    return 0 if ratio <= LIMIT else 1


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    sys.exit(main())
