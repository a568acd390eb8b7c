"""The function that runs in each replica of a script that torchrun used to start."""

from __future__ import annotations

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.launch import names_in
from migrate.rewrite.tree import nodes_of


def free_name(wanted: str, context: Context) -> str:
    """Return `wanted`, with underscores after it where the script uses that name."""
    taken = {name.value for name in nodes_of(context.module, cst.Name)}
    while wanted in taken:
        wanted += "_"
    return wanted


def rank_environment(index: str, context: Context, os: str, runtime: str) -> list[str]:
    """Return the statements that give a replica the environment that torchrun gives a process.

    Args:
        index: the name of the replica's index: its global ordinal.
        context: the script, for its quotation marks.
        os, runtime: the names of the modules `os` and `torch_xla.runtime`.
    """
    values = {
        "RANK": f"str({index})",
        "LOCAL_RANK": f"str({runtime}.local_ordinal())",
        "WORLD_SIZE": f"str({runtime}.world_size())",
        "LOCAL_WORLD_SIZE": f"str({runtime}.local_device_count())",
    }
    quote = context.quote
    return [f"{os}.environ[{quote}{name}{quote}] = {value}" for name, value in values.items()]


def index_name(context: Context) -> str:
    """Return a name for the replica's index that the script uses for nothing else."""
    return free_name("index", context) if "index" in names_in(context.module) else "index"
