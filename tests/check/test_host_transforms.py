"""XLA113: transforms of libraries that draw on the host, called for what is on the device."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.syntax.source import parse

SCRIPT = """
    import timm
    import torch
    import torchvision.transforms as T
    from timm.data import Mixup
    from torchvision.transforms import v2


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 4)
            self.change = {made}

        def forward(self, x):
            return self.net({inside})


    def train(model, loader, optimizer):
        change = {made}
        for x, y in loader:
            {before}
            x, y = x.cuda(), y.cuda()
            {after}
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


    net = Net().cuda()
    train(net, make_loader(), torch.optim.SGD(net.parameters(), lr=0.1))
"""


def lines(made: str, inside: str = "x", before: str = "pass", after: str = "pass") -> list[int]:
    text = SCRIPT.format(made=made, inside=inside, before=before, after=after)
    source = parse(dedent(text).lstrip().encode(), Path("train.py"))
    return [finding.line for finding in check_source(source, Config(select=("XLA113",)))]


DRAWING = [
    "Mixup(mixup_alpha=0.8, cutmix_alpha=1.0)",
    "timm.data.mixup.Mixup(0.8, 1.0)",
    "v2.CutMix(num_classes=10)",
    "v2.RandomChoice([v2.CutMix(num_classes=10), v2.MixUp(num_classes=10)])",
    "T.RandomResizedCrop(32)",
    "T.Compose([T.RandomCrop(32), T.Normalize(0, 1)])",
    "torch.nn.Sequential(T.ColorJitter(0.1))",
]


@pytest.mark.parametrize("made", DRAWING)
def test_a_batch_on_the_device_is_cut_anew_at_each_step(made: str) -> None:
    """Nothing was said of it: a compilation at every step, and replicas with other graphs."""
    assert lines(made, inside="self.change(x)", after="x, y = change(x, y)") == [15, 23]


@pytest.mark.parametrize("made", DRAWING)
def test_a_batch_of_the_host_may_be_cut(made: str) -> None:
    assert lines(made, before="x, y = change(x, y)") == []


@pytest.mark.parametrize(
    "made",
    [
        "Mixup(mixup_alpha=0.8)",
        "Mixup(0.8, 0.0)",
        "v2.MixUp(num_classes=10)",
        "T.Compose([T.Resize(32), T.Normalize(0, 1)])",
    ],
)
def test_what_draws_only_a_factor_is_left_alone(made: str) -> None:
    assert lines(made, inside="self.change(x)", after="x, y = change(x, y)") == []


ENGINE = """
    import torch
    from typing import Optional
    from timm.data import Mixup


    def train_one_epoch(model, loader, optimizer, device, {parameter}):
        for samples, targets in loader:
            samples = samples.to(device, non_blocking=True)
            targets = targets.to(device, non_blocking=True)
            if blend is not None:
                samples, targets = blend(samples, targets)
            loss = torch.nn.functional.cross_entropy(model(samples), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
MAIN = """
    import torch
    from engine import train_one_epoch
    from timm.data import Mixup


    def main(args, loader):
        device = torch.device("cuda")
        model = torch.nn.Linear(4, 4).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        blend = None
        if args.mixup > 0:
            blend = Mixup(mixup_alpha=args.mixup, cutmix_alpha=args.cutmix)
        train_one_epoch(model, loader, optimizer, device, blend)
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("parameter", ["blend", "blend: Optional[Mixup] = None"])
def test_across_files(tmp_path: Path, parameter: str, style: Style) -> None:
    (tmp_path / "engine.py").write_text(dedent(ENGINE.format(parameter=parameter)).lstrip())
    (tmp_path / "main.py").write_text(dedent(MAIN).lstrip())
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    (engine,) = [file for file in done.files if file.name.name == "engine.py"]
    assert ("XLA113", 11) in [(note.rule, note.line) for note in engine.findings]
