"""Modules that are saved and loaded whole: torch.load puts them on the CPU, where the inputs are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.file import rewrite_file

SCRIPT = """\
import torch
from torch import nn


def evaluate(model, loader):
    return sum(model(x.cuda()).sum().item() for x in loader)


def moved(model):
    model.cuda()
    return model


def main(loader):
    model = nn.Linear(3, 3).cuda()
    loaded = {load}
    {use}


main([])
"""
GIVEN = """\
import torch
from torch import nn


class Net(nn.Module):
    pass


def save(model):
    torch.save(model, "model.pt")


net = Net()
net.cuda()
save(net)
"""
SAID = "is a module, loaded to the CPU: move it to 'xla'"


def said(tmp_path: Path, load: str, use: str) -> list[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(load=load, use=use))
    return [note.message for note in rewrite_file(script).findings if note.rule == "map-location"]


@pytest.mark.parametrize(
    ("load", "use"),
    [
        ("torch.load('m.pt')", "print(loaded(torch.ones(1, 3).cuda()))"),
        ("torch.load('m.pt', map_location='cuda:0')", "loaded.eval()"),
        ("torch.load('m.pt')['model'].float()", "loaded.train()"),
        (
            "model; loaded = torch.load('m.pt')",
            "print(evaluate(loaded, loader))\n    loaded.eval()",
        ),
    ],
)
def test_one_that_is_used_and_not_moved_is_told(tmp_path: Path, load: str, use: str) -> None:
    assert said(tmp_path, load, use) == [f"`loaded` {SAID}"]


@pytest.mark.parametrize(
    ("load", "use"),
    [
        ("torch.load('m.pt')", "model.load_state_dict(loaded)"),
        (
            "torch.load('m.pt')",
            "model.load_state_dict(loaded['model'])\n    print(loaded['epoch'])",
        ),
        ("torch.load('m.pt')", "loaded.cuda()\n    loaded.eval()"),
        ("torch.load('m.pt').cuda()", "loaded.eval()"),
        ("torch.load('m.pt')", "loaded = moved(loaded)\n    loaded.eval()"),
        ("torch.load('m.pt', map_location='cpu')", "loaded.eval()"),
    ],
)
def test_others_are_not(tmp_path: Path, load: str, use: str) -> None:
    assert said(tmp_path, load, use) == []


def test_one_that_another_function_is_given_is_known_as_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GIVEN)
    (found,) = rewrite_file(script).findings
    assert found.message.startswith("saves the module `model` itself")


METHOD = """\
import torch


class Net(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = torch.nn.Linear(width, width)

    def from_file(path):
        content = torch.load(path)
        net = Net(content["layer.weight"].shape[0])
        net.load_state_dict(content)
        return net


print(Net.from_file("net.pt").cuda())
"""


def test_what_a_file_holds_is_not_what_names_the_file(tmp_path: Path) -> None:
    """`path`, the first parameter of a function in a class, counts as an instance of the class."""
    script = tmp_path / "script.py"
    script.write_text(METHOD)
    assert not [note for note in rewrite_file(script).findings if note.message.endswith(SAID)]
