"""Models whose ports showed source that nobody would keep."""

from __future__ import annotations

import torch
from torch import nn


class Heads(nn.Module):
    """Queries, keys and values, taken apart in the ways that there are."""

    def __init__(self, dim: int = 12, heads: int = 2, way: str = "view") -> None:
        super().__init__()
        self.heads, self.way = heads, way
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        if self.way == "view":
            q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        elif self.way == "list":
            q, k, v = [
                y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(x).chunk(3, -1)
            ]
        elif self.way == "lines":
            q, k, v = self.qkv(x).split(c, dim=2)
            q = q.view(b, t, self.heads, -1).transpose(1, 2)
            k = k.view(b, t, self.heads, -1).transpose(1, 2)
            v = v.view(b, t, self.heads, -1).transpose(1, 2)
        else:
            q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).unbind(2)
            q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        w = (q @ k.transpose(-2, -1)).softmax(-1)
        return self.out((w @ v).transpose(1, 2).reshape(b, t, c))


class Film(nn.Module):
    """Scales and shifts the channels of an image."""

    def __init__(self, width: int = 6, emb: int = 5) -> None:
        super().__init__()
        self.inward, self.outward = nn.Conv2d(3, width, 3), nn.Conv2d(width, 4, 1)
        self.norm = nn.GroupNorm(2, width)
        self.emb = nn.Linear(emb, 2 * width)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        h = self.inward(x)
        scale, shift = self.emb(t)[:, :, None, None].chunk(2, dim=1)
        h = self.norm(h) * (1 + scale) + shift  # FiLM
        h = h * h.mean((2, 3), keepdim=True)  # [batch, channels, 1, 1]
        return self.outward(torch.relu(h))


