"""The inputs of a port from a script: what its own model is given in its first steps; and that model."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate import process
from migrate.place import Place
from migrate.port.errors import PortError
from migrate.port.witness import COUNT, FACTS, FOLDER, NAME
from shims import activate

_FACTORY = '''\
"""The model of {script}, as its run made it."""

import sys

sys.path[:0] = {folders!r}

{imports}


def build():
    return {call}
'''


@dataclass(frozen=True)
class RecordedModel:
    """Record of a run of a script.

    Attributes:
        inputs: a folder of what the model was given, as `--inputs` takes it.
        target: the model, where nobody named it: a factory that was written.
        name: the class of the model.
        notes: what is not in the record.
    """

    inputs: Path
    target: str
    name: str
    notes: tuple[str, ...]


def record_script(
    script: Path,
    args: Sequence[str],
    target: str | None,
    *,
    count: int,
    timeout: float,
    folder: Path,
    originals: Path,
) -> RecordedModel:
    """Run a script on the CPU until its model has been called often enough.

    Args:
        script: the training script.
        args: arguments of the script.
        target: the model that the user named; None: the script's own.
        count: calls to record.
        timeout: seconds until then.
        folder: an empty folder for the record.
        originals: folder for the factory of a model that nobody named.

    Raises:
        PortError: the script ended, failed or ran too long without enough calls of the model.
    """
    if not script.is_file():
        raise PortError(f"--from-script {script}: no such file", "check the path")
    mirror = folder / "place"
    mirror.mkdir(parents=True)
    place = Place(mirror, script, Path.cwd())
    facts = folder / FACTS
    named = "" if target is None else target.rpartition(":")[2].rpartition(".")[2]
    for wanted in dict.fromkeys((named, "")):  # a factory's name is no class
        code, said = _run(place, script, args, wanted, count, timeout, folder)
        if facts.exists() or code:
            break
    if not facts.exists():
        raise _failure(script, code, place.text_outside(said), timeout, count)
    values = json.loads(place.text_outside(facts.read_text()))
    if not values["names"]:
        raise PortError(
            f"{script}: its model {values['name']} gets no tensors",
            "name the submodule that gets tensors: migrate port net.py:Net --from-script …",
        )
    factory = target or _factory(values, script, originals)
    inputs = originals / f"{script.stem}_inputs"
    shutil.rmtree(inputs, ignore_errors=True)
    shutil.copytree(folder / "inputs", inputs)
    name = values["name"].rpartition(".")[2]
    return RecordedModel(inputs, factory, name, tuple(_notes(values, script, inputs)))


def _run(
    place: Place,
    script: Path,
    args: Sequence[str],
    name: str,
    count: int,
    timeout: float,
    folder: Path,
) -> tuple[int | None, str]:
    variables = {
        **os.environ,
        **activate.environment("cpu", 1, ["migrate.port.witness:install"]),
        FOLDER: str(folder),
        NAME: name,
        COUNT: str(count),
    }
    return process.run(
        [sys.executable, str(place.inside(script)), *place.args(args)],
        seconds=timeout,
        environment=place.environment(variables) | {FOLDER: str(folder)},
        cwd=place.folder,
    )


def _failure(script: Path, code: int | None, said: str, timeout: float, count: int) -> PortError:
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")[:300]
    if code is None:
        return PortError(
            f"{script}: did not call its model {count} times within {timeout:.0f} s",
            "raise the limit with --timeout, or ask for fewer: --count",
        )
    if code:
        return PortError(
            f"{script}: ended with exit code {code} before its model was called {count} times"
            f" ({last or 'no output'})",
            "check that it runs on a CPU alone; arguments of the script go after --",
        )
    return PortError(
        f"{script}: ended before it called a model with trainable parameters {count} times",
        "lower --count, or name the model: migrate port net.py:Net --from-script …",
    )


def _factory(facts: dict[str, Any], script: Path, originals: Path) -> str:
    """Write a file with a function that makes the model; what names it."""
    if "why" in facts:
        raise PortError(
            f"{script}: its model {facts['name']} was built with values that cannot be written as source"
            f" ({facts['why']})",
            "write a function that builds it: migrate port net.py:build --from-script …",
        )
    originals.mkdir(parents=True, exist_ok=True)
    file = originals / f"{script.stem}_model.py"
    file.write_text(
        _FACTORY.format(
            script=script.name,
            folders=facts["folders"],
            imports="\n".join(facts["imports"]),
            call=facts["call"],
        )
    )
    return f"{file}:build"


def _notes(facts: dict[str, Any], script: Path, inputs: Path) -> list[str]:
    notes = [
        f"inputs: what {script.name} gave to {facts['name']} in {facts['count']} calls; "
        f"--inputs {inputs} gives them again"
    ]
    if facts["beside"]:
        beside = ", ".join(f"{name}={value}" for name, value in facts["beside"].items())
        notes.append(f"{script.name} gives {beside} beside the tensors: the port does without")
    return notes
