"""The function that runs in each replica of a script that torchrun used to start."""

from __future__ import annotations

import contextlib
import io
import re
import tokenize
from collections.abc import Iterable

import libcst as cst

from migrate.reading.replicas.launch import names_in
from migrate.rewrite.results import START_WITH_PYTHON
from migrate.rewrite.workspace import Workspace

# Commands that start the ranks of a CUDA script, as texts write them.
_TORCHRUN = re.compile(r"\btorchrun(?=\s+-)|\btorch\.distributed\.(launch|run)(?=\s+-)")


def free_name(wanted: str, context: Workspace, beside: Iterable[cst.CSTNode | None] = ()) -> str:
    """Return `wanted`, with underscores after it where the script uses that name.

    Args:
        wanted: the name.
        context: the script.
        beside: nodes of the script that go, or bind nothing: they take no name.
    """
    without = {id(node) for node in beside}
    taken = {
        name.value for name in context.below(context.module, cst.Name) if id(name) not in without
    }
    while wanted in taken:
        wanted += "_"
    return wanted


def rank_environment(index: str, context: Workspace, os: str, runtime: str) -> list[str]:
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


def index_name(context: Workspace) -> str:
    """Return a name for the replica's index that the script uses for nothing else."""
    used = names_in(context.module)
    if context.portable and "rank" not in used:
        return "rank"
    return free_name("index", context) if "index" in used else "index"


def head_of_replica(index: str, context: Workspace) -> list[str]:
    """Return the first statements of the function that a replica runs.

    `torch_xla.launch` leaves the environment as it is, `shims.launch` sets it as torchrun does.
    """
    if context.portable:
        return []
    os = context.imports.require("os")
    runtime = context.imports.require("torch_xla.runtime", "xr")
    quote = context.quote
    return [
        f"if {quote}TORCHELASTIC_RUN_ID{quote} not in {os}.environ:  # else torchrun has set them",
        *(f"    {line}" for line in rank_environment(index, context, os, runtime)),
    ]


def launch_statement(function: str, context: Workspace) -> str:
    """Return the line that starts the replicas, with the reason above it where they are forked."""
    launch = context.vocabulary.write("launch")
    if not uses_hydra(context):
        return f"{launch}({function})"
    fork = context.string("fork").value
    return (
        "# Forked: hydra looks for the configuration beside the module __main__.\n"
        f"{launch}({function}, start_method={fork})"
    )


def instead_of_torchrun(context: Workspace) -> str:
    """Return what the report adds if a docstring or a comment says to start the script by torchrun.

    The text is the user's, and stays.
    """
    text = context.source.text
    if not _TORCHRUN.search(text):
        return ""
    with contextlib.suppress(tokenize.TokenError, IndentationError):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in (tokenize.STRING, tokenize.COMMENT):
                continue
            if said := _TORCHRUN.search(token.string):
                line = token.start[0] + token.string[: said.start()].count("\n")
                needless = f"{said[0]} (line {line}) is no longer needed, and still works"
                return f"; {START_WITH_PYTHON}: {needless}"
    return ""


def uses_hydra(context: Workspace) -> bool:
    """Whether hydra starts the script's main function, which looks for files beside `__main__`."""
    return any(
        context.qualified_name(node) == "hydra.main"
        for node in context.nodes
        if isinstance(node, cst.Attribute | cst.Name)
    )


def launch_of_file(context: Workspace) -> str:
    """Return the statements, in the portable style, that run the file in each replica and leave."""
    shims = context.imports.require("shims")
    return f"{shims}.launch_script(__file__)\n{context.imports.require('sys')}.exit()\n"


def is_launching_process(context: Workspace) -> str:
    """Return the question, in the portable style, whether this process is to start the replicas."""
    return f"{context.string('RANK').value} not in {context.imports.require('os')}.environ"
