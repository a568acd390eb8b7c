"""Run a script: record its first updates, and run it again from weights a rounding away."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from migrate.counts import many
from migrate.train.errors import TrainError
from migrate.train.find import own_source, script_loop
from migrate.train.options import TrainOptions
from migrate.train.proof.stability import STABLE, moved
from migrate.train.slice.data import (
    TrainingCalls,
    loop_level,
    loop_statements,
)
from migrate.train.slice.loss import LossSlice, loss_slice
from migrate.train.slice.rate import rate_function
from migrate.train.slice.reads import read_names
from migrate.train.slice.text import ScriptText
from migrate.train.watch.runner import ECHO, QUESTION
from migrate.train.watch.runs import run_script


def recorded_run(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    options: TrainOptions,
    work: Path,
    *,
    ports: bool = True,
) -> tuple[dict[str, Any], LossSlice, Path]:
    """Record the first updates; what is computed from numbers that change between steps becomes data.

    Without `ports` the loss is not ported: known mistakes are made in it instead.

    Returns:
        The record, the statements of the loss that are left, and the folder of the run.
    """
    changing: set[str] = set()
    refused: tuple[int, str, str] | None = None
    while True:
        folder = work / f"run-{len(changing)}"
        folder.mkdir()
        recorded = _run(script, events, loss, options, folder, ports)
        if "refused" not in recorded:
            return recorded, loss, folder
        refused = refused or recorded["refused"]  # the first one names what changes
        line, what, remedy = refused
        more = set(recorded["changing"]) - changing
        changing |= more
        shorter = loss_slice(script, events.backward[0], changing)
        if not more or set(shorter.free) & changing:
            raise TrainError(f"{script.at(line)}: {what}", remedy or "report this with the script")
        loss = shorter


def run_beside(
    script: ScriptText, recorded: Mapping[str, Any], options: TrainOptions, folder: Path
) -> tuple[float, int | None, int] | str:
    """Run the script again from weights that are a rounding away.

    Returns:
        How far its losses move, the first update in which they move by more than the limit, and the number of
        updates; or why this is not known.
    """
    losses = [[micro["loss"] for micro in update["micro"]] for update in recorded["updates"]]
    losses += recorded["later_losses"]
    question = json.loads((folder / QUESTION).read_text()) | {"echo": len(losses)}
    (folder / QUESTION).write_text(json.dumps(question))
    plugin = "migrate.train.watch.echo:install"
    try:
        run_script(
            options.script, options.args, plugin, folder, ECHO, options.timeout, own_source(script)
        )
    except TrainError as failed:
        return str(failed)
    echo = json.loads((folder / ECHO).read_text())
    return *moved(losses, echo, STABLE, recorded["size_of_terms"]), min(len(losses), len(echo))


def _run(
    script: ScriptText,
    events: TrainingCalls,
    loss: LossSlice,
    options: TrainOptions,
    work: Path,
    ports: bool,
) -> dict[str, Any]:
    """Run the script: record the first updates, and port the loss in the script's process."""
    loop = events.backward[loop_level(script, events.backward)]
    question = {
        "slice": [loss.frame.function, loss.frame.first],
        "line": loss.line,
        "free": loss.free,
        "text": loss.text,
        "result": loss.result,
        "loop": [loop.function, loop.first],
        "statements": tuple(loop_statements(script, loop)),
        "batches": script_loop(script, events),
        "updates": options.updates,
        "line_of_backward": loss.frame.line,
        "steps": [step[0].line for step in events.steps],
        "reads": read_names(script, loss),
        "rate": rate_function(script, events.backward),
        "file": script.name,
        "shown": script.at(loss.frame.line),
        "ports": ports,
    }
    (work / QUESTION).write_text(json.dumps(question))
    run_script(
        options.script,
        options.args,
        "migrate.train.watch.recorder:install",
        work,
        "record.pickle",
        options.timeout,
        own_source(script),
    )
    recorded: dict[str, Any] = pickle.loads((work / "record.pickle").read_bytes())
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
    return recorded
