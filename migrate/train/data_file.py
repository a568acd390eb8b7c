"""`data.py` of a program: written, compared with the script's batches, and given its random generators."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from migrate.catalogue.words import RANKS
from migrate.counts import many
from migrate.train.errors import TrainError
from migrate.train.find import script_loop
from migrate.train.options import TrainOptions
from migrate.train.proof.causes.data import flat
from migrate.train.proof.program import data_difference, data_equal
from migrate.train.results import TrainComparison
from migrate.train.slice.data import DataSlice
from migrate.train.slice.loops import TrainingCalls, loop_statements
from migrate.train.slice.text import ScriptText
from migrate.train.write.batches import plain_data_text
from migrate.train.write.shadow import guarded, hidden_modules
from migrate.train.write.texts import (
    DRAWS,
    data_text,
)

# Steps up from a program to a folder that its script shares, at most.
_FAR = 3


# Cause of a difference after the first update, where the loss draws random numbers.
_SHARED = (
    "the loss draws from the generators that batches are drawn with, and the program's draws from others; "
    "workers have their own (num_workers=1)"
)


def write_data(
    script: ScriptText,
    events: TrainingCalls,
    cut: Callable[..., DataSlice],
    plain: DataSlice,
    recorded: Mapping[str, Any],
    options: TrainOptions,
    place: Path,
    work: Path,
    *,
    called: bool,
    evaluations: Sequence[Mapping[str, Any]] = (),
    logged: Sequence[str] = (),
) -> tuple[DataSlice, TrainComparison]:
    """Write `data.py`; the random generators are restored in it if its batches differ otherwise.

    `cut(restore_before=lines)` cuts it out of the script, `plain` is the one without lines. `called`: whether
    `interface.py` may call the parts of `data.py`. `evaluations` are those that the loop asks for, `logged`
    the values of an update that its log lines read.
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
        _write_data(
            place,
            data,
            states,
            options,
            hidden.names,
            on_gpu=recorded["on_gpu"],
            several="parts" in recorded,
            bfloat16=any(
                str(array.dtype) == "bfloat16"
                for update in recorded["updates"]
                for micro in update["micro"]
                for array in flat(micro["batch"]).values()
            ),
            evaluations=evaluations,
            logged=logged,
        )

    count = many(len(recorded["updates"]), "update")
    equal = data_equal(plain.rollouts)

    def shorter_written(data: DataSlice, states: Sequence[Any] = ()) -> bool:
        return not called and _write_plain(
            data, recorded, options, hidden.names, place, evaluations, logged, states
        )

    if shorter_written(plain) and not data_difference(place, work, options.timeout)[0]:
        return plain, TrainComparison("data", True, what=f"{count}, {equal}")
    written(plain, ())
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
    every = _gaps(plain, statements, recorded["draws"])
    if len(every) > 1:  # a statement between those that data.py has draws too
        lines_of, own = tuple(line for line, _ in every), [state for _, state in every]
        ways += [(lines_of, own), ((*lines_of, loop), (*own, *again_and_again))]
    for lines, states in ways:
        if 0 in lines or not states:
            continue
        restored = cut(restore_before=lines)
        written(restored, states)
        again = data_difference(place, work, options.timeout)[0]
        if not again:
            shorter = shorter_written(restored, states)
            if shorter and data_difference(place, work, options.timeout)[0]:
                written(restored, states)
            what = f"{count}, {equal}; {DRAWS} has the state of the generators"
            return restored, TrainComparison("data", True, what=what)
        if _position(again) > best[0]:
            best = (_position(again), restored, again, states)
    _, data, difference, states = best
    written(data, states)
    shared = f"; {_SHARED}" if recorded["noise"] and best[0] > 0 else ""
    return data, TrainComparison("data", False, what=f"{difference}{shared}")


def _write_data(
    place: Path,
    data: DataSlice,
    states: Sequence[Any],
    options: TrainOptions,
    hidden: Sequence[str],
    *,
    on_gpu: bool,
    several: bool,
    bfloat16: bool,
    evaluations: Sequence[Mapping[str, Any]] = (),
    logged: Sequence[str] = (),
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
        args=options.args,
        rollouts=data.rollouts,
        on_gpu=on_gpu,
        several=several,
        bfloat16=bfloat16,
        evaluations=evaluations,
        logged=logged,
    )
    (place / "data.py").write_text(text)
    (place / DRAWS).unlink(missing_ok=True)
    if states:
        _write_draws(place / DRAWS, states)


def _write_plain(
    data: DataSlice,
    recorded: Mapping[str, Any],
    options: TrainOptions,
    hidden: Sequence[str],
    place: Path,
    evaluations: Sequence[Mapping[str, Any]] = (),
    logged: Sequence[str] = (),
    states: Sequence[Any] = (),
) -> bool:
    """Write `data.py` with what this script needs alone; whether it may be so."""
    several = "parts" in recorded or data.rollouts
    ranks = any(name in os.environ and name in data.text for name in RANKS)
    if several or ranks or hidden or options.args:
        return False
    batches = [micro["batch"] for update in recorded["updates"] for micro in update["micro"]]
    folder = options.script.resolve().parent
    text = plain_data_text(
        data.text,
        options.script.name,
        _folder(options),
        batches,
        folder,
        on_gpu=recorded["on_gpu"],
        evaluations=evaluations,
        logged=logged,
        states=len(states),
    )
    if text:
        (place / "data.py").write_text(text)
    return bool(text)


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


def _gaps(
    data: DataSlice,
    statements: Mapping[int, Collection[int]],
    states: Sequence[tuple[int, Any]],
) -> list[tuple[int, Any]]:
    """Statements of `data.py` before which others change the generators, with their state there.

    Empty if a statement runs several times.
    """
    lines = [line for line, _ in states]
    if len(set(lines)) < len(lines):
        return []
    gaps = []
    apart = False
    for (line, state), (_, after) in zip(states, [*states[1:], (0, None)], strict=True):
        if apart and line in data.kept:
            gaps.append((line, state))
            apart = False
        whole = data.kept >= set(statements.get(line, (line,)))
        apart = apart or (not whole and after is not None and not _alike(state, after))
    return gaps


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
