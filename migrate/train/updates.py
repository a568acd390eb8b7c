"""A script with several optimizers: each has an update of its own, with a loss that it differentiates.

A step of a GAN, or of an actor and a critic, is a sequence of such updates. Each is recorded in a run of its
own, and sees the weights that the updates before it left.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from converters.conversion import convert
from converters.kept import kept_path
from migrate.port.folder import record, writing
from migrate.port.pipeline import formatted
from migrate.port.weights import MAPPING, PARAMS
from migrate.progress import Progress
from migrate.train.data_file import write_data
from migrate.train.errors import TrainError
from migrate.train.find import Updates, update_names
from migrate.train.interface_file import found_outputs, tops_of
from migrate.train.notes import program_notes
from migrate.train.optimizer_source import optimizer_source
from migrate.train.options import TrainOptions
from migrate.train.program_facts import program_facts, require_plain_weights
from migrate.train.proof.interface import names_compared, search_compared
from migrate.train.proof.program import RECORD, compared_updates, written_start
from migrate.train.proof.stability import cancellation
from migrate.train.record import WIDE, recorded_run, run_wide, wide_folder
from migrate.train.results import TrainComparison, TrainedProgram
from migrate.train.scores import require_scores
from migrate.train.slice.data import DataSlice, batch_of, batches_slice
from migrate.train.slice.forwards import ForwardOf, find_forward
from migrate.train.slice.loops import TrainingCalls
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.watch.forwards import ForwardCall
from migrate.train.watch.runner import PORT
from migrate.train.watch.step import class_name
from migrate.train.write.collectives import collective_notes
from migrate.train.write.interface import KEPT
from migrate.train.write.left import left_statements, weight_notes
from migrate.train.write.readme import readme_text
from migrate.train.write.roles import training_roles
from migrate.train.write.split import functions_class, split
from migrate.train.write.texts import (
    OF_ROLLOUT,
    RECORDED,
    carried_files,
    carried_text,
    tidied,
    without_folder,
)
from migrate.train.write.updates import (
    ForwardFacts,
    UpdateFacts,
    apart,
    losses_text,
    model_text,
    optimizers_text,
    together,
    updates_test_text,
    updates_train_text,
)
from migrate.train.write.updates_interface import InterfaceFacts, updates_interface_text

NOTE = "the script has several optimizers: each update of train.py has its own loss, optimizer and count"


@dataclass(frozen=True)
class RecordedUpdate:
    """Record of one update.

    Attributes:
        name: its name.
        calls: where the script makes it.
        loss: the statements of its loss.
        recorded: the record.
        folder: the folder of the run.
    """

    name: str
    calls: TrainingCalls
    loss: LossSlice
    recorded: dict[str, Any]
    folder: Path


@dataclass(frozen=True)
class CarriedForward:
    """Call of a module outside of the updates that a program can have too.

    Attributes:
        of: where the script makes it.
        module: the module, as a child of the steps.
        port: file with its source; "" if it was not ported.
        calls: the calls before the last recorded update.
    """

    of: ForwardOf
    module: str
    port: str
    calls: Sequence[ForwardCall]


def record_updates(
    script: ScriptText,
    updates: Updates,
    options: TrainOptions,
    work: Path,
    progress: Progress,
    *,
    ports: bool = True,
) -> tuple[list[RecordedUpdate], dict[str, Any]]:
    """Record each update of a script, in a run for each.

    Returns:
        The updates, and the record of all of them in the order of the script, which is in `work` too.

    Raises:
        TrainError: one has a part that is supported with a single optimizer only.
    """
    parts: list[RecordedUpdate] = []
    known: list[tuple[str, Any]] = []
    every = replace(options, updates=options.updates * len(updates))
    for name, (calls, loss) in zip(update_names(script, updates), updates, strict=True):
        progress(f"running {script.name}: {name}")
        others = [other for _, other in updates if other is not loss]
        recorded, own_loss, folder = recorded_run(
            script, calls, loss, every, work, ports=ports, name=name, known=known, others=others
        )
        known += [entry for entry in recorded["marks"] if entry not in known]
        _require_plain(script, own_loss, recorded)
        parts.append(RecordedUpdate(name, calls, own_loss, recorded, folder))
    whole = _joined(script, parts)
    _write_record(work, whole, _forwards(script, parts))
    return parts, whole


def wide_updates(
    script: ScriptText,
    parts: Sequence[RecordedUpdate],
    whole: Mapping[str, Any],
    options: TrainOptions,
    work: Path,
) -> tuple[dict[str, Any], dict[str, Path], Path] | str:
    """Record all updates again in float64.

    Returns:
        The record, the folder of each update's own run, and the folder of the record; or why there is none.
    """
    own: list[RecordedUpdate] = []
    for part in parts:
        recorded = run_wide(script, part.recorded, options, part.folder)
        if isinstance(recorded, str):
            return f"{part.name}: {recorded}"
        own.append(replace(part, recorded=recorded, folder=wide_folder(part.recorded, part.folder)))
    try:
        wide = _joined(script, own)
    except TrainError as error:
        return str(error)
    names = {event["name"] for event in whole["events"]}
    forwards = [forward for forward in _forwards(script, own) if forward.of.name in names]
    for part, base in zip(own, parts, strict=True):
        part.recorded["moved"] = base.recorded["moved"]
    folder = work / WIDE
    folder.mkdir(exist_ok=True)
    _write_record(folder, wide, forwards)
    return wide, {part.name: part.folder for part in own}, folder


def _write_record(work: Path, whole: dict[str, Any], forwards: Sequence[CarriedForward]) -> None:
    """Write the record of all updates, with calls of modules between them in their order."""
    events = [((u["number"], 1, 0), u) for u in whole["updates"]]
    for forward in forwards:
        for call in forward.calls:
            entry = {"name": forward.of.name, "micro": [{"batch": dict(call.inputs), "loss": None}]}
            events.append(((call.after, 0, forward.of.frame.line), entry))
    whole["events"] = [entry for _, entry in sorted(events, key=lambda event: event[0])]
    (work / RECORD).write_bytes(pickle.dumps(whole))


def _forwards(script: ScriptText, parts: Sequence[RecordedUpdate]) -> list[CarriedForward]:
    """Calls of modules between the updates, each of one statement that `data.py` can have."""
    result: list[CarriedForward] = []
    names: dict[str, int] = {}
    lines: set[int] = set()
    for part in parts:
        for moved in part.recorded["moved"]:
            seen = moved.forwards
            if seen is None or not seen.calls or not moved.before or moved.line in lines:
                continue
            if moved.modules != (seen.module,) or moved.frame is None:
                continue
            position = moved.frame.function, moved.frame.first
            expressions = {
                places[seen.module]
                for other in parts
                if (places := other.recorded["places"].get(position, {})) and seen.module in places
            }
            count = names.get(seen.module, 0) + 1
            name = f"{seen.module}_forward" + (f"_{count}" if count > 1 else "")
            taken = [*seen.calls[0].inputs]
            of = find_forward(script, moved.frame, taken, expressions, part.loss, name)
            if of is not None:
                names[seen.module] = count
                lines.add(moved.line)
                result.append(CarriedForward(of, seen.module, seen.port, seen.calls))
    return result


def _cut(
    cut: Callable[..., DataSlice], forwards: Sequence[CarriedForward]
) -> tuple[Callable[..., DataSlice], DataSlice, Sequence[CarriedForward]]:
    """Cut the batches out of the script, with those calls of modules whose inputs depend on the data alone.

    With rollouts, `data.py` runs modules itself: such programs have no calls between their updates.

    Returns:
        The function that cuts them again, what it gives, and the calls.
    """
    if forwards:
        more = functools.partial(cut, forwards=[forward.of for forward in forwards])
        with contextlib.suppress(TrainError):
            plain = more()
            if not plain.rollouts:
                return more, plain, forwards
    return cut, cut(), ()


def _require_plain(script: ScriptText, loss: LossSlice, recorded: Mapping[str, Any]) -> None:
    where = script.at(loss.frame.line)
    if recorded["copies"] is not None:
        raise TrainError(
            f"{where}: frozen weights become copies of trained ones, beside a second optimizer",
            "copies are supported with one optimizer",
        )
    if recorded["scaled"]:
        raise TrainError(
            f"{script.at(recorded['scaled'])}: gradients are multiplied, beside a second optimizer",
            "scale the loss instead of its gradients",
        )


def _joined(script: ScriptText, parts: Sequence[RecordedUpdate]) -> dict[str, Any]:
    """Record of all updates, in the order in which the script makes them."""
    updates = [{**u, "name": part.name} for part in parts for u in part.recorded["updates"]]
    updates.sort(key=lambda update: update["number"])
    if [update["number"] for update in updates] != list(range(len(updates))):
        raise TrainError(
            f"{script.name}: an optimizer is stepped that the first updates do not reach",
            "pass arguments with which the first updates show all optimizers",
        )
    first = parts[0].recorded
    ended = all(part.recorded.get("ended") for part in parts)
    steps = max(part.recorded["steps"] for part in parts)
    return {
        "updates": updates,
        "parts": {part.name: part.recorded for part in parts},
        "wide": any(part.recorded["wide"] for part in parts),
        "ended": ended,
        "later": steps - len(updates) if ended else 0,
        "draws": first["draws"],
        "loops": first["loops"],
        "on_gpu": any(part.recorded["on_gpu"] for part in parts),
        "noise": any(part.recorded["noise"] for part in parts),
        "dropout": any(part.recorded["dropout"] for part in parts),
        "unseeded": any(part.recorded["unseeded"] for part in parts),
        "idle": list(dict.fromkeys(line for part in parts for line in part.recorded["idle"])),
    }


def write_updates(
    script: ScriptText,
    updates: Updates,
    options: TrainOptions,
    work: Path,
    command: str,
    progress: Progress,
) -> TrainedProgram:
    """Write a script with several optimizers as a JAX program, and compare the two.

    Raises:
        TrainError: the script has a part that cannot be written. Nothing is written.
    """
    where = script.at(updates[0][0].backward[0].line)
    for option, value in {
        "--global-mean": options.global_mean,
        "--batch-names": options.batch_names,
    }.items():
        if value:
            raise TrainError(
                f"{where}: the script has several optimizers; {option} needs one",
                "leave the option out",
            )
    parts, whole = record_updates(script, updates, options, work, progress)
    ported = [pickle.loads((part.folder / PORT).read_bytes()) for part in parts]
    facts = [
        _facts(script, parts[:n], part, *port)
        for n, (part, port) in enumerate(zip(parts, ported, strict=True))
    ]
    batches = [
        batch_of(
            script,
            part.calls,
            part.loss,
            tuple(dict.fromkeys(root for root, _ in fact.facts.inputs.values())),
            part.name,
            part.recorded["places"],
        )
        for part, fact in zip(parts, facts, strict=True)
    ]
    trained: dict[tuple[str, int], list[str]] = {}
    for part in parts:
        for position, names in part.recorded["trained"].items():
            trained.setdefault(position, []).extend(names)
    whole_cut = functools.partial(batches_slice, script, batches, trained=trained)
    ported_forwards = [forward for forward in _forwards(script, parts) if forward.port]
    cut, plain, carried = _cut(whole_cut, ported_forwards)
    _write_record(work, whole, carried)
    lines = {forward.of.frame.line for forward in carried}
    for part in parts:
        part.recorded["moved"] = [m for m in part.recorded["moved"] if m.line not in lines]
    facts, forwards = apart(facts, [_forward_facts(script, forward) for forward in carried])
    sources = [fact.sources for fact in facts] + [call.sources for call in forwards]
    configs = [fact.config for fact in facts] + [call.config for call in forwards]
    if plain.rollouts and whole["unseeded"]:
        raise TrainError(
            f"{script.at(plain.loop.line)}: the loop runs what it trains, but torch is not seeded: the "
            "modules of data.py would start from other weights than the program",
            "call torch.manual_seed before the model is built",
        )
    name = options.script.name
    with writing(options.output) as place:
        progress("writing the program")
        files = {
            "model.py": model_text(configs, [source.model for source in sources]),
            "loss.py": losses_text(facts, forwards, name),
            "optimizer.py": optimizers_text(facts, name),
            "train.py": updates_train_text(
                facts, forwards, name, rollouts=plain.rollouts, starts=plain.starts
            ),
            "test_same.py": updates_test_text(facts, forwards, name, len(whole["updates"])),
            **{n: carried_text(n) for n in carried_files(rollouts=plain.rollouts)},
            **({OF_ROLLOUT: carried_text(OF_ROLLOUT)} if plain.starts else {}),
        }
        if functions := [source.functions for source in sources if source.functions]:
            files["functions.py"] = together(functions)
        for file, source in files.items():
            (place / file).write_text(source)
        _write_weights(place, parts, ported, work)
        _write_recorded(place / RECORDED, whole, facts, forwards)
        progress("comparing: data")
        data, of_data = write_data(
            script, parts[0].calls, cut, plain, whole, options, place, work, called=True
        )
        if options.scores:
            if not plain.starts:
                raise TrainError(
                    f"--scores {options.scores}: the loop at {script.at(plain.loop.line)} has no rollouts "
                    "that start from the program's weights",
                    "leave the option out",
                )
            require_scores(options.scores, place, work, options.timeout)
        progress("writing interface.py")
        interface = updates_interface_text(
            script,
            [
                _interface_facts(script, part, weights, fact, options, place)
                for part, (_, weights), fact in zip(parts, ported, facts, strict=True)
            ],
            {file: (place / file).read_text() for file in ("data.py", "model.py")},
            replace(
                facts[0].facts,
                rollouts=plain.rollouts,
                starts=plain.starts,
                scores=options.scores,
            ),
        )
        (place / "interface.py").write_text(interface.text)
        notes = [NOTE]
        for part, (port, _), fact in zip(parts, ported, facts, strict=True):
            own = program_notes(part.recorded, port, replace(fact.facts, rollouts=plain.rollouts))
            notes += [*own, *fact.optimizer.notes]
        notes = list(dict.fromkeys((*notes, *tidied(place, options), *formatted(place))))
        comparisons: tuple[TrainComparison, ...] = ()
        error = ""
        if options.proof:
            progress("comparing: gradients, losses, weights")
            folders = {part.name: part.folder for part in parts}
            in_float64 = functools.partial(wide_updates, script, parts, whole, options, work)
            comparisons, error = compared_updates(
                place, whole, folders, work, options.timeout, in_float64
            )
            error = error.replace(str(place), str(options.output))
            for part in parts:
                comparisons += cancellation(part.recorded, part.name)
            comparisons += (of_data, *names_compared(script, interface.text))
            comparisons += search_compared(interface)
        elif not of_data.same:
            notes.append(f"the data differ from the script's: {of_data.what}")
        left = _left(script, parts, data, lines)
        count = len(whole["updates"])
        for part in parts:
            notes += collective_notes(script, part.loss.lines, notes)
            notes += weight_notes(script, left, part.recorded["children"], count)
        notes = list(dict.fromkeys(notes))
        result = TrainedProgram(
            options.output, (), options.script, comparisons, left, tuple(notes), error
        )
        first = parts[0]
        recorded = {
            **first.recorded,
            "updates": whole["updates"],
            "children": {k: v for p in parts for k, v in p.recorded["children"].items()},
        }
        page = readme_text(
            result,
            script,
            facts[0].facts,
            data,
            first.loss,
            recorded,
            command,
            interface,
        )
        (place / "README.md").write_text(without_folder(page, options.script, options.output))
        written = record(place, str(options.script))
    return replace(result, files=written)


def _trained(part: RecordedUpdate, weights: Any) -> list[str]:
    """Names of the parameters that an update trains, as torch has them."""
    recorded = part.recorded
    apart = {*recorded["tied"], *recorded["others"]}
    return [
        name
        for name in recorded["gradients"]
        if name not in apart and not set(weights.paths[name]) & set(weights.frozen)
    ]


def _facts(
    script: ScriptText,
    before: Sequence[RecordedUpdate],
    part: RecordedUpdate,
    port: Any,
    weights: Any,
) -> UpdateFacts:
    """Facts of one update's step, with what cannot be written."""
    require_plain_weights(script, part.loss, weights.by_mapping, part.folder / "weights" / MAPPING)
    facts = program_facts(script, part.loss, part.recorded, port, weights)
    modules = tuple(part.recorded["children"])
    optimizer = optimizer_source(script, part.recorded, weights, part.folder)
    methods = {function.method for function in part.recorded["functions"]}
    sources = split(port.modeling, script.name, methods, class_name(part.name))
    seen = _seen(script, before, part) if facts.statistics and facts.training else ()
    return UpdateFacts(part.name, facts, optimizer, sources, port.config, modules, seen)


