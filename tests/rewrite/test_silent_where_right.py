"""What is right as it stands: host tensors, transforms of the loader, environments, our own edits."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style


def notes(folder: Path, script: str, style: Style = "native") -> list[tuple[str, int]]:
    (folder / "main.py").write_text(textwrap.dedent(script).lstrip())
    (file,) = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1).files
    assert not file.problem
    return [(n.rule, n.line) for n in file.findings if n.rule != "XLA210"]


HOST = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        LINES
        return self.layer(x)


def main(loader):
    model = Net().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "lines",
    [
        "rates = torch.linspace(0, 1, 4).tolist(); x = x * rates[0]",
        "h, w = torch.tensor([x.shape[0], x.shape[1]]).tolist(); x = x * (h / w)",
        "order = torch.arange(len(x)).tolist(); x = x * len(order)",
        "share = torch.tensor(0.5).item(); x = x * share",
    ],
)
def test_numbers_of_tensors_that_the_host_makes(tmp_path: Path, lines: str, style: Style) -> None:
    assert notes(tmp_path, HOST.replace("LINES", lines), style) == []


def test_numbers_of_tensors_of_the_device(tmp_path: Path) -> None:
    rules = {rule for rule, _ in notes(tmp_path, HOST.replace("LINES", "x = x * x.max().item()"))}
    assert rules & {"step", "XLA201"}


AUGMENT = """
import random

import torch
import torchvision.transforms as T


def flip(image):
    if random.random() < 0.5:
        return image.flip(-1)
    return image


class Augment(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.crops = torch.nn.Sequential(T.RandomCrop(8), T.ColorJitter())

    def forward(self, image):
        if random.random() < 0.3:
            image = self.crops(image)
        return flip(image)


class Data(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.transform = transform

    def __getitem__(self, index):
        return self.transform(torch.ones(3, 8, 8) * index)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
        AUGMENTS

    def forward(self, x):
        return self.layer(x)


def main():
    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(Data(transform=Augment()), 4, drop_last=True)
    for x in loader:
        model(x.cuda()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_transforms_of_the_loader_draw_on_the_host(tmp_path: Path) -> None:
    assert notes(tmp_path, AUGMENT.replace("AUGMENTS", "self.size = 8")) == []


def test_the_same_module_in_a_model_draws_in_the_step(tmp_path: Path) -> None:
    found = notes(tmp_path, AUGMENT.replace("AUGMENTS", "self.augment = Augment()"))
    assert "XLA113" in {rule for rule, _ in found}


PLAY = """
MADE
import torch


def play(policy, NAME, turns):
    state, _ = NAME.reset()
    for _ in range(turns):
        with torch.no_grad():
            action = policy(torch.as_tensor(state).cuda()).argmax().item()
        state, reward, done, *_ = NAME.step(action)


def main():
    policy = torch.nn.Linear(4, 2).cuda()
    play(policy, make(), 10)
"""


@pytest.mark.parametrize(
    ("made", "name"),
    [
        ("from gymnasium import make", "world"),
        ("from library import make", "world"),
        ("from library import make", "task"),
        ("from gymnasium import make", "optimizer"),
    ],
)
def test_an_environment_trains_nothing(tmp_path: Path, made: str, name: str) -> None:
    found = notes(tmp_path, PLAY.replace("MADE", made).replace("NAME", name))
    assert "step" not in {rule for rule, _ in found}


def test_the_device_of_a_scaler_that_goes(tmp_path: Path) -> None:
    script = """
        import torch


        def main(loader):
            model = torch.nn.Linear(8, 8).cuda()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            scaler = torch.amp.GradScaler("cuda")
            half = torch.float32
            if len(loader) > 2:
                half = torch.float16
            for x in loader:
                with torch.autocast("cuda", dtype=half):
                    loss = model(x.cuda()).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    """
    assert notes(tmp_path, script) == []
