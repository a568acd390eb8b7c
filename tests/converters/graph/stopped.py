"""Models of the tests that stop gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Quantizer(nn.Module):
    """The nearest codes of a book, passed through to the encoder's gradient."""

    def __init__(self, codes: int, dim: int) -> None:
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)

    def forward(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        distances = (z.unsqueeze(-2) - self.codebook.weight).pow(2).sum(-1)
        chosen = distances.argmin(-1)
        q = self.codebook(chosen)
        loss = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(q.detach(), z)
        q = z + (q - z).detach()
        return q, loss, chosen


class Residual(nn.Module):
    """A residual vector quantizer: each stage quantizes what the stages before it left over."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Linear(6, 5)
        self.stages = nn.ModuleList([Quantizer(7, 5) for _ in range(3)])
        self.dec = nn.Linear(5, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = self.enc(x)
        total: Any = 0.0
        losses = []
        for stage in self.stages:
            q, loss, _ = stage(residual)
            residual = residual - q.detach()
            total = total + q
            losses.append(loss)
        return self.dec(total), torch.stack(losses).mean()


class Images(nn.Module):
    """A straight-through estimator between convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.enc = nn.Conv2d(3, 5, 3, padding=1)
        self.dec = nn.Conv2d(5, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.enc(x)
        q = z + (torch.round(z) - z).detach()
        return self.dec(q)


class Teacher(nn.Module):
    """A student's loss against a teacher that is not trained, in one of several ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.stem = nn.Linear(6, 5)
        self.student, self.teacher = nn.Linear(5, 4), nn.Linear(5, 4)
        self.frozen = NoGradient(self.teacher)

    @torch.no_grad()
    def decorated(self, h: torch.Tensor) -> torch.Tensor:
        return self.teacher(h).tanh()

    @torch.inference_mode()
    def inferred(self, h: torch.Tensor) -> torch.Tensor:
        return self.teacher(h * 1.0).tanh()  # a module is given a tensor that is made in this mode

    def target(self, h: torch.Tensor) -> torch.Tensor:
        if self.way == "no_grad":
            with torch.no_grad():
                return self.teacher(h).tanh()
        if self.way == "decorated":
            return self.decorated(h)
        if self.way == "inference_mode":
            return self.inferred(h)
        if self.way == "set_grad_enabled":
            before = torch.is_grad_enabled()
            torch.set_grad_enabled(False)
            t = self.teacher(h).tanh()
            torch.set_grad_enabled(before)
            return t
        if self.way == "detach":
            return self.teacher(h).tanh().detach()
        if self.way == "detach_":
            t = self.teacher(h).tanh()
            t.detach_()
            return t
        if self.way == "data":
            return self.teacher(h).tanh().data
        if self.way == "module":
            return self.frozen(h)
        if self.way == "parameter":
            return (h.detach() @ self.teacher.weight.data.T + self.teacher.bias.detach()).tanh()
        if self.way == "average":
            with torch.no_grad():
                weight = 0.9 * self.teacher.weight + 0.1 * self.student.weight
            return functional.linear(h.detach(), weight).tanh()
        if self.way == "requires_grad_":
            t = self.teacher(h).detach().requires_grad_(False)
            return t.tanh()
        assert self.way == "enabled within"
        with torch.no_grad():
            t = self.teacher(h).tanh()
            with torch.enable_grad():
                return t * self.student(h).sigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        return (self.student(h) - self.target(h)).pow(2).mean(-1)


class NoGradient(nn.Module):
    """A module whose forward is without gradients."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    @torch.no_grad()
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self.inner(h).tanh()


class Filled(nn.Module):
    """A region without gradients that changes in place what is read outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(x)
        seen = torch.zeros(5, 2)
        with torch.no_grad():
            seen[:, 0] = h.mean(0)
            seen[:, 1] = h.amax(0)
        return h * seen[:, 0] + seen.sum()


class Silent(nn.Module):
    """Tensors that have no gradient anyway, detached and computed without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)
        self.register_buffer("scale", torch.full((5,), 0.5))

    @torch.no_grad()
    def table(self, length: int, like: torch.Tensor) -> torch.Tensor:
        return (torch.arange(length, dtype=like.dtype) / 10).cos() * self.scale

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.fc(x)
        with torch.no_grad():
            best = h.argmax(-1)
            shape = torch.zeros_like(h)
        large = h.detach() > 0
        return torch.where(large, h, shape) * self.table(5, h), best.detach()


class Gradless(nn.Module):
    """A model that is called for its values only."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 5)

    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x).relu()


class Turns(nn.Module):
    """Layers in a loop, each of which is given what the layers before it gave, without their gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 5)
        self.layers = nn.ModuleList([nn.Linear(5, 5) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.stem(x)
        for layer in self.layers:
            h = h + layer(h.detach())
        return h


class Padded(nn.Module):
    """Rows of padding of a layer, and of a table of its own: torch gives neither a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(7, 6, padding_idx=2)
        self.table = nn.Parameter(torch.randn(7, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids = torch.tensor([1, 2, 4])
        return x * self.layer(ids) + nn.functional.embedding(ids, self.table, padding_idx=1)
