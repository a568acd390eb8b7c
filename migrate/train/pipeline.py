"""`migrate train`: read, run, bind, write and prove; refuses before anything is written."""

from __future__ import annotations

import ast
import functools
import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from converters.kept import kept_path
from converters.layers.layout import Chain, Layout, Plus
from converters.mapping.file import load_mapping
from migrate import process
from migrate.catalogue.words import RANKS
from migrate.counts import many
from migrate.model.calls.rank_tests import last_part
from migrate.port.compiler import has_compiler
from migrate.port.errors import PortError
from migrate.port.folder import record, require_place, writing
from migrate.port.pipeline import formatted
from migrate.port.weights import MAPPING, PARAMS
from migrate.progress import Progress
from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.optimizer.recorded import ParameterArray
from migrate.train.optimizer.write import write_optimizer
from migrate.train.proof.program import child, compared, data_difference, data_equal
from migrate.train.proof.stability import STABLE, moved, stability
from migrate.train.results import TrainComparison, TrainedProgram
from migrate.train.slice.data import (
    DataSlice,
    TrainingCalls,
    batch_loop,
    data_slice,
    loop_level,
    loop_statements,
)
from migrate.train.slice.loss import LossSlice, loss_slice
from migrate.train.slice.merged import MergedText, merged
from migrate.train.slice.rate import _is_rate, rate_function
from migrate.train.slice.reads import read_names
from migrate.train.slice.text import ScriptText, comprehension, path_to, shared_line
from migrate.train.watch.listening import BACKWARD, CLIP, SCHEDULE, STEP, ZERO
from migrate.train.watch.runner import ECHO, QUESTION
from migrate.train.watch.runs import run_script
from migrate.train.watch.seeds import UNSEEDED
from migrate.train.write.functions import Role
from migrate.train.write.interface import KEPT, Interface, interface_text
from migrate.train.write.left import left_statements
from migrate.train.write.readme import readme_text
from migrate.train.write.roles import training_roles
from migrate.train.write.shadow import guarded, hidden_modules
from migrate.train.write.split import split
from migrate.train.write.texts import (
    CARRIED,
    DRAWS,
    OF_ROLLOUT,
    RECORDED,
    ROLLOUTS,
    ProgramFacts,
    carried_text,
    config_text,
    data_text,
    loss_text,
    test_text,
    train_text,
    with_rate,
)

# Steps up from a program to a folder that its script shares, at most.
_FAR = 3


