"""Machine of a rank of a recorded run, in a file beside its steps. No torch is imported here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Device of a rank.

    Attributes:
        kind: "cuda" or "cpu".
        name: name of the device.
        modes: modes of arithmetic, in words: TF32 and where.
        versions: versions of the software that drives it, by name.
    """

    kind: str
    name: str
    modes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def tf32(self) -> bool:
        """Whether float32 was multiplied in TF32, which keeps 11 bits of 24."""
        return any(mode.startswith("TF32") for mode in self.modes)


def machine_path(folder: Path, rank: int) -> Path:
    """Path of the file of a rank's machine."""
    return folder / f"rank{rank}.machine.json"


def read_machines(folder: Path) -> dict[int, Machine]:
    """Read the machines of all ranks that wrote one."""
    machines = {}
    for path in folder.glob("rank*.machine.json"):
        values = json.loads(path.read_text())
        machines[int(path.name.split(".")[0].removeprefix("rank"))] = from_json(values)
    return dict(sorted(machines.items()))


def from_json(values: dict[str, object]) -> Machine:
    """Read back a `Machine` from `vars` and JSON.

    Raises:
        TypeError: a field is unknown, or missing.
    """
    return Machine(**{**values, "modes": tuple(values.get("modes", ()))})  # type: ignore[arg-type]
