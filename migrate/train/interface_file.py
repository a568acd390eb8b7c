"""`interface.py` of a program, with the outputs of the script's model in the program."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from migrate import process
from migrate.train.options import TrainOptions
from migrate.train.proof.program import child
from migrate.train.slice.loss import LossSlice
from migrate.train.slice.text import ScriptText
from migrate.train.write.functions import Role
from migrate.train.write.interface import Interface, interface_text
from migrate.train.write.texts import (
    ProgramFacts,
)


def write_interface(
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
    tops = tops_of(weights)
    learning = {path.split("/")[1] for name in trained for path in weights.paths[name]}
    places, failed, differs = found_outputs(
        facts, recorded, sorted(learning), options, place, work, parts=True
    )
    functions = [f for f in recorded["functions"] if f.method not in differs]
    if not (place / "functions.py").exists():  # all are methods that the step itself calls
        recorded = {**recorded, "of_functions": "from loss import Step as Functions"}
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


def tops_of(weights: Any) -> dict[str, list[str]]:
    """Names of the top level of the program's parameters, by module of the script."""
    tops: dict[str, list[str]] = {}
    for name, paths in weights.paths.items():
        known = tops.setdefault(name.partition(".")[0], [])
        known += [path.split("/")[1] for path in paths if path.split("/")[1] not in known]
    return tops


def found_outputs(
    facts: ProgramFacts,
    recorded: Mapping[str, Any],
    trained: Sequence[str],
    options: TrainOptions,
    place: Path,
    work: Path,
    step: str = "STEP",
    functions: str = "Functions",
    start: Path | None = None,
    *,
    parts: bool = False,
) -> tuple[list[Any], str, frozenset[str]]:
    """Find the outputs of the script's model in the program, and compare its functions.

    Both are done on the first micro-batch. `trained` are trained modules of the program, `step` and
    `functions` the names of the step in `loss.py` and of the class in `functions.py`, `start` the weights
    that the recorded update starts from; None: those of the program. With `parts`, outputs of the modules'
    parts come after those of the modules.

    Returns:
        Where the program has each, why they could not be looked for, and functions that are not known to give
        what the script's give.
    """
    inputs = recorded["updates"][0]["micro"][0]["inputs"]
    arrays: dict[str, Any] = {f"input:{name}": inputs[name] for name in facts.inputs}
    outputs = (*recorded["outputs"], *(recorded["outputs_of_parts"] if parts else ()))
    arrays |= {f"output:{number}": value for number, value in enumerate(outputs)}
    for function in recorded["functions"]:
        inputs_of_call, results = recorded["function_values"][function.method]
        method = function.method
        arrays |= {f"{method}:input:{name}": value for name, value in inputs_of_call.items()}
        arrays |= {f"{method}:output:{number}": value for number, value in enumerate(results)}
    file, answer = work / "outputs.npz", work / "outputs.json"
    np.savez(file, **arrays)
    asked = {
        "arguments": {"deterministic": not facts.training} if facts.takes_mode else {},
        "streams": facts.streams if facts.draws else (),
        "trained": trained,
        "step": step,
        "class": functions,
        "start": "" if start is None else str(start),
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