@dataclass(frozen=True)
class TrainOptions:
    """Options of `migrate train`.

    Attributes:
        script: the training script.
        output: the folder of the program.
        args: arguments of the script.
        updates: updates of the weights to record and to compare.
        force: how often `--force` was given.
        proof: whether the program is compared with the script.
        timeout: seconds for one run.
        scores: variable of the script with the scores of a rollout, as `function:name`.
    """

    script: Path
    output: Path
    args: tuple[str, ...] = ()
    updates: int = 5
    force: int = 0
    proof: bool = True
    timeout: float = 600.0
    scores: str = ""


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
    require_place(options.output, options.force)
    with tempfile.TemporaryDirectory(prefix="migrate-train-") as scratch:
        work = Path(scratch)
        progress(f"running {script}: where it trains")
        text, events, loss = find_training(text, options, work)
        progress(f"running {script}: {options.updates} updates")
        recorded, loss, work = recorded_run(text, events, loss, options, work)
        port, weights = pickle.loads((work / "port.pickle").read_bytes())
        if not weights.by_mapping:
            raise TrainError(
                f"{text.at(loss.frame.line)}: torch computes some weights of the model from others",
                "remove weight_norm and the like from the model",
            )
        rules = load_mapping(work / "weights" / MAPPING).rules
        if any(_shifts(target.layout) for rule in rules for target in rule.targets):
            raise TrainError(
                f"{text.at(loss.frame.line)}: some weights of the model are shifted in Flax",
                "report this with the model",
            )
        facts = _facts(text, loss, recorded, port, weights)
        facts = replace(facts, **_copies(text.at(loss.frame.line), recorded, weights, rules))
        optimizer = _optimizer(text, recorded, weights, work)
        names = tuple(dict.fromkeys(root for root, _ in facts.inputs.values()))
        cut = functools.partial(
            data_slice,
            text,
            events,
            loss,
            names,
            trained=recorded["trained"],
            places=recorded["places"],
        )
        plain = cut()
        facts = replace(facts, rollouts=plain.rollouts, starts=plain.starts, scores=options.scores)
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
            sources = split(port.modeling, script.name, methods)
            files = {
                "model.py": sources.model,
                "loss.py": loss_text(sources.loss, facts),
                "config.py": config_text(port.config, script.name, options.args),
                "optimizer.py": with_rate(optimizer),
                "train.py": train_text(facts),
                "test_same.py": test_text(facts, len(recorded["updates"])),
                **{name: carried_text(name) for name in CARRIED},
                **({"functions.py": sources.functions} if sources.functions else {}),
                **({OF_ROLLOUT: carried_text(OF_ROLLOUT)} if facts.starts else {}),
            }
            for name, source in files.items():
                (place / name).write_text(source)
            for name in (PARAMS, MAPPING):
                (place / name).write_bytes((work / "weights" / name).read_bytes())
            (place / KEPT).write_bytes(kept_path(work / "weights" / PARAMS).read_bytes())
            _write_recorded(place / RECORDED, recorded, facts)
            progress("comparing: data")
            data, of_data = _data(text, events, cut, plain, recorded, options, place, work)
            if facts.scores:
                _require_scores(facts.scores, place, work, options.timeout)
            roles = training_roles(text, events, recorded)
            interface = _interface(
                text, loss, facts, recorded, weights, options, place, work, roles
            )
            notes = [
                *_notes(recorded, port, facts),
                *optimizer.notes,
                *_tidied(place),
                *formatted(place),
            ]
            comparisons: tuple[TrainComparison, ...] = ()
            error = ""
            if options.proof:
                progress("comparing: gradients, losses, weights")
                comparisons, error = compared(place, recorded, work, options.timeout)
                error = error.replace(str(place), str(options.output))
                if not facts.rollouts:
                    progress(f"running {script}: from weights a rounding away")
                    comparisons += stability(run_beside(text, recorded, options, work))
                comparisons += (of_data,)
            elif not of_data.same:
                notes.append(f"the data differ from the script's: {of_data.what}")
            left = left_statements(text, data, loss, events, recorded["schedule_lines"])
            result = TrainedProgram(
                options.output, (), script, comparisons, tuple(left), tuple(notes), error
            )
            page = readme_text(result, text, facts, data, loss, recorded, command, interface)
            (place / "README.md").write_text(page)
            written = record(place, str(script))
        return TrainedProgram(
            options.output, written, script, comparisons, tuple(left), tuple(notes), error
        )


def script_text(script: Path) -> ScriptText:
    """Read a script.

    Raises:
        TrainError: there is no such file, or it is not Python.
    """
    if not script.is_file():
        raise TrainError(f"{script}: no such file", "check the path")
    try:
        text = ScriptText(str(script), script.read_text())
        _ = text.tree
    except (SyntaxError, UnicodeDecodeError) as unread:
        raise TrainError(
            f"{script}: is not valid Python ({unread})", "name a Python file"
        ) from None
    return text


def _shifts(layout: Layout) -> bool:
    """Whether a layout adds a number to a weight: its gradient would be shifted too."""
    if isinstance(layout, Chain):
        return any(map(_shifts, layout.layouts))
    return isinstance(layout, Plus)


# ---------------------------------------------------------------------------- read and run


def find_training(
    script: ScriptText, options: TrainOptions, work: Path
) -> tuple[ScriptText, TrainingCalls, LossSlice]:
    """Find where the script trains, and what computes its loss.

    Returns:
        The script, with modules of its folder that train in place of their imports and comprehensions that
        train as loops; its calls that train; its loss.
    """
    modules: list[Path] = []
    whole = script
    while True:
        seen = _seen(whole, options, work / f"find-{len(modules)}")
        more = [path for path in _modules(seen) if path not in modules]
        if not more:
            break
        modules += more
        whole = merged(script, modules)
    return _calls(whole, seen)


