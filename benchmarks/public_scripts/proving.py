"""Compare a public script with its rewrite, step by step, as `migrate prove` does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from places import Place, prepared
from rewriting import rewritten
from scripts import Script

from migrate.errors import MigrateError
from migrate.prove.proof import record_run
from migrate.prove.run import Side
from migrate.prove.verdict import judge, notes


@dataclass(frozen=True)
class Proved:
    """What came out: a verdict of `migrate prove`, or "fails", and the cells of a table with it."""

    verdict: str
    cells: str


def proved(script: Script, repositories: Path, scratch: Path, ranks: int, seconds: float) -> Proved:
    """Run the original and its rewrite, each in a copy of the repository, and compare them."""
    runs, took, rewriting = [], [], ""
    sides: tuple[Side, ...] = ("original", "xla")
    for side in sides:
        folder = scratch / side
        folder.mkdir()
        place = prepared(script, repositories, folder)
        path = place.repository / script.path
        if side == "xla":
            path, rewriting = rewritten(script, place.repository)
        args = place.args(f"{script.args} {script.args_on_xla} {script.args_to_prove}")
        records = folder / "records"
        records.mkdir()
        try:
            with _inside(place):
                recorded, wall = record_run(
                    path,
                    args,
                    side=side,
                    replicas=ranks,
                    folder=records,
                    timeout=seconds,
                    dropout=False,
                    autocast=False,
                    start=script.start or None,
                )
        except MigrateError as error:
            return Proved("fails", f"{rewriting} | fails | {error}")
        runs.append(recorded)
        took.append(wall)
    original, ours = runs
    judgement = judge(original, ours)
    losses = [s.loss_difference for s in judgement.steps if s.loss_difference is not None]
    norms = [s.gradient_difference for s in judgement.steps if s.gradient_difference is not None]
    weights = [weight.difference for weight in judgement.weights if not weight.noise]
    figures = "; ".join(
        f"{name} {max(values):.1e}"
        for name, values in (("losses", losses), ("gradient norms", norms), ("weights", weights))
        if values
    )
    said = "; ".join((judgement.message, figures, *notes(original, ours, ranks, judgement.weights)))
    cells = f"{rewriting} | {judgement.verdict} | {took[0]:.0f} s, {took[1]:.0f} s | {said}"
    return Proved(judgement.verdict, cells)


@contextlib.contextmanager
def _inside(place: Place) -> Iterator[None]:
    before, here = dict(os.environ), Path.cwd()
    os.environ.update(place.variables)
    os.chdir(place.folder)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)
