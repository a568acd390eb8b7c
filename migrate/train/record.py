"""Run a script: record its first updates, and run it again from weights a rounding away."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from migrate.counts import many
from migrate.train.errors import TrainError
from migrate.train.find import loss_of_update, own_source, script_loop
from migrate.train.options import TrainOptions
from migrate.train.proof.data_child import FLOAT_LIMIT
from migrate.train.proof.stability import STABLE, Echo, decided, moved
from migrate.train.slice.loops import (
    TrainingCalls,
    loop_ends,
    loop_level,
    loop_statements,
    step_statements,
)
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.rate import callees, rate_function, rate_setters
from migrate.train.slice.reads import read_names
from migrate.train.slice.statements import every_statement
from migrate.train.slice.text import ScriptText, first_line
from migrate.train.watch.runner import ECHO, PORT, QUESTION
from migrate.train.watch.runs import run_script

# Folder of the run in float64 in the folder of the recorded one, and of the run whose losses are weighted.
WIDE, WEIGHTED = "wide", "weighted"


def recorded_run(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    options: TrainOptions,
    work: Path,
    *,
    ports: bool = True,
    name: str = "",
    known: Sequence[tuple[str, Any]] = (),
    others: Sequence[LossSlice] = (),
) -> tuple[dict[str, Any], LossSlice, Path]:
    """Record the first updates; what is computed from numbers that change between steps becomes data.

    Without `ports` the loss is not ported: known mistakes are made in it instead. Of several updates, `name`
    is this one's, and `known` are the modules of those before it: name, and what tells it from others.
    `others` are the losses of the other updates.

    Returns:
        The record, the statements of the loss that are left, and the folder of the run.
    """
    changing: set[str] = set()
    computed: set[str] = set()
    refused: tuple[int, str, str] | None = None
    while True:
        folder = work / f"run-{name}-{len(changing)}-{len(computed)}"
        folder.mkdir()
        recorded = _run(script, events, loss, options, folder, ports, name, known, others)
        if "refused" not in recorded:
            recorded["moved"] = [
                replace(m, text=f"{script.at(m.line)}: {script.lines[m.line - 1].strip()}")
                for m in recorded["moved"]
            ]
            recorded["idle"] = [
                f"{script.at(n)}: {script.lines[n - 1].strip()}" for n in recorded["idle"]
            ]
            return recorded, loss, folder
        refused = refused or recorded["refused"]  # the first one names what changes
        line, what, remedy = refused
        count = len(changing) + len(computed)
        changing |= set(recorded["changing"])
        computed |= set(recorded["computed"])
        shorter = loss_of_update(script, events, changing, computed)
        if len(changing) + len(computed) == count or set(shorter.free) & changing:
            raise TrainError(f"{script.at(line)}: {what}", remedy or "report this with the script")
        loss = shorter


def run_beside(
    script: ScriptText, recorded: Mapping[str, Any], options: TrainOptions, folder: Path
) -> Echo | str:
    """Run the script again from weights that are a rounding away; several times, where one does not decide.

    Returns:
        How far its losses move; or why this is not known.
    """
    losses = [[micro["loss"] for micro in update["micro"]] for update in recorded["updates"]]
    losses += recorded["later_losses"]
    echoes: list[Echo] = []
    while True:
        try:
            echo = _echo(script, recorded, options, folder, len(losses), draw=len(echoes))
        except TrainError as failed:
            return str(failed)
        worst, first = moved(losses, echo, STABLE, recorded["size_of_terms"])
        echoes.append(Echo(worst, first, min(len(losses), len(echo))))
        if (whole := decided(echoes)) is not None:
            return whole


def _echo(
    script: ScriptText,
    recorded: Mapping[str, Any],
    options: TrainOptions,
    folder: Path,
    count: int,
    *,
    draw: int,
) -> list[list[float]]:
    """Losses of each update of the script, up to a number of updates, from weights that are a rounding away.

    Raises:
        TrainError: the script fails.
    """
    question = json.loads((folder / QUESTION).read_text()) | {
        "echo": count,
        "noise": recorded["noise"],
        "draw": draw,
    }
    (folder / QUESTION).write_text(json.dumps(question))
    plugin = "migrate.train.watch.echo:install"
    run_script(
        options.script, options.args, plugin, folder, ECHO, options.timeout, own_source(script)
    )
    losses: list[list[float]] = json.loads((folder / ECHO).read_text())
    return losses


def run_weighted(
    script: ScriptText,
    recorded: Mapping[str, Any],
    shares: Sequence[float],
    options: TrainOptions,
    folder: Path,
) -> dict[str, Any]:
    """Run the script again with its losses times factors before their backward, and record its updates.

    Args:
        script: the script.
        recorded: its record without factors, whose question is in the folder.
        shares: a factor for each micro-batch of the recorded updates.
        options: arguments of the script, seconds for the run.
        folder: folder of the recorded run.

    Returns:
        The record. The gradients of the first micro-batch alone are without the factor.

    Raises:
        TrainError: the script fails, or has other batches than before.
    """
    again = _fresh(folder / WEIGHTED)
    question = json.loads((folder / QUESTION).read_text()) | {
        "shares": list(shares),
        "ports": False,
    }
    (again / QUESTION).write_text(json.dumps(question))
    weighted = _recorded(script, options, again)
    if "refused" in weighted:
        line, what, remedy = weighted["refused"]
        raise TrainError(f"{script.at(line)}: with --global-mean, {what}", remedy)
    if not _same_batches(recorded["updates"], weighted["updates"]):
        raise TrainError(
            f"{script.name}: with --global-mean, a second run has other batches than the first one",
            "seed the script, and choose no batch by the loss",
        )
    kept = ("mistakes", "gradients", "functions", "functions_left", "function_values", "moved")
    return weighted | {name: recorded[name] for name in kept}


def _fresh(folder: Path) -> Path:
    """Make a folder without the files of an earlier run: several programs are compared with one script."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def wide_folder(recorded: Mapping[str, Any], folder: Path) -> Path:
    """Folder of the run in float64.

    Args:
        recorded: the record in float32.
        folder: folder of the script's run; that of a run with weighted losses is in it.
    """
    return (folder / WEIGHTED if "share" in recorded else folder) / WIDE


