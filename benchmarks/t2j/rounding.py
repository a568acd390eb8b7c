"""Judges a script of the benchmark against itself, with weights that are one rounding away.

    python benchmarks/t2j/rounding.py TASK [TASK ...]

The script runs twice: as it is, and with every weight times 1 + 1e-7 z (z normal, seeded) when its first
optimizer is made. The second training is compared as the judge compares a program's: its losses, then the
final weights.
Where it misses the limits, the training multiplies rounding, and the judge would refuse the script itself.
Scripts with rollouts are refused: a sampled token may change with a rounding, and all that follows with it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))

from benchmarks.t2j import bands
from benchmarks.t2j.recorder import record
from benchmarks.t2j.tasks import read_task

SCRIPTS = Path(__file__).parent / "scripts"
ROUNDING = 1e-7


def move_weights() -> None:
    """Move the weights that the first optimizer gets."""
    made = torch.optim.Optimizer.__init__
    generator = torch.Generator().manual_seed(0)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        torch.optim.Optimizer.__init__ = made  # type: ignore[method-assign]
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    weight.mul_(1 + ROUNDING * torch.randn(weight.shape, generator=generator))

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


def recorded(script: Path, moved: bool) -> dict[str, Any]:
    """Recording of one run, in the process that calls it."""
    torch.set_num_threads(1)
    if moved:
        move_weights()
    return record(script)


def compare(plain: dict[str, Any], moved: dict[str, Any]) -> str:
    """First difference outside of the judge's limits; "" if there is none."""
    band = bands.behavioural(plain, None)
    try:
        for number, (mine, wanted) in enumerate(zip(moved["rounds"], plain["rounds"], strict=True)):
            for own, micro in zip(mine["micro"], wanted["micro"], strict=True):
                losses = own["loss"], micro["loss"]
                bands.compare_loss(f"step {number}", *losses, band.loss, None, band.scale)
        bands.compare_final(moved["final"], plain, band)
    except bands.MismatchError as error:
        return str(error)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="+", metavar="TASK")
    asked = parser.parse_args()
    for task in asked.tasks:
        script = SCRIPTS / f"{task}.py"
        if "scores" in read_task(script):
            parser.error(f"{task} samples")
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            plain, moved = pool.starmap(recorded, [(script, False), (script, True)], chunksize=1)
        print(f"{task}: {compare(plain, moved) or 'within the limits'}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
