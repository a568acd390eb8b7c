"""Processes that a host starts for a program, and whether the program joins the hosts of a slice."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from migrate.catalogue import torch_distributed
from migrate.catalogue.launchers import SCRIPT, SPAWN, XLA_LAUNCHES
from migrate.catalogue.words import GROUP_VARIABLES
from migrate.launch.framework import Framework
from shims._started.script import find_start

_SHIMS_LAUNCHES = frozenset({"shims.launch", SCRIPT})
_SPMD = frozenset({"torch_xla.runtime.use_spmd"})
_GROUPS = torch_distributed.JOINS | {"shims.init_distributed"}
_JOINS_JAX = frozenset({"jax.distributed.initialize"})
# Variables of a job, and of torchrun and torch_tpu, by which a program knows the number of its host.
_HOST_VARIABLES = GROUP_VARIABLES | {"HOST_INDEX"}


class ProcessStart(StrEnum):
    """Processes that a host starts."""

    HOST = "one process per host"  # it starts the others itself, or drives all chips
    CHIP = "one process per chip"


@dataclass(frozen=True)
class StartStyle:
    """Start of a program on the hosts of a slice.

    Attributes:
        start: which processes a host starts.
        option: option with the number of the process on its host, such as --local_rank; empty: none.
        one_chip: whether the program has no ranks, and so uses one chip only.
        joins_hosts: whether the program connects the hosts of a slice, or its framework does.
    """

    start: ProcessStart
    option: str = ""
    one_chip: bool = False
    joins_hosts: bool = True


def start_style(
    framework: Framework, calls: Set[str], strings: Set[str], script: Path
) -> StartStyle:
    """Return how a program starts.

    Args:
        framework: the package that drives the TPU.
        calls: dotted names of the external functions that it calls.
        strings: text of its strings.
        script: the file that is run.
    """
    if framework is Framework.JAX:
        return StartStyle(ProcessStart.HOST, joins_hosts=bool(calls & _JOINS_JAX))
    if framework is Framework.TORCH_XLA and calls & (XLA_LAUNCHES | _SHIMS_LAUNCHES | _SPMD):
        return StartStyle(ProcessStart.HOST)
    expected = find_start(script, [str(script.parent)])
    if calls & SPAWN or expected.style == "spawn":
        # It starts the ranks of its host; of other hosts it knows only by a variable.
        joins = bool(strings & _HOST_VARIABLES)
        return StartStyle(ProcessStart.HOST, joins_hosts=joins)
    if calls & (_GROUPS | _SHIMS_LAUNCHES) or expected.style in ("environment", "option"):
        return StartStyle(ProcessStart.CHIP, expected.option)
    return StartStyle(ProcessStart.HOST, one_chip=True, joins_hosts=False)
