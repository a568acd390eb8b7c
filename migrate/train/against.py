"""`migrate prove SCRIPT --against FOLDER`: a program of `migrate train`, as it is now, beside its script."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from converters.errors import ConversionError
from migrate.counts import many
from migrate.port.weights import MAPPING, PARAMS
from migrate.progress import Progress
from migrate.train.errors import TrainError
from migrate.train.find import find_training, script_text
from migrate.train.means import global_mean
from migrate.train.notes import idle_notes
from migrate.train.options import TrainOptions
from migrate.train.proof.interface import interface_comparisons
from migrate.train.proof.program import (
    compared,
    compared_in_float64,
    compared_updates,
    data_difference,
    data_equal,
    differs_in_float32,
)
from migrate.train.proof.stability import cancellation, stability
from migrate.train.record import recorded_run, run_beside, run_wide, wide_folder
from migrate.train.results import STAGES, ProgramProof, TrainComparison
from migrate.train.slice.text import ScriptText
from migrate.train.updates import RecordedUpdate, record_updates, wide_updates
from migrate.train.watch.runs import environment_kept
from migrate.train.watch.seeds import UNSEEDED
from migrate.train.write.means import has_global_mean
from migrate.train.write.texts import has_rollouts

# Files without which a folder is no program of `migrate train`.
_FILES = ("train.py", "loss.py", "optimizer.py", "data.py", PARAMS, MAPPING)


@dataclass(frozen=True)
class RecordedScript:
    """A script's own run, for comparisons with any number of programs.

    Attributes:
        text: the script, with the loops around its training step.
        options: script, its arguments, seconds for one run.
        recorded: the record.
        folder: the folder that has its files.
        parts: the updates, if there are several.
    """

    text: ScriptText
    options: TrainOptions
    recorded: Mapping[str, Any]
    folder: Path
    parts: Sequence[RecordedUpdate] = ()

    @cached_property
    def stability(self) -> tuple[TrainComparison, ...]:
        """The script beside itself; it runs once more when this is first read."""
        return stability(run_beside(self.text, self.recorded, self.options, self.folder))

    @cached_property
    def wide(self) -> dict[str, Any] | str:
        """The record of the script in float64, or why there is none; it runs when this is first read."""
        return run_wide(self.text, self.recorded, self.options, self.folder)

    @cached_property
    def wide_updates(self) -> tuple[dict[str, Any], dict[str, Path], Path] | str:
        """Record of several updates in float64, with its folders; the script runs when this is first read."""
        return wide_updates(self.text, self.parts, self.recorded, self.options, self.folder)


@environment_kept()
def prove_program(options: TrainOptions, progress: Progress) -> ProgramProof:
    """Run a script, and compare the program in `options.output` with it.

    Args:
        options: script, its arguments, folder of the program, number of updates, seconds.
        progress: receives the progress.

    Raises:
        TrainError: the folder is no program, or the script does not train where this command looks.
    """
    require_program(options.output)
    with tempfile.TemporaryDirectory(prefix="migrate-train-") as scratch:
        run = record_script(options, Path(scratch), progress)
        progress("comparing: gradients, losses, weights, data")
        return compare_program(options.output, run)


def require_program(folder: Path) -> None:
    """Require a folder of `migrate train`.

    Raises:
        TrainError: a file is missing.
    """
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise TrainError(
            f"{folder}: is no program of migrate train: {missing[0]} is missing",
            "name a folder that `migrate train` wrote, or a file of `migrate prove --record`",
        )


def record_script(options: TrainOptions, work: Path, progress: Progress) -> RecordedScript:
    """Run a script twice: where it trains, and its first updates. Its loss is not ported."""
    text = script_text(options.script)
    progress(f"running {options.script}: where it trains")
    text, updates = find_training(text, options, work)
    if len(updates) > 1:
        parts, whole = record_updates(text, updates, options, work, progress, ports=False)
        return RecordedScript(text, options, whole, work, parts)
    [(events, loss)] = updates
    progress(f"running {options.script}: {many(options.updates, 'update')}")
    recorded, _, folder = recorded_run(text, events, loss, options, work, ports=False)
    return RecordedScript(text, options, recorded, folder)


def compare_program(folder: Path, run: RecordedScript) -> ProgramProof:
    """Compare a program with its recorded script."""
    updates = len(run.recorded["updates"])
    try:
        if run.parts:
            compared_values, error = compared_updates(
                folder,
                run.recorded,
                {part.name: part.folder for part in run.parts},
                run.folder,
                run.options.timeout,
                lambda: run.wide_updates,
            )
            of_interface = interface_comparisons(
                folder, run.text, run.recorded, run.folder, run.options.timeout
            )
            return _proof(folder, run, [*of_interface, *compared_values], error)
        expected = run.recorded
        of_means: tuple[TrainComparison, ...] = ()
        if has_global_mean((folder / "train.py").read_text()):
            options = replace(run.options, output=folder)
            expected, of_mean = global_mean(folder, run.text, run.recorded, options, run.folder)
            of_means = (of_mean,)
        compared_values, error = compared(folder, expected, run.folder, run.options.timeout)
        if differs_in_float32(compared_values):
            wide = (
                run.wide
                if expected is run.recorded
                else run_wide(run.text, expected, run.options, run.folder)
            )
            compared_values = compared_in_float64(
                compared_values,
                folder,
                wide,
                wide_folder(expected, run.folder),
                run.options.timeout,
            )
    except ConversionError as other:
        what = str(getattr(other, "what", other))
        error = f"the script's parameters are not those of {MAPPING}: {what}"
        return ProgramProof(folder, run.options.script, updates, error=error)
    comparisons = [
        *interface_comparisons(folder, run.text, run.recorded, run.folder, run.options.timeout),
        *compared_values,
        *of_means,
    ]
    return _proof(folder, run, comparisons, error)


def _proof(
    folder: Path, run: RecordedScript, comparisons: list[TrainComparison], error: str
) -> ProgramProof:
    """The proof with its last comparison, that of the data, which needs a program that runs."""
    updates = len(run.recorded["updates"])
    if not error:
        difference, cause = data_difference(folder, run.folder, run.options.timeout)
        rollouts = has_rollouts((folder / "data.py").read_text())
        equal = data_equal(rollouts)
        comparisons += () if rollouts or run.parts else run.stability
        for name, part in (run.recorded.get("parts") or {"": run.recorded}).items():
            comparisons += cancellation(part, name)
        what = difference or f"{many(updates, 'update')}, {equal}"
        comparisons.append(TrainComparison("data", not difference, what=what, cause=cause))
    order = [name for names in STAGES.values() for name in names]
    comparisons.sort(key=lambda comparison: order.index(comparison.name))
    notes = [UNSEEDED] if run.recorded["unseeded"] else []
    notes += idle_notes(run.recorded)
    notes += ["dropout was off on both sides"] if run.recorded["dropout"] else []
    notes += ["both sides drew the same random numbers"] if run.recorded["noise"] else []
    return ProgramProof(
        folder, run.options.script, updates, tuple(comparisons), error, tuple(notes)
    )
