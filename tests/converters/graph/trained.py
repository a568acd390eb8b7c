"""Models that compute otherwise in training, for the tests of ports."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Classifier(nn.Module):
    """A small CNN with batch normalization and dropout in Sequentials."""

    def __init__(self, rate: float = 0.25) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout2d(rate),
            nn.Conv2d(6, 7, 3, stride=2),
            nn.BatchNorm2d(7, momentum=None),
            nn.ReLU(),
        )
        self.norm = nn.BatchNorm1d(7, eps=1e-3, momentum=0.3, affine=False)
        self.head = nn.Sequential(nn.Dropout(0.5), nn.Linear(7, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.features(x)
        x = self.norm(x.mean(dim=(2, 3)))
        return self.head(x)


def drop_path(x: Tensor, drop_prob: float, training: bool) -> Tensor:
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    random_tensor = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep_prob)
    random_tensor.div_(keep_prob)
    return x * random_tensor


class DropPath(nn.Module):
    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x: Tensor) -> Tensor:
        return drop_path(x, self.drop_prob, self.training)


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, rate: float) -> None:
        super().__init__()
        self.heads = heads
        self.rate = rate
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        rate = self.rate if self.training else 0.0
        x = functional.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        x = x.transpose(1, 2).reshape(batch, length, dim)
        return self.proj_drop(self.proj(x))


class Block(nn.Module):
    def __init__(self, dim: int, drop: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, 2, 0.15)
        self.drop_path = DropPath(drop) if drop else nn.Identity()
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class Vision(nn.Module):
    """A vision transformer with stochastic depth, which grows from 0 with the layer."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.pos_drop = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block(8, 0.2 * at / (depth - 1)) for at in range(depth))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = self.pos_drop(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


class Encoder(nn.Module):
    """torch's own transformer encoder."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def eager_attention(q: Tensor, k: Tensor, v: Tensor, rate: float, training: bool) -> Tensor:
    weights = torch.softmax(q @ k.transpose(-2, -1) / 2.0, dim=-1)
    weights = functional.dropout(weights, rate, training)
    return weights @ v


class Functional(nn.Module):
    """Dropouts as functions, one of them in a function; two of one tensor that differ."""

    def __init__(self, rate: float = 0.3) -> None:
        super().__init__()
        self.rate = rate
        self.q, self.k, self.v = nn.Linear(6, 4), nn.Linear(6, 4), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = eager_attention(self.q(x), self.k(x), self.v(x), self.rate, self.training)
        first = functional.dropout(x, self.rate, self.training)
        second = functional.dropout(x, self.rate, self.training)
        return first * second


class Recurrent(nn.Module):
    """An LSTM with dropout between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.4, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.bn(self.conv(x)))


class Frozen(nn.Module):
    """A backbone that is not trained, whose normalizations stay as they are, and a head that is."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.backbone = nn.Sequential(Residual(4), Residual(4))
        self.neck = nn.Sequential(Residual(4), Residual(4))
        self.head = nn.Linear(4, 2)
        for parameter in self.backbone.parameters():
            parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> Frozen:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.neck(self.backbone(self.stem(x)))
        return self.head(x.mean(dim=(2, 3)))


class Labeled(nn.Module):
    """A model that computes its loss from labels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(6, 11)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        logits = self.head(self.drop(self.embed(ids)))
        if labels is None:
            return {"logits": logits}
        loss = functional.cross_entropy(logits.view(-1, 11), labels.view(-1), ignore_index=-100)
        return {"loss": loss, "logits": logits}


class Clamped(nn.Module):
    """Values that are clamped in training where one is not finite, and checks of that."""

    def __init__(self, mask: float = 0.0) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tensor([0.0, 0.0, mask, 0.0]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.fc(x)) + self.mask
        if self.training and not torch.isfinite(x).all():
            x = torch.clamp(x, -1e4, 1e4)
        if (torch.isinf(x) | x.isnan()).any().item():
            x = x.nan_to_num()
        if (~x.isfinite()).any():
            raise ValueError("not finite")
        return x.tanh()


class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(4, 4), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc(x)).relu()


class Replaced(nn.Module):
    """A layer that is replaced by another one at the first call."""

    def __init__(self) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Sequential(nn.Linear(4, 4))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.inner, nn.Sequential):
            self.inner = Dropped().train(self.training)
        return self.head(self.inner(x))


class LayerDrop(nn.Module):
    """Layers that are left out at random."""

    def __init__(self, layerdrop: float, python: bool = False) -> None:
        super().__init__()
        self.layerdrop, self.python = layerdrop, python
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            drawn = random.uniform(0, 1) if self.python else torch.rand([])
            if self.training and drawn < self.layerdrop:
                continue
            x = self.dropout(torch.tanh(layer(x)))
        return x


