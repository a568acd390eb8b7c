"""The GPUs of a run of an original: how many there are, and what its processes are told."""

from __future__ import annotations

import os
from collections.abc import Mapping

from migrate.prove.settings import ON, On
from shims import choice

# NVIDIA's libraries obey it whatever a program says.
_TF32 = "NVIDIA_TF32_OVERRIDE"
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def where(
    environment: Mapping[str, str] | None = None, machine: choice.Machine | None = None
) -> tuple[On, int]:
    """Where an original runs on this machine, and on how many ranks where nobody says.

    Args:
        environment: None for that of this process. `MIGRATE_BACKEND` forces one.
        machine: None for this one.

    Returns:
        "cuda" with its GPUs, or "cpu" with 2 ranks.

    Raises:
        BackendMissingError: CUDA is forced and not there.
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
    ranks: int, *, tf32: bool = True, given: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The variables for an original on GPUs: a GPU for each rank, and no other one to be seen.

    Args:
        ranks: of the run.
        tf32: False lets no library multiply in TF32.
        given: the environment; None for that of this process.
    """
    given = os.environ if given is None else given
    shown = given.get(_VISIBLE)
    visible = [*map(str, range(ranks))] if shown is None else shown.split(",")[:ranks]
    variables = {ON: "cuda", _VISIBLE: ",".join(visible)}
    return variables if tf32 else variables | {_TF32: "0"}
