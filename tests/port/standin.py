"""A model of one's own, and what a compiler would give for it: tests of what stands around the compiler."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NET = '''
"""A small classifier."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.inp = nn.Linear(12, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(2)])
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Plain(nn.Module):
    def forward(self, x):
        return 2 * x


def raises():
    raise RuntimeError("no such thing")


def number():
    return 3


def wide(width):
    return nn.Linear(width, 4)


class Branches(nn.Module):
    def forward(self, x):
        if x.sum() > 100000:
            raise ValueError("too large")
        return x


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3).to(torch.float8_e4m3fn))

    def forward(self, x):
        return x
'''

CONFIG = '''
"""The sizes of Net."""

from dataclasses import dataclass


@dataclass(frozen=True)
class NetConfig:
    """Sizes."""

    width: int = 16
    depth: int = 2
    classes: int = 5
'''

MODELING = '''
"""Net."""

import flax.linen as nn
import jax

from .config import NetConfig


class Block(nn.Module):
    """A block."""

    config: NetConfig

    def setup(self) -> None:
        self.norm = nn.LayerNorm(epsilon=EPSILON)
        self.up = nn.Dense(2 * self.config.width)
        self.down = nn.Dense(self.config.width)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x + self.down(nn.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """A small classifier."""

    config: NetConfig

    def setup(self) -> None:
        self.inp = nn.Dense(self.config.width)
        self.blocks = [Block(self.config) for _ in range(self.config.depth)]
        self.head = nn.Dense(self.config.classes)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.inp(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
'''


@dataclass(frozen=True)
class Argument:
    name: str = "x"
    dtype: str = "float32"
    shape: tuple[int | str, ...] = ("batch", "length", 12)
    fixed: bool = False
    optional: bool = False
    needs: str = ""
    hides: bool = False


@dataclass(frozen=True)
class Missing:
    op: str
    reason: str
    path: str
    line: str


@dataclass(frozen=True)
class StandIn:
    modeling: str = MODELING.replace("EPSILON", "1e-5")
    config: str = CONFIG
    model_class: str = "Net"
    config_class: str = "NetConfig"
    inputs: tuple[Argument, ...] = (Argument(),)
    free: tuple[str, ...] = ("x: axis 0 (any), axis 1 (any)",)
    baked: tuple[str, ...] = ("12 features: from the weights",)
    notes: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    origin: tuple[tuple[str, str, str], ...] = (("Block", "net.py", "7"), ("Net", "net.py", "18"))
    trains: bool = False
    draws: bool = False
    drawn: tuple[Any, ...] = ()
    statistics: bool = False
    refused: str = ""
    constants: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(
        default_factory=lambda: {"width": 16, "depth": 2, "classes": 5}
    )
    sources: dict[str, Any] = field(default_factory=dict)
    bounds: tuple[Any, ...] = ()
    streams: tuple[str, ...] = ()
    own_gradients: tuple[str, ...] = ()
    same_dtype: str = "it is written without"
    initial: dict[str, Any] = field(default_factory=dict)
    otherwise: dict[str, str] = field(default_factory=dict)
    watched: bool = False
    left: dict[str, str] = field(default_factory=dict)
    methods: tuple[Any, ...] = ()
    api: str = "linen"
    cache: Any = None
    stacks: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    layer_sizes: dict[str, Any] = field(default_factory=dict)

    def limited(self, limits: Any) -> StandIn:
        return self


RIGHT = StandIn()
WRONG = StandIn(modeling=MODELING.replace("EPSILON", "1e-1"))
LACKING = StandIn(
    missing=(
        Missing("aten.a.default", "no lowering", "blocks.0", "net.py:12"),
        Missing("aten.b.default", "complex inputs", "head", "net.py:30"),
    )
)


def written(folder: Path) -> Path:
    """The model's file."""
    file = folder / "net.py"
    file.write_text(NET)
    return file