def run_wide(
    script: ScriptText, recorded: Mapping[str, Any], options: TrainOptions, folder: Path
) -> dict[str, Any] | str:
    """Run the script again with its weights and its loss in float64, and record its updates.

    Args:
        script: the script.
        recorded: its record in float32, whose question is in the folder.
        options: arguments of the script, seconds for the run.
        folder: folder of the recorded run; `wide_folder` is the other one's.

    Returns:
        The record, or why there is none.
    """
    again = _fresh(wide_folder(recorded, folder))
    question = json.loads((again.parent / QUESTION).read_text()) | {"wide": True, "ports": False}
    (again / QUESTION).write_text(json.dumps(question))
    try:
        wide = _recorded(script, options, again)
    except TrainError as failed:
        return str(failed)
    if "refused" in wide:
        return f"{script.at(wide['refused'][0])}: {wide['refused'][1]}"
    if len(wide["updates"]) < len(recorded["updates"]):
        return str(wide.get("failed") or "it makes fewer updates")[:200]
    if not _same_batches(recorded["updates"], wide["updates"], FLOAT_LIMIT):
        return "it has other batches"
    if share := recorded.get(
        "share"
    ):  # the gradients of the first micro-batch are compared without it
        own = {name: x if x is None else x / share for name, x in wide["gradients"].items()}
        wide |= {"gradients": own}
    return wide


def _same_batches(
    a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]], limit: float = 0.0
) -> bool:
    """Whether two runs have the same batches.

    Args:
        a: updates of the first run.
        b: updates of the second run.
        limit: relative difference of numbers that the model may have computed, in a rollout.
    """
    ours, theirs = ([[m["inputs"] for m in update["micro"]] for update in run] for run in (a, b))
    if [len(micro) for micro in ours] != [len(micro) for micro in theirs]:
        return False
    return all(
        x.keys() == y.keys() and all(_near(x[name], y[name], limit) for name in x)
        for own, other in zip(ours, theirs, strict=True)
        for x, y in zip(own, other, strict=True)
    )


