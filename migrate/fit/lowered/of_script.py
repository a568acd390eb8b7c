"""The training step of a script, run on XLA:CPU as the first of N replicas until its steps are steady."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from migrate import process
from migrate.compiler.hlo import from_here, users
from migrate.counts import many
from migrate.fit.errors import FitError
from migrate.fit.lowered.changed import NO_BLOCKS
from migrate.fit.lowered.memory_here import REMEDY, WHAT, lacks_memory
from migrate.fit.lowered.step import LoweredStep, part_of
from migrate.fit.lowered.watch import (
    AT,
    CHANGED,
    DEVICES,
    FACTS,
    FOLDER,
    MOST_STEPS,
    ON_HOST,
    PORT,
    PROGRAM,
    STEPS,
    WHY,
)
from migrate.place import Place
from migrate.process import CORRECT_ARGUMENTS, refused_arguments
from migrate.quick_xla import compiling_quickly
from shims import activate
from shims._shared.ports import free_port
from shims._started import stand_in
from shims.choice import FORCE

_TAIL = 600  # characters of what a script said before it failed
_FRAME = re.compile(r'File "(/[^"]+)", line (\d+)')
_MIRROR = "place"  # in the folder of a fit
_RANDOM = re.compile(r"(/migrate-(?:fit|rewritten)-)(\w{8})(?=/|$)")  # as `tempfile` makes them
_INSTALLED = re.compile("-packages/|/lib/python3")


def lower_script(
    script: Path,
    args: Sequence[str],
    *,
    devices: int,
    shown: str,
    timeout: float,
    places: Callable[[str], str] = str,
    torchrun: bool = False,
    changed: str = "",
) -> LoweredStep:
    """Run a torch_xla script until the program of its training step comes a second time.

    Args:
        script: the script. A rewritten form may be in a folder of its own.
        args: arguments of the script.
        devices: how many replicas it is to believe in.
        shown: what the user named.
        timeout: seconds until then.
        places: maps a location in the file that runs to the location that the user knows.
        torchrun: whether it is started with the variables that torchrun gives to the first of them.
        changed: one of `migrate.fit.lowered.changed.CHANGES`, made while it runs, or "" for none.

    Raises:
        FitError: the script ended, failed or ran too long without a training step.
    """
    with tempfile.TemporaryDirectory(prefix="migrate-fit-") as name:
        folder = Path(name).resolve()
        extra = (as_torchrun(devices) if torchrun else {}) | {CHANGED: changed}
        steps, read_at = 0, ""
        for first in (True, False):
            place = _place(folder, script)
            known = _known(script, folder, place, places)
            code, said = _run(script, args, folder, place, devices, steps, timeout, extra)
            said = place.text_outside(said)
            if (folder / FACTS).exists():
                facts = json.loads((folder / FACTS).read_text())
                if not facts["changed"]:
                    raise FitError(f"{shown}: {NO_BLOCKS}", "leave it out")
                for number, program in enumerate(facts["programs"]):
                    program["hlo"] = _lasting(
                        (folder / PROGRAM.format(number)).read_bytes(), script, folder
                    )
                return _step(facts, shown, known, [str(path) for path in place.changed()])
            count = int((folder / STEPS).read_text()) if (folder / STEPS).exists() else 0
            if (folder / WHY).exists():
                # An evaluation that exchanges values came before the step: the next one is taken.
                read_at, steps = known((folder / WHY).read_text()), count + 2
                (folder / WHY).unlink()
                if first:
                    continue
            if read_at:
                raise FitError(
                    f"{shown}: {read_at} reads a value before the recorded step, not before earlier steps",
                    "run more steps between evaluations: use smaller batches or more data",
                )
            if first:
                steps = count
            on_host = (folder / ON_HOST).read_text() if (folder / ON_HOST).exists() else ""
            if on_host and code and (code < 0 or "BrokenProcessPool" in said):
                raise FitError(
                    f"{shown}: the process ended while a step was traced. The step runs {on_host} on the "
                    "CPU, which is the likely cause",
                    "write the step without them, which is faster on a TPU too: `migrate check` names their "
                    "lines (XLA111), and `migrate check --explain XLA111` what to write instead",
                )
            if code != 0 or not steps:
                raise failure(code, said, shown, timeout, known, modules_of(script), devices)
            # It ends before a step repeats: its last one is taken, in a run of its own.
        raise FitError(
            f"{shown}: made {many(steps, 'step')} in a first run, and fewer in a second",
            "run more steps: use smaller batches or more data",
        )


def _place(folder: Path, script: Path) -> Place:
    """A new mirror of the user's folders: what a run saves replaces nothing, nor is it found by the next."""
    mirror = folder / _MIRROR
    shutil.rmtree(mirror, ignore_errors=True)
    mirror.mkdir()
    return Place(mirror, script, Path.cwd())


