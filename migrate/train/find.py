"""Find where a script trains: its first run, its calls that train, and the statements of its loss."""

from __future__ import annotations

import ast
import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from migrate.model.calls.rank_tests import last_part
from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.options import TrainOptions
from migrate.train.slice.loops import (
    TrainingCalls,
    batch_loop,
    condition_of,
    handed_to,
    loop_level,
)
from migrate.train.slice.loss import LossSlice, handed_loss, loss_slice, starts_backward
from migrate.train.slice.merged import MergedText, merged
from migrate.train.slice.text import ScriptText, comprehension, path_to, shared_line
from migrate.train.watch.finder import PLACES, SAME
from migrate.train.watch.listening import BACKWARD, CLIP, SCALE, SCHEDULE, STEP, ZERO
from migrate.train.watch.runs import TORCHRUN, needs_torchrun, run_script


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


Updates = tuple[tuple[TrainingCalls, LossSlice], ...]


def find_training(
    script: ScriptText, options: TrainOptions, work: Path
) -> tuple[ScriptText, Updates]:
    """Find where the script trains, and what computes its losses.

    Returns:
        The script, with modules of its folder that train in place of their imports and comprehensions that
        train as loops; for each optimizer its calls that train, and its loss.
    """
    modules: list[Path] = []
    same = set[str]()
    whole = script
    while True:
        folder = work / f"find-{len(modules)}"
        seen = _seen(whole, options, folder)
        same |= {*json.loads((folder / SAME).read_text())}
        more = [path for path in _modules(seen) if path not in modules]
        if not more:
            break
        modules += more
        whole = merged(script, modules, same)
    return _calls(whole, *_handed(whole, seen))


def _handed(
    script: ScriptText, seen: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], tuple[tuple[str, int], ...], dict[int, str]]:
    """Events as if statements that hand a loss to another function called its backward themselves.

    Returns:
        The events; functions of the script that get the loss, by name and first line; conditions under
        which they step the optimizer, by the line of the call.
    """
    events = [{**event, "frames": [_frame(frame) for frame in event["frames"]]} for event in seen]
    functions: set[tuple[str, int]] = set()
    for event in events:
        if event["kind"] != BACKWARD or not event["frames"]:
            continue
        frames = event["frames"]
        code = script.code(frames[0].first, frames[0].function)
        if not starts_backward(code, frames[0].line):
            frames[0] = replace(frames[0], loss=_in_call(code, frames[0], event["names"]))
        while len(frames) > 1:
            called, caller = frames[:2]
            parameter = handed_loss(script.code(called.first, called.function), called)
            handed = handed_to(script, caller, called, parameter) if parameter else ""
            if not handed:
                break
            functions.add(_place(called))
            frames = [replace(caller, loss=handed), *frames[2:]]
        event["frames"] = frames
    when: dict[int, str] = {}
    for event in events:
        while event["frames"] and _place(event["frames"][0]) in functions:
            called, *others = event["frames"]
            if event["kind"] == STEP and (condition := condition_of(script, others[0], called)):
                inner = when.get(called.line, "")
                when[others[0].line] = f"({condition}) and ({inner})" if inner else condition
            event["frames"] = others
        event["frames"] = [asdict(frame) for frame in event["frames"]]
    return events, tuple(sorted(functions)), when


def _place(frame: Frame) -> tuple[str, int]:
    return frame.function, frame.first


def _in_call(code: ast.AST | None, frame: Frame, names: Collection[str]) -> str:
    """Name of the loss where a statement hands it to a function of a library: `scaler(loss, optimizer)`."""
    path = path_to(code, frame.line) if code is not None else []
    handed = [
        argument.id
        for node in (ast.walk(path[-1][0][path[-1][1]]) if path else ())
        if isinstance(node, ast.Call)
        for argument in (*node.args, *(keyword.value for keyword in node.keywords))
        if isinstance(argument, ast.Name) and argument.id in names
    ]
    return handed[0] if handed else ""


def _seen(script: ScriptText, options: TrainOptions, folder: Path) -> list[dict[str, Any]]:
    folder.mkdir()

    def run() -> None:
        run_script(
            options.script,
            options.args,
            "migrate.train.watch.finder:install",
            folder,
            PLACES,
            options.timeout,
            own_source(script),
        )

    try:
        run()
    except TrainError as error:
        if not needs_torchrun(error.what):
            raise
        # All later runs need the variables too, and data.py writes those that the script reads.
        for name, value in TORCHRUN.items():
            os.environ.setdefault(name, value)
        run()
    seen: list[dict[str, Any]] = json.loads((folder / PLACES).read_text())
    mirror = str((folder / f"mirror-{PLACES}").resolve())
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
    script: ScriptText,
    seen: Sequence[Mapping[str, Any]],
    handed: tuple[tuple[str, int], ...],
    when: Mapping[int, str],
) -> tuple[ScriptText, Updates]:
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
    if not steps:
        raise TrainError(
            f"{script.at(backwards[0][0].line)}: no optimizer is stepped after this backward",
            "pass arguments with which the script updates its weights",
        )
    dropped = tuple(call for kind in (CLIP, SCALE, SCHEDULE, ZERO) for call in frames(kind) if call)
    updates = []
    for calls in updates_of(script, seen, dropped):
        script = _with_loops(script, calls.backward)
        loop_level(script, calls.backward)
        _require_lines(script, calls)
        updates.append(replace(calls, handed=handed, when=when))
    return script, tuple((calls, loss_of_update(script, calls)) for calls in updates)


