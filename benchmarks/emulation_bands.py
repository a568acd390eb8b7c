"""Does the emulation of the TPU's precision hold what torch_xla's own tests ask of a TPU?

    python benchmarks/emulation_bands.py

torch_xla's test/test_mat_mul_precision.py runs on a TPU: a product of two diagonal matrices near the
identity, of each precision, must be nearer to float64 than `widest` and must *not* be nearer than a quarter
of it. So a product that is too exact fails as well. Here the same is asked of the emulation, in torch and in
JAX, over 20 seeds; and of the other way to split an operand, which must fail where the bands tell the two
apart. Then the error of each precision on ordinary matrices, and how far torch and JAX are apart.

Exit code 1 if the emulation leaves a band once, a wrong split passes once, or torch and JAX differ by more
than the order of summation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import numpy as np
import torch
from history import append
from rich.console import Console

from migrate.parity.emulate import jax_interpreter, torch_mode
from migrate.parity.emulate.passes import in_passes
from migrate.parity.emulate.torch_split import TorchSplit
from migrate.parity.ground.settings import PRECISIONS, Precision
from migrate.report.text.tables import plain_table

SEEDS = int(os.environ.get("SEEDS", "20"))
SIZE = 1024
# Of torch_xla's test: the bits of the mantissa that it expects.
BITS: dict[Precision, int] = {"default": 8, "high": 14, "highest": 22}
# What summing 1024 products of float32 in another order may change.
ORDER = 4e-7

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Nearest(TorchSplit):
    """Every part is rounded to the nearest."""

    def truncated(self, array: Any) -> Any:
        """Not towards zero."""
        return self.nearest(array)


class Truncated(TorchSplit):
    """Every part is cut off."""

    def nearest(self, array: Any) -> Any:
        """Towards zero."""
        return self.truncated(array)


def in_torch(precision: Precision) -> Multiply:
    def multiply(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch_mode.emulated(precision):
            return x @ y

    return multiply


def in_jax(precision: Precision) -> Multiply:
    function = jax_interpreter.emulated(lambda x, y: x @ y, precision)
    return lambda x, y: torch.from_numpy(np.array(function(x.numpy(), y.numpy())))


def split_by(split: TorchSplit, precision: Precision) -> Multiply:
    return lambda x, y: in_passes(torch.mm, x, y, precision, split)


def in_band(multiply: Multiply, precision: Precision, seed: int) -> bool:
    generator = torch.Generator().manual_seed(seed)
    x, y = (
        torch.diag(0.99 + 0.02 * torch.rand(SIZE, generator=generator, dtype=torch.float64))
        for _ in range(2)
    )
    off = (multiply(x.float(), y.float()).double() - x @ y).abs().max().item()
    widest = ((2 ** BITS[precision] + 1) / 2 ** BITS[precision]) ** 2 - 1
    return widest / 4 < off <= widest


def products(multiply: Multiply) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, generator=generator) for _ in range(2))
    return multiply(a, b), a.double() @ b.double()


def relative(found: torch.Tensor, truth: torch.Tensor) -> float:
    return float((found.double() - truth.double()).norm() / truth.double().norm())


def main() -> int:
    console = Console()
    table = plain_table("precision", "split", "seeds in the band", f"relative L2, k = {SIZE}")
    wrong = []
    for precision in PRECISIONS:
        torchs, jaxs = in_torch(precision), in_jax(precision)
        rows: dict[str, tuple[Multiply, bool | None]] = {
            "torch mode": (torchs, True),
            "JAX interpreter": (jaxs, True),
            # highest holds either way: its last bits are those of float32.
            "all to nearest": (split_by(Nearest(), precision), None),
            "all truncated": (split_by(Truncated(), precision), None),
        }
        tells = {"default": ("all truncated",), "high": ("all to nearest",), "highest": ()}
        counts, errors = {}, {}
        for name, (multiply, must) in rows.items():
            inside = sum(in_band(multiply, precision, seed) for seed in range(SEEDS))
            found, truth = products(multiply)
            counts[name], errors[name] = f"{inside} of {SEEDS}", f"{relative(found, truth):.2e}"
            table.add_row(precision, name, f"{inside}/{SEEDS}", errors[name])
            if (must and inside < SEEDS) or (name in tells[precision] and inside > 0):
                wrong.append(f"{precision}, {name}: {inside} of {SEEDS} seeds in the band")
        titles = {"default": "one pass", "high": "three", "highest": "six"}
        append(
            "emulation",
            {
                "precision": f"{precision} ({titles[precision]})",
                "torch": counts["torch mode"],
                "JAX": counts["JAX interpreter"],
                "all splits to nearest": counts["all to nearest"],
                "all truncated": counts["all truncated"],
                f"relative L2 at k = {SIZE}, torch / JAX": f"{errors['torch mode']} / "
                f"{errors['JAX interpreter']}",
            },
        )
        apart = relative(products(jaxs)[0], products(torchs)[0])
        table.add_row(precision, "JAX against torch", "", f"{apart:.1e}")
        if apart > ORDER:
            wrong.append(f"{precision}: torch and JAX are {apart:.1e} apart")
    console.print(table)
    for line in wrong:
        console.print(line)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
