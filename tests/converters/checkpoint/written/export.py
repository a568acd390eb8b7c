"""Writes one of the `.pt2` files beside this one: `python export.py`, with any torch from 2.1 on.

Each holds the same module, as that torch exports and arranges it; those in `views` one of views.
"""

from pathlib import Path

import torch
from torch import nn


class Net(nn.Module):
    """A layer under two names, a buffer that is kept and one that is not, two element types."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 4)
        self.tied = self.fc
        self.gain = nn.Parameter(torch.arange(4.0).to(torch.bfloat16))
        self.register_buffer("shift", torch.arange(4.0) + 8)
        self.register_buffer("kept_nowhere", torch.ones(4), persistent=False)

    def forward(self, x):
        y = self.norm(self.conv(x)).mean((2, 3))
        return self.tied(self.fc(y) * self.kept_nowhere) * self.gain + self.shift


class Views(nn.Module):
    """Tensors that are parts of one storage, none of them the whole; one is alone in a larger one."""

    def __init__(self):
        super().__init__()
        whole = torch.arange(60.0).reshape(10, 6)
        self.rows = nn.Parameter(whole[1:6])
        self.register_buffer("later", whole[3:9])
        self.register_buffer("column", whole[:, 2])
        self.register_buffer("turned", whole[2:8, ::2].t())
        self.alone = nn.Parameter(torch.arange(20.0).reshape(5, 4)[2:, 1:3])

    def forward(self, x):
        return x + sum(
            tensor.sum() for tensor in (self.rows, self.later, self.column, self.turned, self.alone)
        )


def main():
    net = Net().eval()
    with torch.no_grad():
        for layer in (net.conv, net.norm, net.fc):
            for number, value in enumerate(layer.parameters()):
                value.copy_(torch.arange(value.numel()).reshape(value.shape) / 8 - number)
    version = torch.__version__.partition("+")[0]
    exported = torch.export.export(net, (torch.zeros(2, 3, 5, 5),))
    torch.export.save(exported, Path(__file__).with_name(f"torch{version}.pt2"))
    views = torch.export.export(Views(), (torch.zeros(2),))
    torch.export.save(views, Path(__file__).with_name("views") / f"torch{version}.pt2")


if __name__ == "__main__":
    main()
