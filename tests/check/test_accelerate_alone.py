"""XLA817 and XLA854: the device of Accelerate, and models that it wraps on GPUs only."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.left.codes import code_of
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

TRAINING = """
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.nn.parallel import DistributedDataParallel as DDP


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x)


class Holder(Net):
    def __init__(self):
        super().__init__()
        self.module = torch.nn.Linear(4, 1)


def restored(path, place):
    return torch.load(path, map_location=place)


def saved(accelerator, net, path):
    accelerator.save(net.module.state_dict(), path)


def main(path):
    accelerator = Accelerator()
    set_seed(0)
    device = accelerator.device
    model = MODEL()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    LINE
    for _ in range(4):
        loss = model(torch.ones(2, 4, device=device)).mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
"""


def reported(line: str, model: str = "Net", style: Style | None = None) -> list[str]:
    """Return the codes that the check, or the rewrite in `style`, reports of loading and of the model."""
    script = TRAINING.lstrip().replace("LINE", line).replace("MODEL", model)
    source = parse(script.encode(), Path("train.py"))
    done = rewrite_source(source, options=RewriteOptions(style=style or "native"))
    codes = map(code_of, (*done.findings, *done.hints))
    return sorted({code for code in codes if code in ("XLA817", "XLA854")})


@pytest.mark.parametrize("style", [None, "native", "portable"])
@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("state = torch.load(path, map_location=f'{device}')", "XLA817"),
        ("torch.save(model.module.state_dict(), path)", "XLA854"),
    ],
)
def test_what_accelerate_does_not_give(line: str, code: str, style: Style | None) -> None:
    assert code in reported(line, style=style)


@pytest.mark.parametrize(
    "line",
    [
        "state = torch.load(path, map_location=accelerator.device)",
        "state = torch.load(path, device)",
        "state = torch.load(path, map_location=str(accelerator.device))",
        "where = torch.device(device); state = torch.load(path, map_location=where)",
        "state = restored(path, device)",
        "state = restored(path, f'{device}')",
        "state = torch.load(path, map_location='{}'.format(device))",
        "state = torch.load(path, map_location={'cuda:0': str(device)})",
        "state = torch.load(path, map_location=device.type)",
    ],
)
def test_the_device_of_accelerate(line: str) -> None:
    assert "XLA817" in reported(line)


@pytest.mark.parametrize(
    "line",
    [
        "inner = model.module",
        "out = model.module(torch.ones(2, 4))",
        "saved(accelerator, model, path)",
        "inner = model.module if accelerator.num_processes > 1 else model",
        "print(len(list(model.module.parameters())))",
    ],
)
def test_the_module_of_a_prepared_model(line: str) -> None:
    assert "XLA854" in reported(line)


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("inner = accelerator.unwrap_model(model)", "Net"),
        ("inner = model.module if hasattr(model, 'module') else model", "Net"),
        ("inner = model.module", "Holder"),
        ("model = DDP(model); inner = model.module", "Net"),
        ("state = torch.load(path, map_location='cpu')", "Net"),
        ("state = restored(path, 'cpu')", "Net"),
    ],
)
def test_what_works_on_a_tpu(line: str, model: str) -> None:
    assert reported(line, model) == []
