"""Evaluations of a script that its program can have: those that are ported, sliced and give equal values."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from migrate import process
from migrate.train.errors import TrainError
from migrate.train.proof.evaluations import compare_evaluations
from migrate.train.proof.program import child, weights_of
from migrate.train.slice.data import DataSlice
from migrate.train.slice.evaluation import EVALUATED, evaluating_text
from migrate.train.slice.text import ScriptText
from migrate.train.write.evaluation import UNKNOWN
from migrate.train.write.split import STEP


class EvaluationError(Exception):
    """The program's evaluations do not give what the script's give, or other batches follow them."""


@dataclass(frozen=True)
class Evaluations:
    """Evaluations of a program.

    Attributes:
        sites: those that the program has, as they were recorded.
        cut: cuts the data out of the script with the program's values; None without an evaluation.
        plain: the data cut so.
        left: line of each other one, and why the program does not have it.
        failed: the same of those that were tried, and do not give what the script's give.
    """

    sites: tuple[Mapping[str, Any], ...] = ()
    cut: Callable[..., DataSlice] | None = None
    plain: DataSlice | None = None
    left: tuple[tuple[int, str], ...] = ()
    failed: tuple[tuple[int, str], ...] = ()


Cutting = Callable[[ScriptText, Sequence[Any]], Callable[..., DataSlice]]


def evaluations_of(
    script: ScriptText, recorded: Mapping[str, Any], modeling: str, cutting: Cutting
) -> Evaluations:
    """Choose the evaluations of a script that its program can have.

    Args:
        script: the script.
        recorded: the recorded run.
        modeling: source of the port.
        cutting: gives a function that cuts the data, of a script and of frames that evaluate.
    """
    left: list[tuple[int, str]] = []
    known = _methods(modeling)
    taken = {n.id for n in ast.walk(script.tree) if isinstance(n, ast.Name)}
    taken |= {getattr(n, "name", "") for n in ast.walk(script.tree)}
    sites: list[Mapping[str, Any]] = []
    cuts: tuple[Callable[..., DataSlice] | None, DataSlice | None] = (None, None)
    for site in recorded.get("evaluations", ()):
        why = site["why"]
        if not why and site["label"] not in known:
            why = "it was not ported"
        if not why and (own := {EVALUATED, UNKNOWN} & taken):
            why = f"the script uses the name {min(own)}, which the program needs"
        if not why:
            more = [*sites, site]
            chains = [chain for s in more for chain in s["chains"]]
            edits = [edit for s in more for edit in s["edits"]]
            try:
                text = evaluating_text(script, edits, chains, recorded["modes"])
                _ = text.tree
                cut = cutting(text, chains)
                plain = cut()
                if plain.rollouts:
                    why = "the loop has rollouts, in which it runs what it trains"
                else:
                    cuts, sites = (cut, plain), more
            except (TrainError, SyntaxError) as error:
                why = str(error)
        if why:
            left.append((site["line"], why))
    return Evaluations(tuple(sites), *cuts, tuple(left))


def evaluation_difference(
    place: Path,
    recorded: Mapping[str, Any],
    sites: Sequence[Mapping[str, Any]],
    work: Path,
    timeout: float,
) -> str:
    """Reason for which the program's evaluations do not give what the script read; "" if they do."""
    states = {0: recorded["state"], **recorded["evaluated_states"]}
    needed = {batch["update"] for site in sites for batch in site["batches"]}
    moments = {
        update: str(weights_of(place, recorded, states[update], work, f"evaluated-{update}"))
        for update in needed
        if update in states
    }
    question, output = work / "evaluations.pickle", work / "evaluations.npz"
    output.unlink(missing_ok=True)
    question.write_bytes(pickle.dumps(([*sites], moments)))
    module = "migrate.train.proof.evaluation_child"
    code, said = child(module, (place, question, output), timeout)
    if code != 0 or not output.exists():
        return f"evaluate.py does not run: {process.last_line(said)[:200]}"
    with np.load(output) as file:
        values = dict(file)
    count = sum(batch["update"] in moments for site in sites for batch in site["batches"])
    if not count:
        return "it was not compared: no weights of the script are known"
    for comparison in compare_evaluations(values, sites, len(recorded["updates"])):
        if not comparison.same:
            return (
                "evaluate.py gives other values than the script (relative difference "
                f"{comparison.worst:.1e})"
            )
    return ""


def without_evaluations(evaluations: Evaluations, why: str) -> Evaluations:
    """No evaluations, and why."""
    failed = tuple((site["line"], why) for site in evaluations.sites)
    return Evaluations(left=evaluations.left, failed=failed)


def evaluation_notes(
    script: ScriptText, evaluations: Evaluations, kept: Collection[int]
) -> list[str]:
    """Notes on evaluations that the program does not have; lines in `kept` are in `data.py`, as rollouts."""
    left = [(line, why) for line, why in evaluations.left if line not in kept]
    return [
        f"{script.at(line)}: this evaluation is not in the program: {why}"
        for line, why in (*evaluations.failed, *left)
    ]


def _methods(modeling: str) -> set[str]:
    return {
        member.name
        for node in ast.parse(modeling).body
        if isinstance(node, ast.ClassDef) and node.name == STEP
        for member in node.body
        if isinstance(member, ast.FunctionDef)
    }
