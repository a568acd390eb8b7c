"""XLA203: averages of the weights that lie on the CPU and fetch every weight at every step."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import copy

    import timm.utils
    import torch
    from timm.utils import ModelEma, ModelEmaV2, ModelEmaV3
    from timm.utils.model_ema import ModelEmaV2 as Average


    class Own:
        def __init__(self, model, decay, device=None):
            self.module = copy.deepcopy(model)
            self.decay = decay
            self.device = device
            if device is not None:
                self.module.to(device=device)

        @torch.no_grad()
        def update(self, model):
            for mine, weight in zip(self.module.parameters(), model.parameters()):
                {inside}


    def train(loader, args):
        model = torch.nn.Linear(3, 3).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average = {made}
        for x, y in loader:
            x, y = x.cuda(), y.cuda()
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            average.update(model)


    train(make_loader(), options())
"""
PLAIN = "mine.mul_(0.9).add_(weight, alpha=0.1)"


def script(made: str, inside: str = PLAIN) -> bytes:
    return dedent(SCRIPT.format(made=made, inside=inside)).lstrip().encode()


@pytest.mark.parametrize(
    "made",
    [
        'ModelEma(model, 0.99, "cpu")',
        'ModelEma(model, device="cpu", resume="")',
        'ModelEmaV2(model, device=torch.device("cpu"))',
        'ModelEmaV3(model, device="cpu")',
        'timm.utils.ModelEmaV2(model, device="cpu" if args.on_cpu else None)',
        'Average(model, device="cpu")',
    ],
)
def test_averages_of_timm(made: str) -> None:
    (hit,) = check_source(parse(script(made), Path("train.py")), Config(select=("XLA203",)))
    assert "for each weight" in hit.message
    done = rewrite_source(parse(script(made), Path("train.py")))
    assert [note.line for note in done.findings if note.rule == "XLA203"] == [hit.line]


@pytest.mark.parametrize(
    "made",
    [
        "ModelEma(model, 0.99)",
        "ModelEma(model, 0.99, device='')",
        "ModelEmaV2(model, device=None)",
        "ModelEmaV3(model, device=torch.device('cuda'))",
        "ModelEmaV2(model, device='cuda')",
        "Own(model, 0.9)",
    ],
)
def test_averages_on_the_device(made: str) -> None:
    done = rewrite_source(parse(script(made), Path("train.py")))
    assert not [note for note in done.findings if note.rule == "XLA203"]


@pytest.mark.parametrize(
    "inside",
    [
        "mine.mul_(0.9).add_(weight.cpu(), alpha=0.1)",
        'mine.copy_(0.9 * mine + 0.1 * weight.detach().to("cpu"))',
        'mine.lerp_(weight.data.to(device="cpu"), 0.1)',
        'mine.lerp_(weight.to(torch.device("cpu"), non_blocking=True), 0.1)',
        "mine.lerp_(weight.to(device=self.device), 0.1)",
    ],
)
def test_averages_by_hand(inside: str) -> None:
    source = parse(script('Own(model, 0.9, device="cpu")', inside), Path("train.py"))
    messages = [note.message for note in rewrite_source(source).findings]
    assert ["keep the average on the device" in message for message in messages] == [True]
