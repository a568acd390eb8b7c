"""What fitting by running costs: the seconds of processors, over those of one forward pass of each side.

    PYTHONPATH=EXTRA python benchmarks/target_cost.py [resnet50] [layers]

The goal is at most 3 × both forward passes, and 60 s for 1,000 layers. A forward pass is what a script of
its own takes: imports, the model, weights (drawn by numpy for JAX), one pass in float64 (JAX's is compiled).
`resnet50` needs torchvision and jax-resnet (benchmarks/target_pairs.py); `layers` needs nothing.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from history import append

from migrate.parity.run.fitted import Models, fit_models
from migrate.progress import no_progress

HERE = Path(__file__).resolve()
DEPTH, WIDTH = 1000, 8
# torch, JAX, an input, how JAX has it.
PAIRS = {
    "resnet50": (
        "torchvision.models:resnet50",
        "jax_resnet:ResNet50(n_classes=1000)",
        (2, 3, 64, 64),
        (2, 64, 64, 3),
    ),
    "layers": (f"{HERE}:torch_layers", f"{HERE}:flax_layers", (4, WIDTH), (4, WIDTH)),
}
TORCH = """
import torch
from migrate.parity.sides.load import _model, _object
from migrate.parity.sides.target import parse_target
target = parse_target({spec!r})
model = _model(_object(target.spec), target, 0).double().eval()
with torch.no_grad():
    model(torch.randn({shape}, dtype=torch.float64))
"""
JAX = """
import jax, numpy as np
from migrate.parity.sides.load import _model, _object
from migrate.parity.sides.target import parse_target
jax.config.update("jax_enable_x64", True)
target = parse_target({spec!r})
model = _model(_object(target.spec), target, 0)
x = np.random.rand(*{shape})
shapes = jax.eval_shape(model.init, jax.random.key(0), x)
weights = jax.tree.map(lambda one: np.random.rand(*one.shape), shapes)
jax.block_until_ready(jax.jit(lambda w, x: model.apply(w, x, mutable=False))(weights, x))
"""


def torch_layers() -> Any:
    """A thousand layers in a row."""
    from torch import nn

    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(DEPTH)))


def flax_layers() -> Any:
    """The same, with names of its own."""
    from flax import linen

    class Layers(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            for _ in range(DEPTH):
                x = linen.tanh(linen.Dense(WIDTH)(x))
            return x

    return Layers()


def main(names: list[str]) -> None:
    """Print a line for each."""
    for name in names or PAIRS:
        torch, flax, shape, lies = PAIRS[name]
        passes = [
            _script(TORCH.format(spec=torch, shape=shape)),
            _script(JAX.format(spec=flax, shape=lies)),
        ]
        before, start = _seconds(), time.perf_counter()
        given = f"{'input' if name == 'layers' else 'x'}=float32{list(shape)}".replace(" ", "")
        with tempfile.TemporaryDirectory() as folder:
            found = fit_models(Models(torch, flax, (given,)), Path(folder) / "m.yaml", no_progress)
        took, wall = _seconds() - before, time.perf_counter() - start
        one, other = passes
        print(
            f"{name}: {found.layers} layers, {found.sentence}: {took:.1f} s of processors ({wall:.0f} s by "
            f"the clock) ÷ ({one:.1f} torch + {other:.1f} JAX) = {took / sum(passes):.2f}",
            flush=True,
        )
        append(
            "target-cost",
            {
                "model": name,
                "layers": f"{found.layers:,}",
                "CPU s": f"{took:.1f}",
                "forward passes, CPU s": f"{one:.1f} torch + {other:.1f} JAX",
                "ratio": f"{took / sum(passes):.2f}",
                "limit": 3,
                "wall s": f"{wall:.0f}",
            },
        )


def _script(code: str) -> float:
    before = _seconds()
    subprocess.run([sys.executable, "-c", code], check=True)
    return _seconds() - before


def _seconds() -> float:
    used = [resource.getrusage(one) for one in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
    return sum(one.ru_utime + one.ru_stime for one in used)


if __name__ == "__main__":
    main(sys.argv[1:])
