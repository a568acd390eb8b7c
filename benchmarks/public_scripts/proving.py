"""Compare a public script with its rewrite, step by step, as `migrate prove` does."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from places import Place, prepared
from rewriting import RewriteRefusedError, rewritten
from scripts import Script

from migrate.catalogue.target import XLA, Target
from migrate.errors import MigrateError
from migrate.prove.errors import RunTimeoutError
from migrate.prove.proof import Runs, compared
from migrate.prove.runtimes import RUNTIMES
from migrate.prove.settings import Settings


@dataclass(frozen=True)
class Proved:
    """What came out: a verdict of `migrate prove`, "fails" or "refused", and the cells of a table with it.

    `rewriting` has the numbers of rewrites and findings, `what` the figures or the reason.
    """

    verdict: str
    cells: str
    rewriting: str = ""
    what: str = ""


def proved(
    script: Script,
    repositories: Path,
    scratch: Path,
    ranks: int,
    seconds: float,
    target: Target = XLA,
    *,
    over: bool = False,
) -> Proved:
    """Run the original and its rewrite, each in a mirror of the repository's copy, and compare them."""
    rewriting, errors, verdict = "", (), "fails"

    def runs(place: Place, path: Path) -> Runs:
        folder = place.repository.with_name("runs")
        folder.mkdir()
        args = place.args(f"{script.args} {script.args_on_xla} {script.args_to_prove}")
        settings = Settings(amp="off", start=script.start or None, timeout=seconds)
        return Runs(folder, place.repository / script.path, path, args, ranks, settings, target)

    try:
        # A copy for each: a rewritten project takes the place of the original's files.
        theirs, mine = (_prepared(script, repositories, scratch / name) for name in ("a", "b"))
        done = rewritten(script, mine.repository, target, over=over)
        path, rewriting, errors = done.path, done.counts, done.errors
        # A rewritten folder takes the place of the original, without this empty folder.
        mine.out.mkdir(exist_ok=True)
        originals = runs(theirs, path)
        verdict = "original fails"
        with _inside(theirs):
            original = originals.record("original")
        verdict = "fails"
        with _inside(mine):
            ours = runs(mine, path).record(RUNTIMES[target].side)
        with _inside(theirs):
            proof = compared(
                original,
                ours,
                originals,
                lambda settings: originals.record("original", reordered=True, settings=settings),
            )
    except RewriteRefusedError as error:
        text = str(error).replace(f"{scratch}/b/", "")
        return Proved("refused", f"{rewriting} | refused | {text}", rewriting, text)
    except RunTimeoutError as error:
        text = str(error).replace(f"{scratch}/a/", "").replace(f"{scratch}/b/", "")
        return Proved("undecided", f"{rewriting} | undecided | {text}", rewriting, text)
    except MigrateError as error:
        text = re.sub(rf"{re.escape(str(scratch))}/[ab]/", "", str(error))
        if verdict == "fails":
            verdict, text = _refused(errors, verdict, text)
        return Proved(verdict, f"{rewriting} | {verdict} | {text}", rewriting, text)
    losses = [s.loss_difference for s in proof.steps if s.loss_difference is not None]
    norms = [s.gradient_difference for s in proof.steps if s.gradient_difference is not None]
    weights = [weight.difference for weight in proof.weights if weight.gate is not None]
    figures = "; ".join(
        f"{name} {max(values):.1e}"
        for name, values in (("losses", losses), ("gradient norms", norms), ("weights", weights))
        if values
    )
    took = f"{proof.original_seconds:.0f} s, {proof.rewritten_seconds:.0f} s"
    said = "; ".join((proof.message, figures, *proof.notes))
    # The history's word is older than the command's "match".
    verdict = "equal" if proof.equal else str(proof.verdict)
    what = figures if proof.equal else proof.message
    if verdict not in ("equal", "vacuous"):
        verdict, what = _refused(errors, verdict, what)
    return Proved(verdict, f"{rewriting} | {verdict} | {took} | {said}", rewriting, what)


def _refused(errors: tuple[str, ...], verdict: str, what: str) -> tuple[str, str]:
    """Verdict and reason: what the rewrite itself reported as an error is no surprise."""
    return ("refused", f"{', '.join(errors)}; {what}") if errors else (verdict, what)


def _prepared(script: Script, repositories: Path, scratch: Path) -> Place:
    scratch.mkdir()
    return prepared(script, repositories, scratch)


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
