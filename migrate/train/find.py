"""Find where a script trains: its first run, its calls that train, and the statements of its loss."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from migrate.train.errors import TrainError
from migrate.train.frames import Frame
from migrate.train.options import TrainOptions
from migrate.train.slice.loops import TrainingCalls, batch_loop, loop_level
from migrate.train.slice.loss import LossSlice, loss_slice
from migrate.train.slice.merged import MergedText, merged
from migrate.train.slice.text import ScriptText, comprehension, path_to, shared_line
from migrate.train.watch.listening import BACKWARD, CLIP, SCHEDULE, STEP, ZERO
from migrate.train.watch.runs import run_script


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


def script_loop(script: ScriptText, events: TrainingCalls) -> int:
    """Line of the loop over batches."""
    return batch_loop(script, events.backward[loop_level(script, events.backward)])
