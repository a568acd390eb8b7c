"""What a rank of a recorded run ran on, in a file beside its steps. No torch is imported here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """The device of one rank.

    Attributes:
        kind: "cuda" or "cpu".
        name: of the device.
        modes: how it was set to compute, in words: TF32 and where.
        versions: of what drives it, by name.
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
    """Where a rank writes it."""
    return folder / f"rank{rank}.machine.json"


def read_machines(folder: Path) -> dict[int, Machine]:
    """Those of all ranks that wrote one."""
    found = {}
    for path in folder.glob("rank*.machine.json"):
        values = json.loads(path.read_text())
        found[int(path.name.split(".")[0].removeprefix("rank"))] = from_json(values)
    return dict(sorted(found.items()))


def from_json(values: dict[str, object]) -> Machine:
    """Read back what `vars` of a `Machine` and JSON made of it.

    Raises:
        TypeError: a field is unknown, or none is there.
    """
    return Machine(**{**values, "modes": tuple(values.get("modes", ()))})  # type: ignore[arg-type]