class Stacks(nn.Module):
    """Two stacks of layers with several results, some left out by a comparison the other way round."""

    def __init__(self, layerdrop: float = 0.2) -> None:
        super().__init__()
        self.layerdrop = layerdrop
        self.down = nn.ModuleList(Pair() for _ in range(2))
        self.up = nn.ModuleList(Pair() for _ in range(3))
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        total = torch.zeros_like(x)
        for number, layer in enumerate(self.down):
            if number == 0 or not self.training or torch.rand([]) > self.layerdrop:
                x, total = layer(x, total)
        x = self.norm(x)
        for layer in self.up:
            skips = torch.rand([]) < self.layerdrop
            if self.training and skips:
                continue
            x, total = layer(x, total)
        return {"x": x, "total": total}


class Crossed(nn.Module):
    """A decoder that reads what an encoder gives only in a layer that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Stack(False), Stack(True)

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x.sin(), self.encoder(x, x))


class Stack(nn.Module):
    """One layer, which may be left out."""

    def __init__(self, crosses: bool) -> None:
        super().__init__()
        self.crosses, self.layerdrop = crosses, 0.1
        self.fc, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        scale = memory.abs().mean() if self.crosses else 1.0
        if not self.training or torch.rand([]) >= self.layerdrop:
            x = x + self.fc(x) * scale
        return self.norm(x)


class Pair(nn.Module):
    """A layer of two results."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.tanh(self.fc(x))
        return x + y, total + y.sin()


class TwoNumbers(nn.Module):
    """Two random numbers that are compared with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand([]) < torch.rand([]):
            return x
        return self.fc(x)


class Other(nn.Module):
    """One layer or another, by chance."""

    def __init__(self, below: bool) -> None:
        super().__init__()
        self.below = below
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and (torch.rand([]) < 0.3) == self.below:
            return self.other(x).relu()
        return self.one(x).tanh()


class Noisy(nn.Module):
    """Noise in training that is no dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.fc(x)
        if self.training:
            x = x + 0.1 * torch.randn_like(x)
        return x.relu()


class Sampled(nn.Module):
    """Draws in both modes, beside layers of training and a dropout that is always on."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.drop = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.25)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * torch.rand_like(x)
        mean, log_var = self.drop(self.norm(self.fc(x))).chunk(2, -1)
        hidden = mean + torch.randn_like(mean) * torch.exp(0.5 * log_var)
        return self.out(functional.dropout(hidden, 0.3, training=True))


class OneLine(nn.Module):
    """Two draws on a line, one of them in training alone."""

    def forward(self, x: Tensor) -> Tensor:
        drop = functional.dropout
        return drop(x, 0.3, training=True) + drop(x, 0.3, training=self.training)


class AlwaysAttends(nn.Module):
    """An attention that drops in evaluation too."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None, None]
        return self.drop(functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1))


class Plain(nn.Module):
    """A model that is the same in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.fc(x)).relu()


class OwnNorm(nn.BatchNorm2d):
    """A batch normalization with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class Normed(nn.Module):
    """A normalization that no port trains."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class Averaged(nn.Module):
    """Other weights in evaluation, by the same operators."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * (self.weight if self.training else self.average)


class Merged(nn.Linear):
    """A layer that changes its weight when it is put into evaluation, as LoRA does."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.drop = nn.Dropout(0.2)
        self.more = nn.Parameter(torch.ones(4, 4))
        self.merged = False

    def train(self, mode: bool = True) -> Merged:
        super().train(mode)
        if mode is self.merged:
            self.weight.data += -self.more.data if mode else self.more.data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(functional.linear(x, self.weight, self.bias))


def no_later(x: Tensor) -> Tensor:
    """A mask: which places come no later than each."""
    rows = torch.arange(x.shape[1])
    columns = torch.arange(x.shape[1])
    return rows[:, None] >= columns


class Causal(nn.Module):
    """Attention with a mask that a function makes of positions, and dropout of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(6, 6)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.query(x) @ x.mT).masked_fill(~no_later(x), -1e9)
        return self.drop(scores.softmax(-1)) @ x


class Memory(nn.Module):
    """States that evaluation gives beside its output, and a penalty that training gives."""

    def __init__(self, penalty: bool = False) -> None:
        super().__init__()
        self.penalty = penalty
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> dict[str, Any]:
        states = []
        for layer in self.layers:
            if not self.training:
                states.append(x[:, -2:].detach())
            x = self.dropout(torch.tanh(layer(x)))
        found: dict[str, Any] = {"x": x}
        if states:
            found["states"] = tuple(states)
        if self.training and self.penalty:
            found["penalty"] = x.square().mean()
        return found
