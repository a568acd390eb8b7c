"""What `prove`, `run` and `fit` of a small script take, held against the plain run of its two ranks.

    python benchmarks/prove_time.py [SCRIPT] [--out TIMES.json] [--only prove,run,fit]

Without a script, a transformer of 0.1 M parameters with mixed precision, clipping and an evaluation (below).
Of each command the wall time and the CPU time of all its processes, and both as ratios to the plain run of
the same minute: on a machine that is not quiet the CPU time says more. Exit code 1 if, in CPU time, `prove`
takes more than three times the plain run and two cores for 30 s.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from history import append

RANKS = 2
# Of the plain run, and seconds of wall time beside it: all cores of a small machine are busy in them.
TIMES, BESIDE, CORES = 3.0, 30.0, 2

SCRIPT = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Classifier(nn.Module):
    def __init__(self, width=64, classes=10):
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        rows = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.blocks(rows).mean(1))


def loader_of(count, seed, shuffle):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 32, 32, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data, shuffle=shuffle)
    return DataLoader(data, 16, sampler=sampler, pin_memory=True, drop_last=True), sampler


def main():
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)
    device = torch.device("cuda", local_rank)
    dist.init_process_group("nccl")
    torch.manual_seed(1)
    train, sampler = loader_of(256, 0, True)
    test, _ = loader_of(64, 1, False)
    model = DistributedDataParallel(Classifier().to(device), device_ids=[local_rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = GradScaler()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        model.train()
        for step, (images, labels) in enumerate(train):
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            with autocast():
                loss = nn.functional.cross_entropy(model(images), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            if step % 4 == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch} step {step}: loss {loss.item():.4f}")
        model.eval()
        right = torch.zeros(1, device=device)
        with torch.no_grad():
            for images, labels in test:
                right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
        dist.all_reduce(right)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""


def commands(script: Path) -> dict[str, list[str]]:
    """What is timed, by name; the plain run first."""
    python, migrate = sys.executable, [sys.executable, "-m", "migrate"]
    ranks = ["--backend", "cpu", "--ranks", str(RANKS)]
    return {
        "plain": [python, "-P", "-m", "shims", *ranks, str(script)],
        "prove": [*migrate, "prove", str(script), "--replicas", str(RANKS)],
        "run": [*migrate, "run", "--rewrite", str(script), "--replicas", str(RANKS)],
        "fit": [*migrate, "fit", str(script), "--tpu", "v5e-8", "--torchrun"],
    }


def timed(command: list[str], folder: Path) -> dict[str, Any]:
    """The exit code, wall time and CPU time of a command in an empty cache, in `folder`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder / "cache")}
    before, began = _cpu(), time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, check=False
    )
    wall = time.monotonic() - began
    return {"exit code": done.returncode, "wall": round(wall, 1), "cpu": round(_cpu() - before, 1)}


def _cpu() -> float:
    """Of all processes that have ended and were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Time all commands, print a line each, and write them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("script", nargs="?", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="prove,run,fit")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="migrate-prove-time-") as place:
        folder = Path(place)
        script = options.script.resolve() if options.script else folder / "train.py"
        if options.script is None:
            script.write_text(SCRIPT)
        rows: dict[str, Any] = {"load at the start": os.getloadavg()[0], "cores": os.cpu_count()}
        chosen = {"plain", *options.only.split(",")}
        for name, command in commands(script).items():
            if name not in chosen:
                continue
            row = timed(command, folder)
            plain = rows.get("plain", row)
            for what in ("wall", "cpu"):
                row[f"{what} ratio"] = round(row[what] / plain[what], 1)
            rows[name] = row
            if options.script is None:
                case = {"command of a small script": name, "wall, s": row["wall"]}
                append("prove-time", case | {"CPU, s": row["cpu"], "CPU ratio": row["cpu ratio"]})
            print(f"{name:6}", *(f"{key} {value}" for key, value in row.items()), sep="  ")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")
    limit = TIMES * rows["plain"]["cpu"] + CORES * BESIDE
    return int("prove" in rows and rows["prove"]["cpu"] > limit)


if __name__ == "__main__":
    raise SystemExit(main())
