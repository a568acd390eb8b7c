"""The product [d,4]·[4,d] in torch, in JAX and as a TPU computes it, against float64: what grows with d?

    python benchmarks/matmul_precision.py

It is often shown that the difference of two frameworks "grows with the size": in max |e| and sum |e| it does,
by orders of magnitude. Both are statistics of d² numbers: the largest of more draws is larger, and a sum of
more terms is more. The error of an element depends on the four products in it, and not on d: relative L2 is
flat. Prints both, and draws docs/parity/matmul_precision.svg.

Exit code 1 if relative L2 moves by more than a fifth from one end to the other (float32: by more than half,
as few roundings make it noisy), or if max |e| is above 6 RMS √(2 ln n), the limit of `migrate parity`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np
import torch
from history import append
from rich.console import Console

from migrate.parity.emulate import jax_interpreter, torch_mode
from migrate.parity.ground.settings import Precision
from migrate.report.text.tables import plain_table

DEPTH = 4
SIZES = [16, 32, 64, 128, 256, 512, 1024, 2048, 4096]
PICTURE = Path(__file__).parents[1] / "docs" / "parity" / "matmul_precision.svg"
FLAT, FLAT_FLOAT32 = 1.2, 1.5

Array = np.ndarray[Any, Any]
Multiply = Callable[[Array, Array], Array]


def torch_float32(a: Array, b: Array) -> Array:
    return (torch.from_numpy(a) @ torch.from_numpy(b)).numpy()


def jax_float32(a: Array, b: Array) -> Array:
    return np.asarray(jax.jit(lambda a, b: a @ b)(a, b))


def torch_in(precision: Precision) -> Multiply:
    def multiply(a: Array, b: Array) -> Array:
        with torch_mode.emulated(precision):
            return torch_float32(a, b)

    return multiply


def jax_in(precision: Precision) -> Multiply:
    function = jax_interpreter.emulated(lambda a, b: a @ b, precision)
    return lambda a, b: np.asarray(function(a, b))


WAYS: dict[str, Multiply] = {
    "torch, float32": torch_float32,
    "JAX, float32": jax_float32,
    "torch, one pass": torch_in("default"),
    "JAX, one pass": jax_in("default"),
    "torch, three passes": torch_in("high"),
    "JAX, three passes": jax_in("high"),
    "torch, six passes": torch_in("highest"),
    "JAX, six passes": jax_in("highest"),
}


class Errors:
    """Of one product: the statistics of the slides, and those that tell how exact it is."""

    def __init__(self, found: Array, truth: Array) -> None:
        off = np.abs(found - truth)
        self.count = off.size
        self.largest, self.total = float(off.max()), float(off.sum())
        self.rms = float(np.sqrt(np.mean(off**2)))
        self.relative = self.rms / float(np.sqrt(np.mean(truth**2)))

    @property
    def envelope(self) -> float:
        """What max |e| / RMS may be of so many elements."""
        return 6 * math.sqrt(2 * math.log(self.count))


def measured() -> dict[str, list[Errors]]:
    results: dict[str, list[Errors]] = {name: [] for name in WAYS}
    for size in SIZES:
        random = np.random.default_rng(size)
        a = random.standard_normal((size, DEPTH)).astype(np.float32)
        b = random.standard_normal((DEPTH, size)).astype(np.float32)
        truth = a.astype(np.float64) @ b.astype(np.float64)
        for name, multiply in WAYS.items():
            results[name].append(Errors(multiply(a, b), truth))
    return results


def wrong(results: dict[str, list[Errors]]) -> list[str]:
    found = []
    for name, errors in results.items():
        # A small product is a sample of few roundings: the first sizes are the noisiest.
        relative = [one.relative for one in errors if one.count >= 64**2]
        limit = FLAT_FLOAT32 if "float32" in name or "six" in name else FLAT
        if max(relative) > limit * min(relative):
            found.append(f"{name}: relative L2 from {min(relative):.2e} to {max(relative):.2e}")
        if any(one.largest > one.envelope * one.rms for one in errors):
            found.append(f"{name}: max |e| above 6 RMS √(2 ln n)")
    return found


def draw(results: dict[str, list[Errors]]) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "matmul", "font.size": 9, "svg.fonttype": "none"}
    from matplotlib import pyplot

    panels = {
        "max |e|: grows": lambda one: one.largest,
        "sum |e|: grows": lambda one: one.total,
        "relative L2: flat": lambda one: one.relative,
    }
    colors = {"one": "#b2182b", "three": "#ef8a62", "six": "#2166ac", "float32": "#4d4d4d"}
    figure, axes = pyplot.subplots(1, 3, figsize=(11, 4.2), layout="constrained")
    for axis, (title, statistic) in zip(axes, panels.items(), strict=True):
        for name, errors in results.items():
            framework, _, way = name.partition(", ")
            axis.loglog(
                SIZES,
                [statistic(one) for one in errors],
                color=colors[way.split()[0]],
                linestyle="-" if framework == "torch" else (0, (2, 2)),
                marker="o" if framework == "torch" else "x",
                markersize=4,
                label=name,
            )
        axis.set(title=title, xlabel="d")
        axis.set_xscale("log", base=2)
        axis.grid(alpha=0.3)
    figure.suptitle(f"[d,{DEPTH}]·[{DEPTH},d] against float64, standard normal")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> int:
    results = measured()
    table = plain_table("", "d", "max |e|", "sum |e|", "relative L2", "max / RMS")
    for name, errors in results.items():
        for size, one in zip(SIZES, errors, strict=True):
            if size in (SIZES[0], 1024, SIZES[-1]):
                table.add_row(
                    name if size == SIZES[0] else "",
                    str(size),
                    f"{one.largest:.2g}",
                    f"{one.total:.2g}",
                    f"{one.relative:.2e}",
                    f"{one.largest / one.rms:.1f}",
                )
                append(
                    "matmul-precision",
                    {
                        "product": f"{name}, d = {size}",
                        "max |e|": f"{one.largest:.2g}",
                        "sum |e|": f"{one.total:.2g}",
                        "relative L2": f"{one.relative:.2e}",
                    },
                )
    console = Console()
    console.print(table)
    draw(results)
    found = wrong(results)
    for line in found:
        console.print(line)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