def _seen(script: ScriptText, options: TrainOptions, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()
    run_script(
        options.script,
        options.args,
        "migrate.train.watch.finder:install",
        folder,
        "places.json",
        options.timeout,
        own_source(script),
    )
    seen: list[dict[str, Any]] = json.loads((folder / "places.json").read_text())
    mirror = str((folder / "mirror-places.json").resolve())
    for event in seen:
        event["files"] = [file.removeprefix(mirror) for file in event["files"]]
    return seen


def _modules(seen: Sequence[Mapping[str, Any]]) -> list[Path]:
    """Files of the script's folder, beside the script, that have a call that trains."""
    files = [file for event in seen if event["kind"] in (BACKWARD, STEP) for file in event["files"]]
    return [path for path in map(Path, dict.fromkeys(files)) if path.is_file()]


def own_source(script: ScriptText) -> str:
    """Text to run in place of the script's file; empty for the file itself."""
    return script.source if isinstance(script, MergedText) else ""


def _calls(
    script: ScriptText, seen: Sequence[Mapping[str, Any]]
) -> tuple[ScriptText, TrainingCalls, LossSlice]:
    def frames(kind: str) -> list[tuple[Frame, ...]]:
        every = [tuple(_frame(f) for f in e["frames"]) for e in seen if e["kind"] == kind]
        return list(dict.fromkeys(every))

    backwards, steps = frames(BACKWARD), frames(STEP)
    if not backwards:
        raise TrainError(
            f"{script.name}: its training has no backward",
            "compute the gradients by loss.backward(), not by torch.autograd.grad",
        )
    for event in seen:
        if event["kind"] in (BACKWARD, STEP) and not event["frames"]:
            raise TrainError(
                f"{script.name}: {event['kind']} is called by {event['between'] or 'another file'}, not by "
                "this file",
                "name the script that has the training loop itself",
            )
    sites = list(dict.fromkeys(b[0].line for b in backwards))
    if len(sites) > 1:
        raise TrainError(
            f"{script.at(sites[1])}: a second backward, beside line {sites[0]}",
            "one loss and one optimizer are supported",
        )
    if not steps:
        raise TrainError(
            f"{script.at(sites[0])}: no optimizer is stepped after this backward",
            "pass arguments with which the script updates its weights",
        )
    if len({event["which"] for event in seen if event["kind"] == STEP}) > 1:
        raise TrainError(
            f"{script.at(steps[-1][0].line)}: a second optimizer is stepped",
            "one loss and one optimizer are supported",
        )
    dropped = [call for kind in (CLIP, SCHEDULE, ZERO) for call in frames(kind) if call]
    events = TrainingCalls(backwards[0], tuple(steps), tuple(dropped))
    script = _with_loops(script, events.backward)
    loop_level(script, events.backward)
    _require_lines(script, events)
    return script, events, loss_slice(script, events.backward[0])


def _with_loops(script: ScriptText, frames: Sequence[Frame]) -> ScriptText:
    """The script with those comprehensions as loops that call a function which trains."""
    lines = []
    for called, caller in itertools.pairwise(frames):
        code = script.code(caller.first, caller.function)
        path = path_to(code, caller.line) if code is not None else []
        if path and comprehension(path[-1][0][path[-1][1]], called.function) is not None:
            lines.append(caller.line)
    return replace(script, loops=tuple(lines))


def _frame(seen: Mapping[str, Any]) -> Frame:
    """The frame as the finder wrote it."""
    return Frame(**{**seen, "arguments": tuple(map(tuple, seen["arguments"]))})


def _require_lines(script: ScriptText, events: TrainingCalls) -> None:
    """Require a line of its own for each statement around the calls that train."""
    for frame in {f for call in (events.backward, *events.steps, *events.dropped) for f in call}:
        code = script.code(frame.first, frame.function)
        line = shared_line(code, frame.line) if code is not None else 0
        if line:
            raise TrainError(
                f"{script.at(line)}: several statements are on this line of the training loop",
                "write each statement on a line of its own",
            )


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


def _facts(
    script: ScriptText, loss: LossSlice, recorded: Mapping[str, Any], port: Any, weights: Any
) -> ProgramFacts:
    modes = set(recorded["training"].values())
    where = script.at(loss.frame.line)
    unlike = recorded["unlike"]
    if port.trains and (len(modes) > 1 or unlike):
        which = f" ({unlike[0]})" if unlike else ""
        raise TrainError(
            f"{where}: one module is in training mode, another one is not{which}",
            "set the mode of all modules alike",
        )
    if port.drawn:
        raise TrainError(
            f"{where}: the model draws {port.drawn[0].name} by Python or NumPy",
            "draw it in the data",
        )
    keys = recorded["inputs"]
    for argument in port.inputs:
        if argument.name not in keys:
            raise TrainError(
                f"{where}: the loss reads {argument.name}, which is no tensor of the batch",
                "give the batch to the step by name",
            )
        for update in recorded["updates"]:
            for micro in update["micro"]:
                shape = micro["inputs"][argument.name].shape
                if len(shape) != len(argument.shape):
                    raise TrainError(
                        f"{where}: batches have {argument.name} of {many(len(shape), 'dimension')}, but the "
                        f"model is ported for {len(argument.shape)}",
                        "give each batch the same dimensions",
                    )
                sides = zip(argument.shape, shape, strict=True)
                wrong = [
                    (side, size) for side, size in sides if isinstance(side, int) and side != size
                ]
                if wrong:
                    raise TrainError(
                        f"{where}: batches have {argument.name} of different sizes, but the model is ported "
                        f"for {wrong[0][0]} only",
                        "pad the batches to one size",
                    )
    inputs = {argument.name: keys[argument.name] for argument in port.inputs}
    return ProgramFacts(
        script.name.rpartition("/")[2],
        where,
        inputs,
        takes_mode=port.trains or bool(port.refused),
        training=port.trains and modes == {True} and not port.refused,
        # Layers of dropout draw from Flax's own stream.
        streams=tuple(dict.fromkeys((*port.streams, *(["dropout"] if port.draws else ())))),
        statistics=port.statistics,
        frozen=weights.frozen,
        average=recorded["average"].decay if recorded.get("average") else "",
    )


def _copies(
    where: str, recorded: Mapping[str, Any], weights: Any, rules: Sequence[Any]
) -> dict[str, Any]:
    """Facts about frozen weights that become copies of trained ones; none if there are no copies."""
    copies = recorded["copies"]
    if copies is None:
        return {}
    count = len(recorded["updates"]) + recorded["later"]
    every = copies.period(count, bool(recorded.get("ended")))
    if not every:
        seen = ", ".join(map(str, copies.updates[:6]))
        raise TrainError(
            f"{where}: frozen weights become copies of trained ones before updates {seen} of {count}: the "
            "rule of it is unknown",
            "copy them after a fixed number of updates; pass arguments with which this happens twice",
        )

    def layout(name: str) -> list[Any]:
        rule = next(rule for rule in rules if re.fullmatch(rule.pattern, name))
        return [replace(target, path="") for target in rule.targets]

    paths: dict[str, str] = {}
    for to, of in copies.names.items():
        if layout(to) != layout(of):
            raise TrainError(
                f"{where}: {to} becomes a copy of {of}, but the two have other layouts in Flax",
                "report this with the model",
            )
        pairs = list(zip(weights.paths[to], weights.paths[of], strict=True))
        paths |= {a.removeprefix("params/"): b.removeprefix("params/") for a, b in pairs}
    return {"copied": paths, "copies_every": every}


def _optimizer(script: ScriptText, recorded: Mapping[str, Any], weights: Any, work: Path) -> Any:
    """Source of the optimizer, for the arrays of the program."""
    from safetensors.numpy import load_file

    optimizer = recorded["optimizer"]
    source = _constructor(script, optimizer.line, optimizer.name.rpartition(".")[2])
    count = len(optimizer.rates) if recorded.get("ended") else None
    assigned = [
        node.lineno
        for node in ast.walk(script.tree)
        if isinstance(node, ast.Assign | ast.AugAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if _is_rate(target)
    ]
    file, line = script.position(optimizer.line) if optimizer.line else (script.name, 0)
    optimizer = replace(
        optimizer,
        file=file,
        line=line,
        source=source,
        updates=count,
        sets_rate=min(assigned, default=0),
    )
    names: dict[str, list[str]] = {}
    for name, paths in weights.paths.items():
        if name not in recorded["tied"] and name in recorded["gradients"]:
            for path in paths:
                names.setdefault(path, []).append(name)
    shapes = {path: array.shape for path, array in load_file(work / "weights" / PARAMS).items()}
    tensors = {name: tuple(tensor.shape) for name, tensor in recorded["state"].items()}

    def whole(path: str, of: Sequence[str]) -> bool:
        shape = tuple(shapes[path])
        return len(of) == 1 and len(shape) <= 2 and tensors[of[0]] in (shape, shape[::-1])

    arrays = [
        ParameterArray(tuple(path.split("/")[1:]), len(shapes[path]), tuple(of), whole(path, of))
        for path, of in names.items()
        if path.startswith("params/")
    ]
    return write_optimizer(optimizer, arrays)


def _constructor(script: ScriptText, line: int, name: str) -> str:
    """Text of the call that builds the optimizer; "" if the script does not build it by its name."""
    code: ast.AST = script.tree
    for node in ast.walk(code):
        if not isinstance(node, ast.Call) or last_part(node.func) != name:
            continue
        if node.lineno <= line <= (node.end_lineno or 0):
            return ast.unparse(node)
    return ""


# ---------------------------------------------------------------------------- write


def _data(
    script: ScriptText,
    events: TrainingCalls,
    cut: Callable[..., DataSlice],
    plain: DataSlice,
    recorded: Mapping[str, Any],
    options: TrainOptions,
    place: Path,
    work: Path,
) -> tuple[DataSlice, TrainComparison]:
    """Write `data.py`; the random generators are restored in it if its batches differ otherwise.

    `cut(restore_before=lines)` cuts it out of the script, `plain` is the one without lines.
    """
    files = {file.stem for file in place.glob("*.py")} | {"data"}
    folder = options.script.resolve().parent
    hidden = hidden_modules(plain.text, folder, files)
    if hidden.late:
        raise TrainError(
            f"{script.name}: a function of its data imports {hidden.late}, and the program has a file of the "
            f"name {hidden.names[0]}, as its folder",
            f"import {hidden.late} at the start of the file",
        )

    def written(data: DataSlice, states: Sequence[Any]) -> None:
        _write_data(place, data, states, options, hidden.names)

    written(plain, ())
    count = many(len(recorded["updates"]), "update")
    equal = data_equal(plain.rollouts)
    difference = data_difference(place, work, options.timeout)[0]
    if not difference:
        return plain, TrainComparison("data", True, what=f"{count}, {equal}")
    loop = script_loop(script, events)
    best: tuple[int, DataSlice, str, Sequence[Any]] = (_position(difference), plain, difference, ())
    statements = loop_statements(script, plain.loop)
    before, first = _restoring(plain, statements, recorded["draws"])
    again_and_again = recorded["loops"]
    ways: list[tuple[tuple[int, ...], Sequence[Any]]] = [
        ((before,), first),
        ((loop,), again_and_again),
        ((before, loop), (*first, *again_and_again)),
    ]
    for lines, states in ways:
        if 0 in lines or not states:
            continue
        restored = cut(restore_before=lines)
        written(restored, states)
        again = data_difference(place, work, options.timeout)[0]
        if not again:
            what = f"{count}, {equal}; {DRAWS} has the state of the generators"
            return restored, TrainComparison("data", True, what=what)
        if _position(again) > best[0]:
            best = (_position(again), restored, again, states)
    _, data, difference, states = best
    written(data, states)
    return data, TrainComparison("data", False, what=difference)


def _require_scores(scores: str, place: Path, work: Path, timeout: float) -> None:
    """Require the variable with the scores of a rollout."""
    answer = work / "scores.json"
    module = "migrate.train.proof.rollouts_child"
    code, said = child(module, (place, scores, answer), timeout)
    if code == 0 and answer.exists():
        return
    why = process.last_line(said).rpartition("Error: ")[2].strip("\"'")[:200]
    raise TrainError(
        f"--scores {scores}: {why or 'the rollout took too long'}",
        "name a variable that is there when the first update is computed, as FUNCTION:NAME",
    )


def _interface(
    script: ScriptText,
    loss: LossSlice,
    facts: ProgramFacts,
    recorded: Mapping[str, Any],
    weights: Any,
    options: TrainOptions,
    place: Path,
    work: Path,
    roles: Mapping[str, Role],
) -> Interface:
    """Write `interface.py`, and the file that brings its arrays back to torch."""
    frozen = set(weights.frozen)
    trained = {
        name
        for name in recorded["gradients"]
        if name not in recorded["tied"] and not set(weights.paths[name]) & frozen
    }
    files = ("data.py", "model.py", "optimizer.py")
    tops: dict[str, list[str]] = {}
    for name, paths in weights.paths.items():
        known = tops.setdefault(name.partition(".")[0], [])
        known += [path.split("/")[1] for path in paths if path.split("/")[1] not in known]
    learning = {path.split("/")[1] for name in trained for path in weights.paths[name]}
    places, failed, differs = _outputs(facts, recorded, sorted(learning), options, place, work)
    functions = [f for f in recorded["functions"] if f.method not in differs]
    interface = interface_text(
        script,
        loss,
        facts,
        {**recorded, "functions": functions},
        trained,
        {name: (place / name).read_text() for name in files},
        places,
        failed,
        roles=roles,
        tops=tops,
    )
    (place / "interface.py").write_text(interface.text)
    unlike = [
        f"{name}: functions.py gives other values than the script" for name in sorted(differs)
    ]
    return replace(interface, missing=(*interface.missing, *unlike))


def _outputs(
    facts: ProgramFacts,
    recorded: Mapping[str, Any],
    trained: Sequence[str],
    options: TrainOptions,
    place: Path,
    work: Path,
) -> tuple[list[Any], str, frozenset[str]]:
    """Find the outputs of the script's model in the program, and compare its functions.

    Both are done on the first micro-batch. `trained` are trained modules of the program.

    Returns:
        Where the program has each, why they could not be looked for, and functions that are not known to give
        what the script's give.
    """
    inputs = recorded["updates"][0]["micro"][0]["inputs"]
    arrays: dict[str, Any] = {f"input:{name}": inputs[name] for name in facts.inputs}
    arrays |= {f"output:{number}": value for number, value in enumerate(recorded["outputs"])}
    for function in recorded["functions"]:
        inputs_of_call, results = recorded["function_values"][function.method]
        start = function.method
        arrays |= {f"{start}:input:{name}": value for name, value in inputs_of_call.items()}
        arrays |= {f"{start}:output:{number}": value for number, value in enumerate(results)}
    file, answer = work / "outputs.npz", work / "outputs.json"
    np.savez(file, **arrays)
    asked = {
        "arguments": {"deterministic": not facts.training} if facts.takes_mode else {},
        "streams": facts.streams if facts.draws else (),
        "trained": trained,
        "functions": [function.method for function in recorded["functions"]],
    }
    module = "migrate.train.proof.outputs_child"
    code, said = child(module, (place, file, json.dumps(asked), answer), options.timeout)
    every = frozenset(asked["functions"])
    if code is None:
        return [], f"the search for them was not done within {options.timeout:g} s", every
    if code or not answer.exists():
        return [], f"the search for them failed ({process.last_line(said)[:200]})", every
    answers = json.loads(answer.read_text())
    places = [path if path is None else tuple(path) for path in answers["outputs"]]
    return places, "", frozenset(answers["differs"])


def script_loop(script: ScriptText, events: TrainingCalls) -> int:
    """Line of the loop over batches."""
    return batch_loop(script, events.backward[loop_level(script, events.backward)])


def _write_data(
    place: Path,
    data: DataSlice,
    states: Sequence[Any],
    options: TrainOptions,
    hidden: Sequence[str],
) -> None:
    """Write `data.py`; modules of the script in `hidden` have names of the program's files."""
    source = guarded(data.text, options.script.resolve().parent) if hidden else data.text
    ranks = {name: os.environ[name] for name in sorted(RANKS) if name in os.environ}
    text = data_text(
        source,
        options.script.name,
        _folder(options),
        bool(states),
        hidden,
        ranks,
        rollouts=data.rollouts,
    )
    (place / "data.py").write_text(text)
    (place / DRAWS).unlink(missing_ok=True)
    if states:
        _write_draws(place / DRAWS, states)


def _position(difference: str) -> int:
    word = difference.removeprefix("update ").partition(":")[0].partition(",")[0]
    return int(word) if word.isdigit() else -1


def _folder(options: TrainOptions) -> str:
    """Expression of the script's folder; from the program's own, if the two can be moved together."""
    script, program = options.script.resolve().parent, options.output.resolve()
    above = os.path.relpath(script, program)
    if above.count("..") <= _FAR:
        return f"Path(__file__).resolve().parent.joinpath({above!r}).resolve()"
    return f"Path({str(script)!r})"


def _restoring(
    data: DataSlice,
    statements: Mapping[int, Collection[int]],
    states: Sequence[tuple[int, Any]],
) -> tuple[int, Sequence[Any]]:
    """Line before which the generators are restored, and their state there; 0 if there is none.

    From there to the loop, only statements that `data.py` has, all of them, change the generators.
    """
    if not states:
        return 0, ()
    index = len(states) - 1
    while index > 0:
        line = states[index - 1][0]
        whole = data.kept >= set(statements.get(line, (line,)))
        if not whole and not _alike(states[index - 1][1], states[index][1]):
            break
        index -= 1
    while index < len(states) - 1 and states[index][0] not in data.kept:
        index += 1
    line, state = states[index]
    return line, (state,)


def _alike(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if not np.array_equal(a["torch"], b["torch"]) or a["python"] != b["python"]:
        return False
    if a["numpy"] is None or b["numpy"] is None:
        return a["numpy"] is b["numpy"]
    return all(np.array_equal(x, y) for x, y in zip(a["numpy"], b["numpy"], strict=True))


def _write_draws(file: Path, states: Sequence[Mapping[str, Any]]) -> None:
    arrays: Any = {
        "torch": np.stack([state["torch"] for state in states]),
        "python": np.array([json.dumps(state["python"]) for state in states]),
    }
    if all(state["numpy"] is not None for state in states):
        arrays["numpy"] = np.stack([state["numpy"][1] for state in states])
        positions = [[int(state["numpy"][2]), *state["numpy"][3:]] for state in states]
        arrays["position"] = np.array([json.dumps(position) for position in positions])
    np.savez_compressed(file, **arrays)


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


def _tidied(folder: Path) -> list[str]:
    """Remove imports that a file does not use."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--no-cache"]
    rules = ["--select", "F401,F811", "--fix", "--exit-zero", str(folder)]
    done = subprocess.run([*command, *rules], capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else ["imports are not sorted out: it needs ruff"]


def _notes(recorded: Mapping[str, Any], port: Any, facts: ProgramFacts) -> list[str]:
    notes = [*port.notes]
    if recorded["difference"]:
        notes.append(
            f"the slice of the loss differs from the script's own by {recorded['difference']:.1e}: "
            "another order of sums"
        )
    if recorded["unseeded"]:
        notes.append(UNSEEDED)
    if recorded["dropout"]:
        notes.append("dropout was switched off for the comparison; the program draws its own masks")
    if not recorded.get("ended"):
        notes.append(
            f"compared are the first {len(recorded['updates'])} updates; parts of the script that the "
            "program does not have (evaluation) may draw from the same random generators, and so change "
            "the order of later batches"
        )
    if facts.rollouts:
        notes.append(ROLLOUTS)
    if facts.copies_every:
        notes.append(
            f"{many(len(facts.copied), 'frozen parameter')} become copies of trained ones every "
            f"{many(facts.copies_every, 'update')}: refreshed in train.py. So the script did in "
            f"{many(len(recorded['updates']) + recorded['later'], 'update')}"
        )
    if recorded.get("failed"):
        notes.append(
            f"the script fails after {len(recorded['updates']) + recorded['later']} updates "
            f"({recorded['failed'][:200]}): what follows is unknown"
        )
    if recorded["later"]:
        notes.append(
            f"the script was watched for {many(recorded['later'], 'more update')}: learning rates are "
            "compared in them; modes, frozen parameters, clipping and numbers that the loss reads do not "
            "change"
        )
    if port.refused:
        notes.append(
            f"the model runs in evaluation mode: {port.refused}; the gradients are compared"
        )
    if average := recorded.get("average"):
        notes.append(
            f"{average.name} is a moving average of the weights with the decay {average.decay}: "
            "state.average in train.py, --save-average writes it. Buffers are not averaged"
        )
    for name in recorded.get("unknown_averages", ()):
        notes.append(
            f"{name} starts as a copy of the weights and changes by an unknown rule: the program does not "
            "have it"
        )
    if recorded.get("autocast"):
        notes.append(
            f"the script has autocast to {recorded['autocast']}: the program computes in float32, and is "
            "compared with the script without autocast"
        )
    return notes
