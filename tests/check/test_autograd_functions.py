"""Steps are followed into the two passes of a torch.autograd.Function that they apply."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths

FUNCTION = """
import torch
from torch.autograd import Function


class Shake(Function):
    @staticmethod
    def forward(ctx, x, p, training=True):
        ctx.save_for_backward(x)
        ctx.p = p
        scale = x.abs().max().item()
        if ctx.p > 0.5 and training:
            return x
        return x / scale

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        if grad is None or not ctx.needs_input_grad[0]:
            return None, None, None
        low = x.min().item()
        high = grad.max().item()
        return grad * (high - low) * ctx.p, None, None
"""
FUNCTION_LINES = (10, 20, 21)
NET = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)

    def forward(self, x):
        return {applied}(self.fc(x), 0.5)
"""
TRAIN = """
def train(loader):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = (model(x.cuda()) - y.cuda()).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def found(folder: Path, **files: str) -> list[tuple[str, int, str]]:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(inspect.cleandoc(text) + "\n")
    checked = check_paths([folder], Config())
    return [(one.path.name, one.line, one.code) for one in checked.findings]


@pytest.mark.parametrize("applied", ["Shake.apply", "shake"])
def test_reads_in_both_passes_are_found(tmp_path: Path, applied: str) -> None:
    text = FUNCTION + "\n\nshake = Shake.apply\n\n" + NET.format(applied=applied) + TRAIN
    reads = found(tmp_path, train=text)
    if applied == "Shake.apply":
        assert reads == [("train.py", line, "XLA201") for line in FUNCTION_LINES]
    else:  # what `shake(x)` passes is not followed within a file
        assert reads == [("train.py", line, "XLA201") for line in (20, 21)]


@pytest.mark.parametrize("applied", ["functions.Shake.apply", "shake"])
def test_reads_in_another_file_are_found(tmp_path: Path, applied: str) -> None:
    net = "import torch\nimport functions\n\nshake = functions.Shake.apply\n\n"
    net += NET.format(applied=applied)
    train = "import torch\nfrom net import Net\n" + TRAIN
    reads = found(tmp_path, functions=FUNCTION, net=net, train=train)
    assert reads == [("functions.py", line, "XLA201") for line in FUNCTION_LINES]


def test_a_backward_pass_that_differentiates_makes_no_training_of_a_forward(tmp_path: Path) -> None:
    function = """
        import torch


        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, run, x):
                ctx.run = run
                return run(x)

            @staticmethod
            def backward(ctx, grad):
                torch.autograd.backward(ctx.run(grad))
                return None, grad


        def evaluate(loader, net, meter):
            with torch.no_grad():
                for x in loader:
                    meter.update(Again.apply(net, x.cuda()).item())
    """
    assert not found(tmp_path, function=function)


def test_what_is_kept_of_the_host_is_read_without_a_wait(tmp_path: Path) -> None:
    function = FUNCTION.replace("(x)\n        ctx.p", "(torch.tensor([1, 2]))\n        ctx.p")
    function = function.replace("x.abs().max().item()", "2").replace("high = grad", "high = x")
    assert not found(tmp_path, train=function + "\n\n" + NET.format(applied="Shake.apply") + TRAIN)
