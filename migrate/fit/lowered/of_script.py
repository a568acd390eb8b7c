"""The training step of a script, run on XLA:CPU as the first of N replicas until its steps are steady."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from migrate import process
from migrate.compiler.hlo import users
from migrate.fit.errors import FitError
from migrate.fit.lowered.changed import NO_BLOCKS
from migrate.fit.lowered.of_torch import part_of
from migrate.fit.lowered.step import Step
from migrate.fit.lowered.watch import AT, CHANGED, DEVICES, FACTS, FOLDER, PROGRAM, STEPS
from shims import activate
from shims._shared.ports import free_port
from shims._started import stand_in
from shims.choice import FORCE

_TAIL = 600  # characters of what a script said before it failed
_FRAME = re.compile(r'File "(/[^"]+)", line (\d+)')
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
) -> Step:
    """Run a torch_xla script until the program of its training step comes a second time.

    Args:
        script: it; a rewritten form may lie in a folder of its own.
        args: its arguments.
        devices: how many replicas it is to believe in.
        shown: what the user named.
        timeout: seconds until then.
        places: from a place in the file that runs to the one that the user knows.
        torchrun: whether it is started with the variables that torchrun gives to the first of them.
        changed: one of `migrate.fit.lowered.changed.CHANGES`, made while it runs; "" for none.

    Raises:
        FitError: it ended, failed or ran on without a training step.
    """
    at = 0
    while True:
        with tempfile.TemporaryDirectory(prefix="migrate-fit-") as name:
            folder = Path(name)
            extra = (as_torchrun(devices) if torchrun else {}) | {CHANGED: changed}
            code, said = _run(script, args, folder, devices, at, timeout, extra)
            if (folder / FACTS).exists():
                found = json.loads((folder / FACTS).read_text())
                if not found["changed"]:
                    raise FitError(f"{shown}: {NO_BLOCKS}", "leave it out")
                for number, one in enumerate(found["programs"]):
                    one["hlo"] = (folder / PROGRAM.format(number)).read_bytes()
                return _step(found, shown, places)
            steps = int((folder / STEPS).read_text()) if (folder / STEPS).exists() else 0
        if code != 0 or at or not steps:
            raise failure(code, said, shown, timeout, places)
        at = steps  # it ends before a step repeats: its last one is taken, in a run of its own


def _run(
    script: Path,
    args: Sequence[str],
    folder: Path,
    devices: int,
    at: int,
    timeout: float,
    extra: Mapping[str, str],
) -> tuple[int | None, str]:
    """Run the script until it has written a program, or ends; its exit code, and what it printed."""
    environment = {
        **os.environ,
        **activate.environment(activate.NO_BACKEND, 1, ["migrate.fit.lowered.watch:install"]),
        **stand_in.environment(script),
        "PJRT_DEVICE": "CPU",
        "CPU_NUM_DEVICES": "1",
        FORCE: "xla",  # of a script in the words of shims, which would take the CPU here
        # Where its process group of one meets: torch_xla's own port may be another run's.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
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
        [sys.executable, *alone, str(script), *args],
        seconds=timeout,
        environment=environment,
        meanwhile=lambda: 0 if facts.exists() else None,
    )


def as_torchrun(devices: int) -> dict[str, str]:
    """What torchrun tells the first of its processes, which is the only one here."""
    counts = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(devices))
    firsts = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"), "0")
    return {**counts, **firsts, "GROUP_WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "migrate-fit"}


def failure(
    code: int | None, said: str, shown: str, timeout: float, places: Callable[[str], str]
) -> FitError:
    """The error of a script that has made no step.

    Args:
        code: that it ended with; None: its time was over.
        said: what it printed.
        shown, timeout, places: see `lower_script`.
    """
    if code is None:
        return FitError(
            f"{shown}: made no step of training in {timeout:.0f} s", "give it more: --timeout"
        )
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "")[-_TAIL:]
    if code:
        if any(f"KeyError: '{name}'" in said for name in as_torchrun(1)):
            return FitError(
                f"{shown}: asks for torchrun's variables ({last})", "give them: --torchrun"
            )
        return FitError(
            f"{shown}: ended with exit code {code} before a step was taken"
            f"{_at(said, places)} ({last or 'it said nothing'})",
            "see that `migrate run` runs it",
        )
    return FitError(
        f"{shown}: ended without a step of training on the device"
        + (f" (it said last: {last})" if last else ""),
        "end each step by torch_xla.sync() or torch_xla.step()",
    )


def _at(said: str, places: Callable[[str], str]) -> str:
    """Where a script failed: its innermost line that a traceback names last, as " at train.py:93"."""
    if (
        "_RemoteTraceback" in said
    ):  # of the process that `torch_xla.launch` starts: its own comes first
        said = said.partition("The above exception was the direct cause")[0]
    named = users(f"{file}:{line}" for file, line in _FRAME.findall(said))
    own = [place for place in named if not _INSTALLED.search(place)]
    return f" at {places(own[-1])}" if own else ""


def _step(found: dict[str, Any], shown: str, places: Callable[[str], str]) -> Step:
    parts = tuple(replace(part_of(one, shown), times=one["times"]) for one in found["programs"])
    notes = []
    if len(parts) > 1:
        times = ", ".join(f"{part.times}×" for part in parts)
        notes.append(
            f"a step is {len(parts)} programs ({times}): the memory is that of the largest"
        )
    if not found["steady"]:
        notes.append(
            f"no step of {found['steps']} was seen to have the program of another: this is the last of them"
        )
    if found["optimizers"] > 1:
        notes.append(f"{found['optimizers']} steps of optimizers are in one program")
    for one in found["waits"]:
        notes.append(
            f"a value is read at {places(one)}: between the steps, by a program that is not in the figures"
        )
    cuts = tuple(places(one) for one in found["cuts"])
    return Step(parts, True, tuple(notes), places, cuts)
