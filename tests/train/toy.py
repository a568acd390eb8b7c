"""A written program without a script: the texts of `migrate train` around a small model, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from migrate.train.write.texts import CARRIED, ProgramFacts, carried_text, loss_text, train_text

FACTS = ProgramFacts(
    "toy.py",
    "toy.py:1",
    {"x": ("x", ()), "y": ("y", ())},
    takes_mode=True,
    training=True,
    streams=("dropout",),
    statistics=True,
    frozen=(),
)

LOSS = '''"""The loss of a small model with dropout and statistics."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn


@dataclass(frozen=True)
class StepConfig:
    """Sizes."""

    width: int = 8


class Step(nn.Module):
    """Loss of a batch."""

    config: StepConfig

    @nn.compact
    def __call__(self, x, y, deterministic):
        x = nn.Dense(self.config.width, use_bias=False, name="first")(x)
        x = nn.BatchNorm(use_running_average=deterministic, name="norm")(x)
        x = nn.Dropout(0.2)(jnp.tanh(x), deterministic=deterministic)
        return jnp.mean((nn.Dense(1, name="last")(x)[:, 0] - y) ** 2)
'''

OPTIMIZER = '''"""AdamW with a schedule and clipping."""

import optax

rate = optax.cosine_decay_schedule(0.05, 40)
optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(rate))


def learning_rate_of(count):
    return rate(count)
'''

DATA = '''"""Batches of a stream of draws; `hook` is called before each update."""

import numpy as np

UPDATES = 12
SEED = 0


def hook(number):
    """Tests put their own here."""


def batches():
    draws = np.random.default_rng(SEED)
    for number in range(UPDATES):
        hook(number)
        rows = 7 if number == UPDATES - 1 else 8  # the last batch of an epoch is smaller
        micro = []
        for _ in range(1 + number % 2):
            x = draws.standard_normal((rows, 4), np.float32)
            micro.append({"x": x, "y": x.sum(1)})
        yield micro
'''


def write_toy(folder: Path) -> Path:
    """Write the program into a folder."""
    folder.mkdir(exist_ok=True)
    files = {
        "train.py": train_text(FACTS),
        "loss.py": loss_text(LOSS, FACTS),
        "optimizer.py": OPTIMIZER,
        "data.py": DATA,
        **{name: carried_text(name) for name in CARRIED},
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    draws = np.random.default_rng(1)
    shapes = {
        "params/first/kernel": (4, 8),
        "params/norm/scale": (8,),
        "params/norm/bias": (8,),
        "params/last/kernel": (8, 1),
        "params/last/bias": (1,),
        "batch_stats/norm/mean": (8,),
        "batch_stats/norm/var": (8,),
    }
    arrays = {name: draws.uniform(0.1, 1, shape).astype("f") for name, shape in shapes.items()}
    save_file(arrays, folder / "params.safetensors")
    return folder
