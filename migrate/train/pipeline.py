"""`migrate train`: read, run, bind, write and prove; refuses before anything is written."""

from __future__ import annotations

import ast
import functools
import pickle
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.kept import kept_path
from migrate.port.compiler import has_compiler
from migrate.port.errors import PortError
from migrate.port.folder import record, require_place, writing
from migrate.port.pipeline import formatted
from migrate.port.weights import MAPPING, PARAMS
from migrate.progress import Progress
from migrate.train.copied_weights import copied_weights
from migrate.train.data_file import write_data
from migrate.train.errors import TrainError
from migrate.train.evaluation import (
    Cutting,
    EvaluationError,
    Evaluations,
    evaluation_difference,
    evaluation_notes,
    evaluations_of,
    without_evaluations,
)
from migrate.train.factor import settled_factor, with_factor
from migrate.train.find import find_training, script_text
from migrate.train.interface_file import write_interface
from migrate.train.loop_log import has_one_micro_batch, loop_log
from migrate.train.means import global_mean, with_counts
from migrate.train.notes import program_notes
from migrate.train.optimizer.recorded import RecordedOptimizer
from migrate.train.optimizer_source import optimizer_source
from migrate.train.options import TrainOptions
from migrate.train.program_facts import names_of_batch, program_facts, require_plain_weights
from migrate.train.proof.child import EVALUATE
from migrate.train.proof.interface import names_compared, search_compared
from migrate.train.proof.program import compared, compared_in_float64, differs_in_float32
from migrate.train.proof.stability import cancellation, stability
from migrate.train.record import recorded_run, run_beside, run_wide, wide_folder
from migrate.train.refused import require_writable
from migrate.train.results import TrainComparison, TrainedProgram
from migrate.train.scores import require_scores
from migrate.train.slice.data import DataSlice, data_slice
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.updates import write_updates
from migrate.train.watch.runner import PORT
from migrate.train.watch.runs import environment_kept
from migrate.train.write.averages import average_lines
from migrate.train.write.batches import has_single_batches
from migrate.train.write.collectives import collective_notes
from migrate.train.write.evaluation import evaluation_text, with_imports
from migrate.train.write.functions import PART
from migrate.train.write.interface import KEPT
from migrate.train.write.left import left_statements, trains, weight_notes
from migrate.train.write.log import Log, log_of
from migrate.train.write.readme import readme_text
from migrate.train.write.renamed import with_script_names
from migrate.train.write.repeated import without_repeats
from migrate.train.write.roles import training_roles
from migrate.train.write.special import specialized
from migrate.train.write.split import split
from migrate.train.write.texts import (
    OF_ROLLOUT,
    RECORDED,
    ProgramFacts,
    carried_files,
    carried_text,
    loss_text,
    test_text,
    tidied,
    train_text,
    with_rate,
    without_folder,
)
from migrate.train.write.updates import model_text


@environment_kept()
def train_program(options: TrainOptions, command: str, progress: Progress) -> TrainedProgram:
    """Write a training script as a JAX program, and compare the program with the script.

    Args:
        options: what is asked.
        command: command that writes the program again, for its README.
        progress: receives the progress.

    Raises:
        TrainError: the script has a part that cannot be written, or does not run. Nothing is written.
        PortError: the folder cannot be written.
    """
    if not has_compiler():
        raise PortError("this installation has no compiler", "install the whole of tpu-migrate")
    script = options.script
    text = script_text(script)
    require_writable(text)
    require_place(options.output, options.force)
    with tempfile.TemporaryDirectory(prefix="migrate-train-") as scratch:
        work = Path(scratch)
        progress(f"running {script}: where it trains")
        text, updates = find_training(text, options, work)
        if len(updates) > 1:
            return write_updates(text, updates, options, work, command, progress)
        [(events, loss)] = updates
        progress(f"running {script}: {options.updates} updates")
        recorded, loss, work = recorded_run(text, events, loss, options, work)
        port, weights = pickle.loads((work / PORT).read_bytes())
        mapping = work / "weights" / MAPPING
        require_plain_weights(text, loss, weights.by_mapping, mapping)
        run = _Run(text, events, loss, recorded, port, weights, work)
        evaluations = evaluations_of(text, recorded, port.modeling, run.cutting())
        if evaluations.sites:
            try:
                return _write(run, evaluations, options, command, progress)
            except (EvaluationError, TrainError) as differs:  # without it, it may be written
                evaluations = without_evaluations(evaluations, str(differs))
        return _write(run, evaluations, options, command, progress)


