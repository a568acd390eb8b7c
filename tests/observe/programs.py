"""A script that does on purpose what the report has to show; each line that matters is marked."""

from __future__ import annotations

SCRIPT = """
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend
from torch import nn


def worker(index):
    dist.init_process_group("xla", init_method="xla://")
    torch_xla.manual_seed(0)
    device = torch_xla.device()
    model = nn.Linear(8, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        rows = 8 if step < 5 else 5
        inputs = torch.randn(rows, 8).to(device)
        with torch_xla.step():  # step
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            if step == 3:
                print("inside", loss.item())  # read
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            optimizer.step()
    print(torch.nonzero(inputs[0] > 0).shape)  # fallback


if __name__ == "__main__":
    torch_xla.launch(worker)
"""


def line_marked(mark: str) -> int:
    """Return the number, from 1, of the line that ends with the comment `mark`."""
    lines = SCRIPT.splitlines()
    (found,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}")]
    return found