def _lasting(hlo: bytes, script: Path, folder: Path) -> bytes:
    """A program in which the folders of this run have names that those of the next one have too.

    By its content what the compiler said of it is found again. The names are as long as those they stand
    for: the program is a protobuf, which holds the length of all that it holds.
    """
    for candidate in (script.parent, folder):
        hlo = hlo.replace(str(candidate).encode(), _lasting_name(candidate).encode())
    return hlo


def _lasting_name(folder: Path) -> str:
    """Name of a folder, without the random part of a temporary folder's name."""
    return _RANDOM.sub(lambda match: match[1] + "_" * len(match[2]), str(folder))


def _known(
    script: Path, folder: Path, place: Place, places: Callable[[str], str]
) -> Callable[[str], str]:
    """Map a location in a file that ran, also as `_lasting` names it, to the location that the user knows."""

    def known(text: str) -> str:
        for candidate in (script.parent, folder):
            text = text.replace(_lasting_name(candidate), str(candidate))
        return from_here(places(place.text_outside(text)))

    return known


def _run(
    script: Path,
    args: Sequence[str],
    folder: Path,
    place: Place,
    devices: int,
    at: int,
    timeout: float,
    extra: Mapping[str, str],
) -> tuple[int | None, str]:
    """Run the script until it has written a program, or ends. Return its exit code and its output."""
    environment = {
        **os.environ,
        **activate.environment(activate.NO_BACKEND, 1, ["migrate.fit.lowered.watch:install"]),
        **stand_in.environment(script),
        # The program is taken as XLA is given it: what the CPU makes of it is thrown away.
        **compiling_quickly(os.environ),
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": "1",
        FORCE: "xla",  # of a script in the words of shims, which would take the CPU here
        # Where its process group of one meets: torch_xla's own port may be another run's.
        PORT: str(free_port()),
        FOLDER: str(folder),
        DEVICES: str(devices),
        AT: str(at),
        **extra,
    }
    # That many it has been given by nobody: a script in the words of shims would refuse another number.
    environment.pop(activate.REPLICAS)
    alone = ["-P"] if stand_in.stands_for(script) else []
    facts = folder / FACTS
    return process.run(
        [sys.executable, *alone, str(place.inside(script)), *place.args(args)],
        seconds=timeout,
        environment=place.environment(environment),
        cwd=place.folder,
        meanwhile=lambda: 0 if facts.exists() else None,
    )