def loss_of_update(
    script: ScriptText,
    calls: TrainingCalls,
    changing: Collection[str] = (),
    computed: Collection[str] = (),
) -> LossSlice:
    """The statements of the loss of an update; of several backwards, of the sum of their losses."""
    return loss_slice(
        script,
        calls.backward[0],
        changing,
        computed,
        before=[frames[0] for frames in calls.before],
        draws_apart=calls.optimizer >= 0 and not loop_level(script, calls.backward),
    )


def update_names(script: ScriptText, updates: Updates) -> list[str]:
    """Names of the updates: those of their losses, functions or optimizers, whichever tell them apart.

    A single update has no name.
    """
    if len(updates) == 1:
        return [""]
    steps = [_optimizer_of(script, calls.steps[0][0]) for calls, _ in updates]
    ways = (
        [loss.result for _, loss in updates],
        [calls.backward[0].function for calls, _ in updates],
        steps,
    )
    for names in ways:
        if len(set(names)) == len(names) and all(name.isidentifier() for name in names):
            return names
    return [f"update_{number}" for number in range(1, len(updates) + 1)]


def _optimizer_of(script: ScriptText, frame: Frame) -> str:
    """Name of the optimizer that a statement steps: `optimizer` of `self.optimizer.step()`."""
    code = script.code(frame.first, frame.function)
    block, index = path_to(code, frame.line)[-1]  # type: ignore[arg-type]
    for node in ast.walk(block[index]):
        if isinstance(node, ast.Call) and last_part(node.func) == "step":
            arguments = node.args or [getattr(node.func, "value", node.func)]
            return last_part(arguments[0])
    return ""


def updates_of(
    script: ScriptText, seen: Sequence[Mapping[str, Any]], dropped: tuple[tuple[Frame, ...], ...]
) -> list[TrainingCalls]:
    """The updates of the weights in the order of their first steps, one for each optimizer.

    An update has the backwards since the step before it.

    Raises:
        TrainError: backwards and steps do not belong together so.
    """
    pending: list[tuple[Frame, ...]] = []
    clips: list[int] = []
    backwards: dict[int, list[tuple[Frame, ...]]] = {}
    steps: dict[int, list[tuple[Frame, ...]]] = {}
    clipped: dict[int, list[int]] = {}
    last = -1
    for event in seen:
        call = tuple(_frame(frame) for frame in event["frames"])
        if event["kind"] == BACKWARD:
            pending.append(call)
        elif event["kind"] == CLIP and call:
            clips.append(call[0].line)
        elif event["kind"] == STEP:
            which = event["which"]
            if not pending and which != last:
                raise TrainError(
                    f"{script.at(call[0].line)}: a second optimizer is stepped after one backward",
                    "give both groups of parameters to one optimizer, or each optimizer a backward of its "
                    "own right before its step",
                )
            own = backwards.setdefault(which, [])
            sites = [b[0].line for b in own]
            lines = list(dict.fromkeys(b[0].line for b in pending))
            if sites and lines and lines != sites:
                strange = next((n for n in lines if n not in sites), lines[0])
                raise TrainError(
                    f"{script.at(strange)}: a second backward, beside line {sites[0]}, of an optimizer whose "
                    "updates are not all made of the same backwards",
                    "give each of its updates the same backwards",
                )
            own += [] if sites else [next(b for b in pending if b[0].line == n) for n in lines]
            steps.setdefault(which, []).append(call)
            clipped.setdefault(which, []).extend(clips)
            pending, clips, last = [], [], which
    every = [b for own in backwards.values() for b in own]
    lines = [b[0].line for b in every]
    twice = next((n for n in lines if lines.count(n) > 1), 0)
    if twice:
        raise TrainError(
            f"{script.at(twice)}: this backward is that of several optimizers",
            "give each optimizer a backward of its own",
        )
    result = []
    for which, own in backwards.items():
        *before, backward = own
        if any(frame[0].function != backward[0].function for frame in before):
            raise TrainError(
                f"{script.at(backward[0].line)}: a second backward of one update, in another function than "
                f"line {before[0][0].line}",
                "call the backwards of an update in one function",
            )
        others = {
            call[0].line for n in backwards if n != which for call in (*backwards[n], *steps[n])
        }
        result.append(
            TrainingCalls(
                backward,
                tuple(dict.fromkeys(steps[which])),
                dropped,
                tuple(before),
                tuple(dict.fromkeys(clipped[which])),
                which if len(backwards) > 1 else -1,
                tuple(sorted(others)),
            )
        )
    return result


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
    end = seen.get("end")
    arguments = tuple(map(tuple, seen["arguments"]))
    return Frame(**{**seen, "arguments": arguments, "end": end and tuple(end)})


def _require_lines(script: ScriptText, events: TrainingCalls) -> None:
    """Require a line of its own for each statement around the calls that train."""
    calls = (events.backward, *events.before, *events.steps, *events.dropped)
    for frame in {frame for call in calls for frame in call}:
        code = script.code(frame.first, frame.function)
        line = shared_line(code, frame.line) if code is not None else 0
        if line:
            raise shared_lines(script, line)


def shared_lines(script: ScriptText, line: int) -> TrainError:
    """Return the error for several statements on a line of the training loop."""
    return TrainError(
        f"{script.at(line)}: several statements are on this line of the training loop",
        "write each statement on a line of its own",
    )


def script_loop(script: ScriptText, events: TrainingCalls) -> int:
    """Line of the loop over batches."""
    return batch_loop(script, events.backward[loop_level(script, events.backward)])