def _interface_facts(
    script: ScriptText,
    part: RecordedUpdate,
    weights: Any,
    fact: UpdateFacts,
    options: TrainOptions,
    place: Path,
) -> InterfaceFacts:
    """Facts of one update's interface: where the program has its outputs, and its functions."""
    recorded = part.recorded
    # Parameters of other optimizers are frozen in this update, but the script's modules are trained.
    learning = [
        name
        for name in recorded["gradients"]
        if name not in recorded["tied"]
        and (name in recorded["others"] or not set(weights.paths[name]) & set(weights.frozen))
    ]
    tops = sorted({path.split("/")[1] for name in learning for path in weights.paths[name]})
    title = class_name(part.name)
    outputs, failed, differs = found_outputs(
        fact.facts,
        recorded,
        tops,
        options,
        place,
        part.folder,
        f"{part.name.upper()}_STEP",
        functions_class(title),
        written_start(place, recorded, part.folder),
    )
    return InterfaceFacts(
        fact,
        part.loss,
        recorded,
        _trained(part, weights),
        training_roles(script, part.calls, recorded),
        outputs,
        failed,
        differs,
        tops_of(weights),
    )


def _forward_facts(script: ScriptText, forward: CarriedForward) -> ForwardFacts:
    """Facts of a call of a module between the updates."""
    port = pickle.loads(Path(forward.port).read_bytes())
    name, line = forward.of.name, forward.of.frame.line
    title = port.model_class
    where = f"{script.at(line)}: {script.lines[line - 1].strip()}"
    sources = split(port.modeling, script.name, (), title)
    return ForwardFacts(
        name, where, tuple(forward.of.values), sources, port.config, (forward.module,), title
    )


