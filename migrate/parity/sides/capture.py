"""Run a side into a folder."""

from __future__ import annotations

from pathlib import Path

from migrate.parity.dump import DumpWriter
from migrate.parity.inputs import InputSet
from migrate.parity.sides.runner import Forced, Runner
from migrate.parity.sides.settings import Settings


def capture_into(
    runner: Runner,
    settings: Settings,
    inputs: InputSet,
    folder: Path,
    *,
    layers: bool = True,
    forced: Forced | None = None,
) -> float:
    """Write a complete dump of a run; give the seconds of its plain passes (`Runner.capture`)."""
    writer = DumpWriter(folder, runner.facts(settings), inputs.count)
    seconds = runner.capture(settings, inputs, writer, layers=layers, forced=forced)
    writer.close()
    return seconds
