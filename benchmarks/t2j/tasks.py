"""Reads tasks.toml: public names, modules and batches of each script."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROLES = ("model", "loss", "step", "optimizer", "data")


def read_tasks() -> dict[str, dict[str, Any]]:
    """Return all entries by the scripts' names without suffix."""
    return tomllib.loads((HERE / "tasks.toml").read_text())


def read_task(script: Path) -> dict[str, Any]:
    """Return the entry of a script."""
    return read_tasks()[script.stem]


def public_names(task: dict[str, Any]) -> list[str]:
    """Names that the program's interface must have, of all roles."""
    return [name for role in ROLES for name in task.get(role, [])]