def _seen(
    script: ScriptText, before: Sequence[RecordedUpdate], part: RecordedUpdate
) -> tuple[str, ...]:
    """Modules that the loss runs in statements that the loss of an earlier update has too.

    The script runs these statements once, and so counts their batch in its statistics once.

    Raises:
        TrainError: the loss runs such a module in statements of its own, too.
    """
    position = part.loss.frame.function, part.loss.frame.first
    lines = {
        span
        for other in before
        if (other.loss.frame.function, other.loss.frame.first) == position
        for span in other.loss.lines
    }
    shared = [span for span in part.loss.lines if span in lines]
    own = [span for span in part.loss.lines if span not in lines]
    modules = part.recorded["called"]

    def run(spans: Sequence[tuple[int, int]]) -> set[str]:
        return {m for m, at in modules if any(first <= at <= last for first, last in spans)}

    both = run(shared) & run(own)
    if both:
        raise TrainError(
            f"{script.at(part.loss.frame.line)}: {min(both)} runs in statements of two losses, and in others",
            "compute what both losses read by modules that the later one does not run again",
        )
    return tuple(sorted(run(shared)))


def _write_weights(
    place: Path, parts: Sequence[RecordedUpdate], ported: Sequence[Any], work: Path
) -> None:
    """Write the weights of all updates, and the mapping of torch's names; of a module the earliest."""
    from safetensors.numpy import load_file, save_file

    arrays: dict[str, Any] = {}
    state: dict[str, Any] = {}
    rules: list[Any] = []
    head: dict[str, Any] = {}
    for part in parts:
        folder = part.folder / "weights"
        arrays = {**load_file(folder / PARAMS), **arrays}
        state = {**part.recorded["state"], **state}
        head = yaml.safe_load((folder / MAPPING).read_text())
        rules += [rule for rule in head["rules"] if rule not in rules]
    save_file(arrays, place / PARAMS)
    (place / MAPPING).write_text(yaml.safe_dump({**head, "rules": rules}, sort_keys=False))
    source, target = work / "every.pt", work / PARAMS
    torch.save(state, source)
    convert(source, mapping=place / MAPPING, output=target, overwrite=True)
    (place / KEPT).write_bytes(kept_path(target).read_bytes())


