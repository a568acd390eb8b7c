"""Capture a run of a side into a folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from migrate.parity.dump.reference import AlignedTruth, Forced
from migrate.parity.dump.writer import DumpWriter
from migrate.parity.ground.settings import SideSettings
from migrate.parity.inputs.set import InputSet, attended
from migrate.parity.sides.runner import Runner

INPUTS = "inputs"


def capture_into(
    runner: Runner,
    settings: SideSettings,
    inputs: InputSet,
    folder: Path,
    *,
    layers: bool = True,
    forced: Forced | None = None,
    measured: AlignedTruth | None = None,
    numbers: Sequence[int] | None = None,
) -> float:
    """Write a complete dump of a run; return the seconds of its plain passes (`Runner.capture`).

    The inputs are stored with it, in `inputs`, so that another side can be compared with it later.

    Args:
        runner, settings, inputs, layers, forced, numbers: as in `Runner.capture`.
        folder: folder of the dump.
        measured: truth to measure the tensors of layers against, instead of writing them (`judge.measured`).
    """
    facts = runner.facts(settings)
    writer = DumpWriter(folder, facts, inputs.count)
    if measured is not None:
        from migrate.parity.judge.measured import MeasuringWriter

        fed, padding = forced is not None, attended(inputs)
        writer = MeasuringWriter(folder, facts, inputs.count, measured, padding, fed=fed)
    seconds = runner.capture(
        settings, inputs, writer, layers=layers, forced=forced, numbers=numbers
    )
    shutil.copytree(inputs.folder, folder / INPUTS, copy_function=_link, dirs_exist_ok=True)
    writer.close()
    return seconds


def _link(source: str, target: str) -> None:
    """Link or copy a file: several dumps share the same inputs."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copy2(source, target)
