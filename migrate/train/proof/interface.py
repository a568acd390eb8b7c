"""Stage "interface": the program's functions by the script's names and layouts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from migrate import process
from migrate.train.proof.program import RECORD, child
from migrate.train.results import TrainComparison


def interface_comparisons(
    folder: Path, recorded: Mapping[str, Any], work: Path, timeout: float
) -> Iterator[TrainComparison]:
    """Yield what `interface.py` gives, beside the script's own weights, outputs and gradients.

    Args:
        folder: folder of the program; without `interface.py` nothing is compared.
        recorded: the recorded run.
        work: folder with the record.
        timeout: seconds.
    """
    if not (folder / "interface.py").is_file():
        return
    output = work / "interface.json"
    output.unlink(missing_ok=True)
    paths = (folder, work / RECORD, output)
    code, said = child("migrate.train.proof.interface_child", paths, timeout)
    if code != 0 or not output.exists():
        what = f"interface.py does not run: {process.last_line(said)[:200]}"
        yield TrainComparison("interface", False, what=what)
        return
    for name, entry in json.loads(output.read_text()).items():
        worst = entry["worst"] if entry["worst"] is None else float(entry["worst"])
        same = bool(entry["same"])
        yield TrainComparison(name, same, worst, entry["limit"], entry["what"])
