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
from migrate.prove.records import RankRecord
from migrate.prove.run import Side
from migrate.prove.verdict import judge_with_floor, notes


@dataclass(frozen=True)
class Proved:
    """What came out: a verdict of `migrate prove`, or "fails", and the cells of a table with it."""

    verdict: str
    cells: str


def proved(script: Script, repositories: Path, scratch: Path, ranks: int, seconds: float) -> Proved:
    """Run the original and its rewrite, each in a copy of the repository, and compare them."""
    took, rewriting = [], ""

    def record(side: Side, name: str, *, reordered: bool = False) -> dict[int, RankRecord]:
        nonlocal rewriting
        folder = scratch / name
        folder.mkdir()
        place = prepared(script, repositories, folder)
        path = place.repository / script.path
        if side == "xla":
            path, rewriting = rewritten(script, place.repository)
        args = place.args(f"{script.args} {script.args_on_xla} {script.args_to_prove}")
        records = folder / "records"
        records.mkdir()
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
                reordered=reordered,
                start=script.start or None,
            )
        took.append(f"{wall:.0f} s")
        return recorded

    try:
        original, ours = record("original", "original"), record("xla", "xla")
        judgement = judge_with_floor(
            original, ours, lambda: record("original", "original-again", reordered=True)
        )
    except MigrateError as error:
        return Proved("fails", f"{rewriting} | fails | {error}")
    losses = [s.loss_difference for s in judgement.steps if s.loss_difference is not None]
    norms = [s.gradient_difference for s in judgement.steps if s.gradient_difference is not None]
    weights = [weight.difference for weight in judgement.weights if weight.gate is not None]
    figures = "; ".join(
        f"{name} {max(values):.1e}"
        for name, values in (("losses", losses), ("gradient norms", norms), ("weights", weights))
        if values
    )
    limits = notes(original, ours, ranks, judgement.weights, judgement.floor)
    said = "; ".join((judgement.message, figures, *limits))
    cells = f"{rewriting} | {judgement.verdict} | {', '.join(took)} | {said}"
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
