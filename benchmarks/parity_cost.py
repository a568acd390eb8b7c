"""What comparing all layers costs, against the plain passes of everybody who takes part.

    python benchmarks/parity_cost.py

A transformer of 12 layers and its linen twin, in one process with the settings of a side's. Plain: A, B, the
truth in float64 and the emulation run, and their outputs are written. Compared: the truth's layers are
written too, input by input, those of the others are measured against them, each runs again on the truth's
inputs, and everything is judged. The ratio of CPU seconds counts, as other work on the machine changes the
wall time. Memory: the peak of both runs, beside the tensors of the truth's largest call, and all of them.
Exit code 1 above the limit.
"""

from __future__ import annotations

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from migrate.parity.dump.dump import Dump

LIMIT = 4.0
WIDTH, HEADS, LAYERS, ROWS, LENGTH = 512, 8, 12, 4, 128


def models() -> tuple[object, object]:
    """The torch model, and its linen twin with the same names."""
    import flax.linen as flax
    import jax
    import jax.numpy as jnp
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
            self.act = nn.GELU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm1(x)
            q, k, v = (
                layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)
                for layer in (self.q, self.k, self.v)
            )
            mixed = nn.functional.scaled_dot_product_attention(q, k, v)
            x = x + self.o(mixed.transpose(1, 2).flatten(-2))
            return x + self.down(self.act(self.up(self.norm2(x))))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    class FlaxLayer(flax.Module):
        @flax.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            y = flax.LayerNorm(epsilon=1e-5, name="norm1")(x)
            q, k, v = (
                flax.Dense(WIDTH, name=name)(y).reshape(*y.shape[:2], HEADS, -1) for name in "qkv"
            )
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (WIDTH // HEADS) ** 0.5
            mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
            x = x + flax.Dense(WIDTH, name="o")(mixed.reshape(x.shape))
            y = flax.Dense(4 * WIDTH, name="up")(flax.LayerNorm(epsilon=1e-5, name="norm2")(x))
            return x + flax.Dense(WIDTH, name="down")(jax.nn.gelu(y, approximate=False))

    class FlaxNet(flax.Module):
        @flax.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            for index in range(LAYERS):
                x = FlaxLayer(name=f"layers_{index}")(x)
            return x

    return Net(), FlaxNet()


def run(layers: bool) -> dict[str, float]:
    """One comparison in this process: CPU and wall seconds, and the peak of its memory in bytes."""
    from migrate.parity.ground.options import ParityOptions
    from migrate.parity.ground.results import LayerVerdict
    from migrate.parity.judge.judge import Judged, judgement
    from migrate.parity.judge.profiles import find_profile
    from migrate.parity.run.captures import capture_all
    from migrate.parity.run.prepare import prepare
    from migrate.parity.sides.jax.runner import JaxRunner
    from migrate.parity.sides.side import InProcess
    from migrate.parity.sides.torch.runner import TorchRunner

    def quiet(_: str) -> None:
        pass

    torch_model, flax_model = models()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        a = InProcess(TorchRunner(torch_model, "torch", "torch"), work)  # type: ignore[arg-type]
        b = InProcess(JaxRunner(flax_model, "linen", "linen"), work)
        options = ParityOptions(inputs=(f"x=float32[{ROWS},{LENGTH},{WIDTH}]",), layers=layers)
        ready = prepare(a, b, options, work, quiet)
        wall, cpu = time.perf_counter(), time.process_time()
        captures = capture_all(a, b, ready, options, work, quiet)
        if layers:
            sides = [
                Judged(one.dump, one.local, one.alignment)
                for one in (captures.a, captures.b, captures.e)
            ]
            found = judgement(captures.truth, *sides, find_profile("f32-highest"))  # type: ignore[misc]
            assert {one.verdict for one in found.layers} == {LayerVerdict.MATCH}
        seconds = time.process_time() - cpu, time.perf_counter() - wall
        sizes = tensor_bytes(captures.truth)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "cpu": seconds[0],
        "wall": seconds[1],
        "peak": peak,
        "captured": sum(sizes),
        "largest": max(sizes, default=0),
    }


def tensor_bytes(truth: Dump) -> list[int]:
    """Of each call's tensors, those that no call before it had."""
    seen: set[tuple[int, str, str]] = set()
    sizes = []
    for call in truth.calls:
        sizes.append(0)
        for ref in (*call.arguments, *call.outputs):
            if (call.input, ref.file, ref.key) not in seen:
                seen.add((call.input, ref.file, ref.key))
                sizes[-1] += 8 * math.prod(ref.shape)
    return sizes


def main() -> int:
    """Measure each in a process of its own, print the table, and return the exit code."""
    if len(sys.argv) > 1:
        print(json.dumps(run(layers=sys.argv[1] == "layers")))
        return 0
    from history import append
    from rich.console import Console

    from migrate.parity.sides.process import SETTINGS
    from migrate.report.text.tables import plain_table

    found = {}
    for kind in ("plain", "layers"):
        done = subprocess.run(
            [sys.executable, __file__, kind],
            capture_output=True,
            text=True,
            check=True,
            env={**SETTINGS, **os.environ, "JAX_PLATFORMS": "cpu"},
        )
        found[kind] = json.loads(done.stdout.splitlines()[-1])
    plain, layers = found["plain"], found["layers"]
    ratio = layers["cpu"] / plain["cpu"]
    table = plain_table("12 layers, 8 inputs", "CPU s", "wall s", "ratio", "limit")
    table.add_row(
        "plain passes of A, B, T and E", f"{plain['cpu']:.1f}", f"{plain['wall']:.1f}", "1", ""
    )
    table.add_row(
        "all layers compared",
        f"{layers['cpu']:.1f}",
        f"{layers['wall']:.1f}",
        f"{ratio:.2f}",
        f"{LIMIT:g}",
    )
    console = Console(width=120, highlight=False)
    console.print(table)
    console.print(
        f"tensors of the truth {layers['captured'] / 1e6:.0f} MB, of its largest call "
        f"{layers['largest'] / 1e6:.1f} MB; peak memory {plain['peak'] / 1e6:.0f} MB plain, "
        f"{layers['peak'] / 1e6:.0f} MB compared"
    )
    note = f"the truth's tensors are {layers['captured'] / 1e9:.1f} GB"
    for name, kind, limit in (
        ("plain passes of A, B, T and E", plain, ""),
        ("all layers compared", layers, LIMIT),
    ):
        append(
            "parity-cost",
            {
                "12 layers, 8 inputs": name,
                "CPU s": f"{kind['cpu']:.1f}",
                "ratio": f"{ratio:.2f}" if limit else "",
                "limit": limit,
                "peak MB": f"{kind['peak'] / 1e6:.0f}",
            },
            note=note,
        )
    return int(ratio > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