@dataclass(frozen=True)
class _Run:
    """A recorded script, and the port of its loss."""

    text: ScriptText
    events: TrainingCalls
    loss: LossSlice
    recorded: dict[str, Any]
    port: Any
    weights: Any
    work: Path

    def cutting(self) -> Cutting:
        """Return what cuts the data of a script whose calls of the model evaluate."""
        keys = (self.recorded["inputs"][argument.name] for argument in self.port.inputs)
        names = tuple(dict.fromkeys(root for root, _ in keys))
        return lambda script, chains: functools.partial(
            data_slice,
            script,
            self.events,
            self.loss,
            names,
            trained=self.recorded["trained"],
            places=self.recorded["places"],
            evaluations=chains,
        )


def _write(
    run: _Run, evaluations: Evaluations, options: TrainOptions, command: str, progress: Progress
) -> TrainedProgram:
    """Write the program with these evaluations, and compare it.

    Raises:
        EvaluationError: the evaluations do not give what the script's give, or other batches follow them.
    """
    text, events, loss, recorded = run.text, run.events, run.loss, run.recorded
    port, weights, work = run.port, run.weights, run.work
    script, mapping = options.script, work / "weights" / MAPPING
    facts = program_facts(text, loss, recorded, port, weights)
    facts = replace(facts, **copied_weights(text.at(loss.frame.line), recorded, weights, mapping))
    optimizer = optimizer_source(text, recorded, weights, work)
    optimizer = with_script_names(optimizer, text, recorded["optimizer"])
    cut = evaluations.cut or run.cutting()(text, ())
    plain = evaluations.plain or cut()
    facts = replace(
        facts,
        rollouts=plain.rollouts,
        starts=plain.starts,
        scores=options.scores,
        evaluations=evaluations.sites,
    )
    facts = replace(facts, batch_names=names_of_batch(options.batch_names, facts, recorded))
    if options.global_mean:
        facts = with_counts(facts, port.modeling)
    facts = with_factor(facts, text, recorded, port.modeling)
    if options.scores and not facts.starts:
        raise TrainError(
            f"--scores {options.scores}: the loop at {text.at(plain.loop.line)} has no rollouts that "
            "start from the program's weights",
            "leave the option out",
        )
    if facts.rollouts and recorded["unseeded"]:
        raise TrainError(
            f"{text.at(plain.loop.line)}: the loop runs what it trains, but torch is not seeded: the "
            "modules of data.py would start from other weights than the program",
            "call torch.manual_seed before the model is built",
        )
    with writing(options.output) as place:
        progress("writing the program")
        methods = {function.method for function in recorded["functions"]}
        modeling = facts.counts.source if facts.counts else port.modeling
        ported = {site["label"] for site in recorded.get("evaluations", ())}
        sources = split(modeling, script.name, methods, evaluations=ported)
        own = {n.name for n in ast.walk(text.tree) if isinstance(n, ast.FunctionDef)}
        of_loss, of_functions, of_evaluations = specialized(
            [
                sources.loss,
                sources.functions,
                without_repeats(sources.evaluations, sources.loss),
            ],
            own,
        )
        files = {
            "model.py": model_text([port.config], [sources.model]),
            "loss.py": loss_text(of_loss, facts),
            "optimizer.py": with_rate(optimizer),
            "train.py": train_text(facts),
            "test_same.py": test_text(facts, len(recorded["updates"])),
            **{n: carried_text(n) for n in carried_files(rollouts=facts.rollouts)},
            **({"functions.py": of_functions} if sources.functions else {}),
            **({OF_ROLLOUT: carried_text(OF_ROLLOUT)} if facts.starts else {}),
        }
        for name, source in files.items():
            (place / name).write_text(source)
        for name in (PARAMS, MAPPING):
            (place / name).write_bytes((work / "weights" / name).read_bytes())
        (place / KEPT).write_bytes(kept_path(work / "weights" / PARAMS).read_bytes())
        facts = settled_factor(place, text, recorded, facts, options, work)
        (place / "train.py").write_text(train_text(facts))
        expected = recorded
        of_means: tuple[TrainComparison, ...] = ()
        if facts.counted:
            progress(f"running {script}: with the mean over all elements")
            expected, of_mean = global_mean(place, text, recorded, options, work)
            of_means = (of_mean,)
        if evaluations.sites:
            progress("comparing: evaluation")
            source = with_imports(
                evaluation_text(of_evaluations, evaluations.sites, facts.statistics)
            )
            (place / EVALUATE).write_text(source)
            differs = evaluation_difference(
                place, recorded, evaluations.sites, work, options.timeout
            )
            if differs:
                raise EvaluationError(differs)
        _write_recorded(place / RECORDED, expected, facts)
        progress("comparing: data")
        roles = training_roles(text, events, recorded)
        called = any(role.kind == PART for role in roles.values())

        def with_data(
            cut: Callable[..., DataSlice], plain: DataSlice, logged: Sequence[str] = ()
        ) -> tuple[DataSlice, TrainComparison]:
            return write_data(
                text,
                events,
                cut,
                plain,
                recorded,
                options,
                place,
                work,
                called=called,
                evaluations=evaluations.sites,
                logged=logged,
            )

        averaged = average_lines(text, recorded.get("average"))
        elsewhere = {*recorded["schedule_lines"], *recorded["modes"], *averaged, *trains(events)}
        norms = _norms(recorded["optimizer"])

        def log_of_update(data: DataSlice, *, single: bool) -> Log | None:
            known = {*data.kept, *elsewhere}
            return log_of(text, events, loss, known, norms, single=single)

        reports = not facts.rollouts and not facts.counted
        in_loop = None
        if reports and not log_of_update(plain, single=has_one_micro_batch(text, events)):
            in_loop = loop_log(text, events, loss, recorded, cut, plain, norms)
        if in_loop is not None:
            data, of_data = with_data(in_loop.cut, in_loop.data, in_loop.values)
            in_loop = in_loop if of_data.same else None
        if in_loop is None:
            data, of_data = with_data(cut, plain)
        if evaluations.sites and not of_data.same:
            raise EvaluationError(f"with it, the data differ: {of_data.what}")
        single = not called and has_single_batches((place / "data.py").read_text())
        facts = replace(facts, single=single and not facts.rollouts)
        if in_loop is not None:
            lines = tuple(sorted(in_loop.lines))
            facts = replace(facts, logged=in_loop.values, logged_lines=lines)
        elif reports:
            facts = replace(facts, log=log_of_update(data, single=facts.single))
        (place / "train.py").write_text(train_text(facts))
        if facts.scores:
            require_scores(facts.scores, place, work, options.timeout)
        interface = write_interface(
            text, loss, facts, recorded, weights, options, place, work, roles
        )
        left = left_statements(
            text,
            data,
            loss,
            events,
            recorded["schedule_lines"],
            {*recorded["modes"], *averaged, *(facts.log.lines if facts.log else ())},
            scaled=facts.scaled is not None,
        )
        notes = [
            *evaluation_notes(text, evaluations, data.kept),
            *program_notes(recorded, port, facts, left),
            *collective_notes(text, loss.lines, port.notes),
            *weight_notes(text, left, recorded["children"], len(recorded["updates"])),
            *optimizer.notes,
            *tidied(place, options),
            *formatted(place),
        ]
        comparisons: tuple[TrainComparison, ...] = ()
        error = ""
        if options.proof:
            progress("comparing: gradients, losses, weights")
            comparisons, error = compared(place, expected, work, options.timeout)
            if differs_in_float32(comparisons):
                progress("comparing: gradients, losses, weights in float64")
                wide = run_wide(text, expected, options, work)
                folder = wide_folder(expected, work)
                comparisons = compared_in_float64(comparisons, place, wide, folder, options.timeout)
            comparisons = (*of_means, *comparisons, *cancellation(recorded))
            error = error.replace(str(place), str(options.output))
            if not facts.rollouts:
                progress(f"running {script}: from weights a rounding away")
                comparisons += stability(run_beside(text, recorded, options, work))
            comparisons += (of_data, *names_compared(text, interface.text))
            comparisons += search_compared(interface)
        elif not of_data.same:
            notes.append(f"the data differ from the script's: {of_data.what}")
        result = TrainedProgram(
            options.output, (), script, comparisons, tuple(left), tuple(notes), error
        )
        page = readme_text(result, text, facts, data, loss, recorded, command, interface)
        (place / "README.md").write_text(without_folder(page, script, options.output))
        written = record(place, str(script))
    return TrainedProgram(
        options.output, written, script, comparisons, tuple(left), tuple(notes), error
    )


def _norms(optimizer: RecordedOptimizer) -> set[int]:
    """Lines whose clipping gives the norm of all gradients of the optimizer."""
    held = {name for group in optimizer.groups for name in group.names}
    trained = held - {*optimizer.without_gradient}
    clips = [clip for clip in optimizer.clips if clip.kind == "norm" and clip.norm_type == 2.0]
    return {clip.line for clip in clips if clip.names is None or trained <= {*clip.names}}


def _write_recorded(file: Path, recorded: Mapping[str, Any], facts: ProgramFacts) -> None:
    """Write batches and losses of the recorded updates, for the program's test."""
    arrays: dict[str, Any] = {
        "updates": np.array(len(recorded["updates"])),
        "rates": np.array([rates[0] for rates in recorded["optimizer"].rates]),
    }
    for number, update in enumerate(recorded["updates"]):
        arrays[f"{number}/micro"] = np.array(len(update["micro"]))
        arrays[f"{number}/losses"] = np.array([micro["loss"] for micro in update["micro"]])
        for position, micro in enumerate(update["micro"]):
            for name in facts.inputs:
                arrays[f"{number}/{position}/{name}"] = micro["inputs"][name]
    np.savez_compressed(file, **arrays)
