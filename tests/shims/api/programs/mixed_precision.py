"""A few steps as the portable style writes them: float16 with a scaler, clipping, DDP."""

import json
import os
import sys
from pathlib import Path

import torch
from torch import nn

import shims


def main(rank: int, folder: str) -> None:
    """Train, and write what this rank saw."""
    shims.init_distributed()
    torch.manual_seed(0)
    model = shims.ddp(shims.to_device(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = shims.grad_scaler(init_scale=1024.0)
    data = torch.Generator().manual_seed(1 + rank)
    losses, dtypes, scaled = [], set(), []
    for _ in range(6):
        x = torch.randn(32, 8, generator=data).to(shims.device())
        y = torch.randint(0, 4, (32,), generator=data).to(shims.device())
        optimizer.zero_grad()
        with shims.autocast(dtype=torch.float16):
            output = model(x)
            loss = nn.functional.cross_entropy(output.float(), y)
        dtypes.add(str(output.dtype))
        scaled.append((scaler.scale(loss) / loss).item())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        shims.clip_grad_norm(model, 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    total = torch.ones(3, device=shims.device())
    shims.all_reduce(total)
    mean = torch.full((1,), float(rank), device=shims.device())
    shims.all_reduce(mean, "mean")
    shims.barrier()
    seen = {
        "losses": losses,
        "dtypes": sorted(dtypes),
        "scale": scaled,
        "total": total.tolist(),
        "mean": mean.tolist(),
        "weights": [parameter.sum().item() for parameter in model.parameters()],
        "device": shims.device().type,
        "group": shims.backend().group_backend,
    }
    (Path(folder) / f"rank{os.environ['RANK']}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    shims.launch(main, (sys.argv[1],))