def _write_recorded(
    file: Path,
    whole: Mapping[str, Any],
    facts: Sequence[UpdateFacts],
    forwards: Sequence[ForwardFacts],
) -> None:
    """Write batches and losses of the recorded updates, for the program's test."""
    inputs = {fact.name: fact.facts.inputs for fact in facts}
    calls = {forward.name for forward in forwards}
    arrays: dict[str, Any] = {"updates": np.array(len(whole["events"]))}
    for number, event in enumerate(whole["events"]):
        name, micro = event["name"], event["micro"]
        losses = [] if name in calls else [batch["loss"] for batch in micro]
        arrays[f"{number}/name"] = np.array(name)
        arrays[f"{number}/micro"] = np.array(len(micro))
        arrays[f"{number}/losses"] = np.array(losses)
        for position, batch in enumerate(micro):
            values = batch["batch"] if name in calls else batch["inputs"]
            for key in values if name in calls else inputs[name]:
                arrays[f"{number}/{position}/{key}"] = values[key]
    np.savez_compressed(file, **arrays)


def _left(
    script: ScriptText, parts: Sequence[RecordedUpdate], data: Any, carried: Collection[int]
) -> tuple[str, ...]:
    """Statements of the loops that no update and no batch has."""
    left: list[list[str]] = [
        left_statements(
            script,
            data,
            part.loss,
            part.calls,
            part.recorded["schedule_lines"],
            part.recorded["modes"],
        )
        for part in parts
    ]
    known = {
        line
        for part in parts
        for first, last in (*part.loss.lines, *((n, n) for n in part.calls.backwards))
        for line in range(first, last + 1)
    }
    known |= {frame.line for part in parts for step in part.calls.steps for frame in step}
    known |= set(carried)
    shown = {f"{script.at(line)}: " for line in known}
    every = dict.fromkeys(text for texts in left for text in texts)
    return tuple(t for t in every if not any(t.startswith(start) for start in shown))
