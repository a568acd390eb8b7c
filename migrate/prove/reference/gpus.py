"""GPUs of a run of an original: their number, and the environment of its processes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from migrate.prove.settings import ON, On
from shims import choice

# NVIDIA's libraries obey it, whatever a program sets.
_TF32 = "NVIDIA_TF32_OVERRIDE"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def where(
    environment: Mapping[str, str] | None = None, machine: choice.Machine | None = None
) -> tuple[On, int]:
    """Return the device of an original on this machine, and the default number of ranks.

    Args:
        environment: None for that of this process. `MIGRATE_BACKEND` forces a backend.
        machine: None for this machine.

    Returns:
        "cuda" with its GPUs, or "cpu" with 2 ranks.

    Raises:
        BackendMissingError: CUDA is forced, but missing.
    """
    environment = os.environ if environment is None else environment
    machine = machine or choice.Machine()
    forced = environment.get(choice.FORCE)
    if forced:
        choice.choose({choice.FORCE: forced}, machine)
    if forced in (None, "", "cuda") and (count := machine.cuda_devices()):
        return "cuda", count
    return "cpu", 2


def environment(
    ranks: int, *, tf32: bool = True, inherited: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the variables for an original on GPUs: one visible GPU for each rank.

    Args:
        ranks: number of ranks of the run.
        tf32: False lets no library multiply in TF32.
        inherited: the environment; None for that of this process.
    """
    inherited = os.environ if inherited is None else inherited
    shown = inherited.get(_VISIBLE)
    visible = [*map(str, range(ranks))] if shown is None else shown.split(",")[:ranks]
    variables = {ON: "cuda", _VISIBLE: ",".join(visible)}
    return variables if tf32 else variables | {_TF32: "0"}