def as_torchrun(devices: int) -> dict[str, str]:
    """Environment variables that torchrun sets in its first process, the only one here."""
    counts = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(devices))
    firsts = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    one_group = {"GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "migrate-fit"}
    return {**counts, **firsts, **address, **one_group}


def failure(
    code: int | None,
    said: str,
    shown: str,
    timeout: float,
    places: Callable[[str], str],
    modules: Sequence[str] = (),
    devices: int = 1,
) -> FitError:
    """The error of a script that has made no step.

    Args:
        code: exit code of the script, or None after a timeout.
        said: what it printed.
        shown, timeout, places: see `lower_script`.
        modules: see `modules_of`.
        devices: see `lower_script`.
    """
    if code is None:
        return FitError(
            f"{shown}: made no training step within {timeout:.0f} s",
            "raise the limit with --timeout",
        )
    if refused := refused_arguments(code, said):
        return FitError(f"{shown}: refuses its arguments: {refused}", CORRECT_ARGUMENTS)
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")[-_TAIL:]
    if lacks_memory(code, said):
        last = last or "the system ended it"
        return FitError(f"{shown}: {WHAT}{_at(said, places)} ({last})", REMEDY)
    if code:
        if any(f"KeyError: '{name}'" in said for name in as_torchrun(1)):
            return FitError(f"{shown}: needs the variables of torchrun ({last})", "add --torchrun")
        return FitError(
            f"{shown}: ended with exit code {code} before a step was taken"
            f"{_at(said, places)} ({last or 'it said nothing'})",
            "check that it runs with `migrate run`",
        )
    return FitError(
        f"{shown}: ended without a training step on the device"
        + (f" (last output: {last})" if last else ""),
        f"if it is a model, name its class: {shown}:{modules[-1]}"
        if modules and shown.endswith(".py")
        else "end each step with torch_xla.sync() or torch_xla.step()"
        + (f", and give data for a batch on each of {devices} replicas" if devices > 1 else ""),
    )


def modules_of(script: Path) -> list[str]:
    """Classes of a file that trains nothing, each on a class named Module: what the user may have meant."""
    tree = ast.parse(script.read_bytes())
    calls = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and "backward" not in calls
        and any(ast.unparse(base).rpartition(".")[2] == "Module" for base in node.bases)
    ]


def _at(said: str, places: Callable[[str], str]) -> str:
    """Return where a script failed, as " at train.py:93": the innermost line in a traceback."""
    if (
        "_RemoteTraceback" in said
    ):  # of the process that `torch_xla.launch` starts: its own comes first
        said = said.partition("The above exception was the direct cause")[0]
    named = users(f"{file}:{line}" for file, line in _FRAME.findall(said))
    own = [place for place in named if not _INSTALLED.search(place)]
    return f" at {places(own[-1])}" if own else ""


def not_steady(steps: int) -> str:
    """Return the note on a script of which no two observed steps ran the same programs.

    Args:
        steps: number of observed steps.
    """
    observed = many(steps, "observed step")
    if steps > MOST_STEPS:
        return (
            f"each of the {observed} ran a program of its own: the figures are those of the last one, and "
            "the script may compile at every step. `migrate run` shows what changes"
        )
    return (
        f"no two of the {observed} ran the same programs, so these may be programs of a first step only; "
        "pass arguments with which the script takes more steps"
    )


def _step(
    facts: dict[str, Any], shown: str, places: Callable[[str], str], changed: Sequence[str]
) -> LoweredStep:
    parts = tuple(
        replace(part_of(program, shown), times=program["times"]) for program in facts["programs"]
    )
    notes = []
    if len(parts) > 1:
        several = any(part.times > 1 for part in parts)
        times = f" ({', '.join(f'{part.times}×' for part in parts)})" if several else ", each once"
        notes.append(
            f"a step runs {len(parts)} programs{times}: memory, and the line of its peak, are those of the "
            "largest; lower bound, exchanges and operations are those of all programs together"
        )
    if not facts["steady"]:
        notes.append(not_steady(facts["steps"]))
    if facts["optimizers"] > 1:
        notes.append(f"{facts['optimizers']} steps of optimizers are in one program")
    for wait in facts["waits"]:
        notes.append(
            f"a value is read at {places(wait)}: between the steps, by a program that is not in the figures"
        )
    for path in changed:
        notes.append(f"{path} was changed by the run: it is too large to be copied for it")
    cuts = tuple(places(cut) for cut in facts["cuts"])
    return LoweredStep(parts, True, tuple(notes), places, cuts, facts["host"], facts["backward"])