class FilmBeside(nn.Module):
    """One number for each channel, for an image in Flax's order and beside one in torch's order."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.emb, self.pooled = nn.Linear(5, 8), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.inward(x).chunk(2, dim=1)
        h = a * torch.sigmoid(b)
        gate = self.pooled(h.mean((2, 3))).view(len(h), 4, 1, 1)
        h = self.outward(h * gate.sigmoid())
        scale, shift = self.emb(t)[:, :, None, None].chunk(2, dim=1)
        return h * (1 + scale) + shift, x[:, :1] * shift


class Cross(nn.Module):
    """Heads folded into the batch, of what is given and of something else."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)

    def folded(self, x: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        return x.view(b, n, self.heads, -1).transpose(1, 2).reshape(b * self.heads, n, -1)

    def forward(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        q = self.q(x)
        k, v = self.kv(context).chunk(2, dim=-1)
        q, k, v = map(self.folded, (q, k, v))
        out = (q @ k.transpose(1, 2)).softmax(-1) @ v
        n, d = out.shape[1:]
        return out.view(-1, self.heads, n, d).transpose(1, 2).reshape(x.shape)


class Latents(nn.Module):
    def __init__(self, latents: int = 5, dim: int = 8) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, dim))
        self.cross, self.own = Cross(dim), Cross(dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.latents.expand(x.shape[0], -1, -1)
        h = h + self.cross(h, x)
        return h + self.own(h, h)


class Cell(nn.Module):
    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc = nn.Linear(dim + hidden, 2 * hidden)

    def forward(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        h, c = state
        gate, new = self.fc(torch.cat([x, h], -1)).chunk(2, -1)
        c = c + torch.sigmoid(gate) * torch.tanh(new)
        return torch.tanh(c), c


class Recurrent(nn.Module):
    """Two cells, turn by turn; of the first nobody reads the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList([Cell(3, 5), Cell(5, 4)])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for cell in self.cells:
            h = c = x.new_zeros(x.shape[0], cell.fc.out_features // 2)
            outs = []
            for i in range(3):
                h, c = cell(x[:, i], (h, c))
                outs.append(h)
            x = torch.stack(outs, 1)
        return x[:, -1], c


class Dilated(nn.Module):
    """Layers of one class, with dilations of 1 and of more."""

    class Layer(nn.Module):
        def __init__(self, width: int, dilation: int) -> None:
            super().__init__()
            self.pad = 2 * dilation
            self.conv = nn.Conv1d(width, width, 3, dilation=dilation)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.conv(nn.functional.pad(x, (self.pad, 0))))

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.Layer(width, 2**i) for i in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class Angles(nn.Module):
    """Gives what it computes where it returns it, and turns a weight that lies the other way round."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, dim, bias=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x @ self.fc.weight.t()
        return x.cos() * 2, x.sin()


class Pairs(nn.Module):
    """Layers that its constructor makes several of on one line."""

    def __init__(self, width: int = 6, inner: int = 9) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.first, self.second = (nn.Linear(width, width) for _ in range(2))
        [self.gate, self.out] = [nn.Linear(width, inner), nn.Linear(inner, 3)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.down(torch.relu(self.up(x)))
        return self.out(torch.sigmoid(self.gate(self.second(self.first(x)))))


class Masked(nn.Module):
    """A mixture of experts that normalizes what each is given over its rows."""

    def __init__(self, dim: int = 6, experts: int = 3) -> None:
        super().__init__()
        self.gate = nn.Linear(dim, experts)
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, nth = torch.where(chosen == i)
            out[rows] += weights[rows, nth, None] * expert(x[rows] - x[rows].mean(0))
        return out


class Said(nn.Module):
    """Scales, then mixes.

    The scale is
        one for each column.
    """

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        # measured once,
        # by hand
        self.register_buffer("scale", torch.ones(width))
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)  # two of a kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, width), of any length.

        Gives as many rows.
        """
        return self.b(self.a(x * self.scale).tanh())


class Turned(nn.Module):
    """Turns pairs of columns."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("angle", torch.rand(size // 2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x / self.size
        a, b = x[..., 0::2], x[..., 1::2]
        cos, sin = self.angle.cos(), self.angle.sin()
        return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class TurnedTwice(nn.Module):
    """Turns queries of six heads and keys of two by one module."""

    def __init__(self, width: int = 12, heads: int = 6, fewer: int = 2, size: int = 16) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(width, heads * size), nn.Linear(width, fewer * size)
        self.heads, self.fewer, self.size = heads, fewer, size
        self.turned = Turned(size)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q = self.q(x).view(x.shape[0], -1, self.heads, self.size).transpose(1, 2)
        k = self.k(x).view(x.shape[0], -1, self.fewer, self.size).transpose(1, 2)
        return self.turned(q), self.turned(k)


class Table(nn.Module):
    """Angles of pairs of columns, by position."""

    def __init__(self, width: int, longest: int, base: float, share: float) -> None:
        super().__init__()
        self.turned = int(width * share) // 2 * 2
        inverse = base ** (-torch.arange(0, self.turned, 2).float() / self.turned)
        angles = torch.outer(torch.arange(longest).float(), inverse)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("both", torch.cat((angles, angles), dim=-1).sin(), persistent=False)
        self.register_buffer("other", angles.roll(1, 0).cos(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = x.shape[1]
        a = x[..., : self.turned // 2] * self.cos[:n] + self.other[:n]
        return torch.cat((a, x[..., : self.turned] * self.both[:n]), dim=-1)


class Tabled(nn.Module):
    """Has a table that its sizes give, and one that the compiler cannot follow."""

    def __init__(self, width: int = 12, longest: int = 40, base: float = 500.0) -> None:
        super().__init__()
        self.fc, self.longest, self.base = nn.Linear(width, width), longest, base
        self.table = Table(width, longest, base, 0.75)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(self.fc(x))


class TwoOfTwo(nn.Module):
    """Takes keys and values of two heads apart: of two numbers of its line that are 2, one is a size."""

    def __init__(self, width: int = 12, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.both = nn.Linear(width, 2 * heads * 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        k, v = self.both(x).view(x.shape[0], x.shape[1], 2, self.heads, 5).unbind(2)
        return k.sin() * v