def _near(a: Any, b: Any, limit: float) -> bool:
    if not limit or a.shape != b.shape or a.dtype.kind in "biu":
        return np.array_equal(a, b)
    difference = float(np.linalg.norm(np.float64(a) - np.float64(b)))
    return difference <= limit * float(np.linalg.norm(np.float64(a)))


def _run(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    options: TrainOptions,
    work: Path,
    ports: bool,
    name: str,
    known: Sequence[tuple[str, Any]],
    others: Sequence[LossSlice],
) -> dict[str, Any]:
    """Run the script: record the first updates, and port the loss in the script's process."""
    loop = events.backward[loop_level(script, events.backward)]
    question = {
        "slice": [loss.frame.function, loss.frame.first],
        "line": loss.line,
        "lines": [*loss.lines, *((line, line) for line in events.backwards)],
        "free": loss.free,
        "selected": loss.selected,
        "text": loss.text,
        "positions": [script.at(line) for line in loss.text_lines],
        "result": loss.result,
        "loop": [loop.function, loop.first],
        "statements": tuple(loop_statements(script, loop)),
        "passed": _passed(script, events),
        "batches": script_loop(script, events),
        "ends": loop_ends(script, loop),
        "updates": options.updates,
        "backwards": events.backwards,
        "statements_of_loss": loss.lines,
        "drawn": loss.drawn,
        "clips": events.clips,
        "optimizer": events.optimizer,
        "others": events.others,
        "handed": events.handed,
        "name": name,
        "known": known,
        "losses": [(own.frame.function, own.frame.first, own.lines) for own in (loss, *others)],
        "steps": [step[0].line for step in events.steps],
        "reads": read_names(script, loss, events.backward),
        "rate": (rate := rate_function(script, events.backward)),
        "setters": [] if rate else rate_setters(script, events.backward),
        "callees": [] if rate else callees(script, events.backward),
        "file": script.name,
        "shown": script.at(loss.frame.line),
        "ports": ports,
    }
    (work / QUESTION).write_text(json.dumps(question))
    recorded = _recorded(script, options, work)
    if "refused" in recorded:
        return recorded
    count = len(recorded["updates"])
    if recorded.get("failed") and count < options.updates:
        raise TrainError(
            f"{script.name}: fails after {many(count, 'update')} ({recorded['failed'][:200]})",
            "check that it runs on a CPU alone; arguments of the script go after --",
        )
    if not recorded["updates"]:
        raise TrainError(
            f"{script.at(loss.frame.line)}: the script ended before its first update",
            "pass arguments with which it trains longer",
        )
    if ports and not (work / PORT).exists():
        failed = str(recorded.get("failed") or "it ended by itself")[:300]
        raise TrainError(
            f"{script.at(loss.line)}: the loss is not ported ({failed})",
            "report this with the script; an error of the script itself is in --debug",
        )
    return recorded


def _passed(script: ScriptText, events: TrainingCalls) -> list[tuple[str, int, int]]:
    """Statements around the training step: function, first line of the function, line of the statement."""
    return [
        (frame.function, frame.first, line)
        for frame, body in step_statements(script, events.backward)
        for line in sorted({first_line(s) for outer in body for s in every_statement(outer)})
    ]


_WITHOUT_AUTOCAST = (
    "autocast is off while script and program are compared: keep weights and inputs in one dtype, or cast "
    "them where they meet; check that it runs on a CPU alone"
)


def _has_autocast(script: ScriptText) -> bool:
    """Whether a script names autocast: its first run, which had it, did not fail."""
    return any(
        "autocast" in (getattr(node, "attr", ""), getattr(node, "id", ""))
        for node in ast.walk(script.tree)
    )


def _recorded(script: ScriptText, options: TrainOptions, work: Path) -> dict[str, Any]:
    """Run the script as the question in a folder says, and return its record."""
    run_script(
        options.script,
        options.args,
        "migrate.train.watch.recorder:install",
        work,
        "record.pickle",
        options.timeout,
        own_source(script),
        **({"failed": _WITHOUT_AUTOCAST} if _has_autocast(script) else {}),
    )
    recorded: dict[str, Any] = pickle.loads((work / "record.pickle").read_bytes())
    return recorded
