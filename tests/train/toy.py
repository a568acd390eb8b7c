"""A written program without a script: the texts of `migrate train` around a small model, for tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from migrate.train.write.split import SplitSource
from migrate.train.write.texts import CARRIED, ProgramFacts, carried_text, loss_text, train_text
from migrate.train.write.updates import ForwardFacts, UpdateFacts, updates_train_text

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


# The same with two optimizers, and a call of a module between their updates.
LOSSES = '''"""Losses of two layers; the first one has statistics."""

import jax
import jax.numpy as jnp


def normed(params, state, x):
    x = x @ params["first"]["kernel"]
    mean = 0.9 * state["batch_stats"]["first"]["mean"] + 0.1 * x.mean(0)
    return x - x.mean(0), {"batch_stats": {"first": {"mean": mean}}}


def inputs_of_below(batch):
    return {"x": batch["x"], "y": batch["y"]}


inputs_of_above = inputs_of_below


def below(params, state, inputs, key):
    hidden, new = normed(params, state, inputs["x"])
    hidden += 0.1 * jax.random.normal(key, hidden.shape)
    return jnp.mean((jnp.tanh(hidden) @ params["last"]["kernel"] - inputs["y"][:, None]) ** 2), new


def above(params, state, inputs, key):
    hidden = inputs["x"] @ params["first"]["kernel"] - state["batch_stats"]["first"]["mean"]
    return jnp.mean((jnp.tanh(hidden) @ params["last"]["kernel"] - inputs["y"][:, None]) ** 2), {}


def first_forward(params, state, inputs):
    return normed(params, state, inputs["x"])[1]
'''
OPTIMIZERS = '''"""An optimizer for each update."""

import optax


def below_optimizer():
    rate = optax.cosine_decay_schedule(0.05, 40)
    return optax.multi_transform(
        {"on": optax.adamw(rate), "off": optax.set_to_zero()}, {"first": "on", "last": "off"}
    ), rate


def above_optimizer():
    return optax.multi_transform(
        {"on": optax.sgd(0.1), "off": optax.set_to_zero()}, {"first": "off", "last": "on"}
    ), lambda count: 0.1
'''
DATA_OF_SEVERAL = (
    DATA.replace("yield micro", 'yield ("below", "above")[number % 2], micro')
    + """        if number % 4 == 3:
            yield "first_forward", [{"x": draws.standard_normal((5, 4), np.float32)}]
"""
)
_NO_SOURCE = SplitSource("", "")
SEVERAL = [
    UpdateFacts(name, FACTS, None, _NO_SOURCE, "", ("first", "last"), ())
    for name in ("below", "above")
]
FORWARD = ForwardFacts("first_forward", "toy.py:2", ("x",), _NO_SOURCE, "", ("first",), "")


def write_toy(folder: Path, *, several: bool = False) -> Path:
    """Write the program into a folder; `several`: with two optimizers."""
    folder.mkdir(exist_ok=True)
    files = {
        "train.py": train_text(FACTS),
        "loss.py": loss_text(LOSS, FACTS),
        "optimizer.py": OPTIMIZER,
        "data.py": DATA,
    }
    if several:
        train = updates_train_text(SEVERAL, [FORWARD], "toy.py", rollouts=False, starts=False)
        files = {
            "train.py": train,
            "loss.py": LOSSES,
            "optimizer.py": OPTIMIZERS,
            "data.py": DATA_OF_SEVERAL,
        }
    for name, text in {**files, **{n: carried_text(n) for n in CARRIED}}.items():
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
    if several:
        shapes = {
            "params/first/kernel": (4, 8),
            "params/last/kernel": (8, 1),
            "batch_stats/first/mean": (8,),
        }
    arrays = {name: draws.uniform(0.1, 1, shape).astype("f") for name, shape in shapes.items()}
    save_file(arrays, folder / "params.safetensors")
    return folder
