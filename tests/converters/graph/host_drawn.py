"""Models that draw by Python or numpy while they are trained, for the tests of ports."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional


def mask_of(shape: tuple[int, int], share: float) -> np.ndarray:
    """A mask, made by an amount of code that only sizes of Python's can run."""
    mask = np.zeros(shape, dtype=bool)
    count = int(share * shape[1])
    for row in mask:
        row[np.random.choice(shape[1], count, replace=False)] = True
    return mask


class Augment(nn.Module):
    """Places that are masked, and features, as SpecAugment does."""

    def forward(self, x: Tensor, masked: Tensor) -> Tensor:
        if not self.training:
            return x
        batch, length, width = x.shape
        places = torch.tensor(mask_of((batch, length), 0.5), device=x.device, dtype=torch.bool)
        x[places] = masked.to(x.dtype)
        features = torch.from_numpy(mask_of((batch, width), 0.3))
        return x.masked_fill(features[:, None], 0)


class Speech(nn.Module):
    """An encoder whose input is masked in training, with dropouts and a layer that is left out by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(5, 8)
        self.masked = nn.Parameter(torch.linspace(-1, 1, 8))
        self.augment = Augment()
        self.drop = nn.Dropout(0.2)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.augment(self.embed(x), self.masked))
        for layer in self.layers:
            if not self.training or torch.rand([]) >= 0.1:
                x = x + torch.tanh(layer(x))
        return x


class Masked(nn.Module):
    """The same masks beside a padding that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.speech = Speech()

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        x = self.speech(x)
        if padding is not None:
            x = x * padding[:, :, None]
        return x.cumsum(1)


class Projected(nn.Module):
    """Numbers that go through a layer which evaluation does not call."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.more = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.training:
            shift = torch.tensor(np.random.randn(x.shape[0], 4), dtype=torch.float32)
            x = x + self.more(shift)
        return x


class Inline(nn.Module):
    """A factor for each example that the forward draws itself, and no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.training:
            gain = torch.as_tensor(np.random.uniform(0.5, 2.0, size=(x.shape[0], 1)), dtype=x.dtype)
            x = x * gain
        return x.tanh()


class Chosen(nn.Module):
    """Numbers of Python, as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.training:
            order = [0, 1, 2, 3]
            random.shuffle(order)
            x = x[:, torch.tensor(order)]
        return functional.gelu(x)


class Number(nn.Module):
    """A number that becomes no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        return x * random.gauss(1.0, 0.5) if self.training else x


class AsMany(nn.Module):
    """As many places as a number that is drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.training:
            count = np.random.randint(1, 4)
            x = x.index_fill(1, torch.tensor(np.random.permutation(4)[:count]), 0.0)
        return x


class Always(nn.Module):
    """Noise of numpy's in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) + torch.from_numpy(np.random.randn(4).astype(np.float32))


class Twice(nn.Module):
    """Two draws of one line, beside a tensor of numbers that nobody draws."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x) * torch.tensor([1.0, 2.0, 3.0, 4.0])
        for _ in range(2 if self.training else 0):
            shift = torch.tensor(np.random.randn(4), dtype=torch.float32)
            x = torch.tanh(x + shift)
        return x
