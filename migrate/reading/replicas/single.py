"""Scripts of one process that read variables which a launcher sets for several."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.replicas.launch import Style
from migrate.reading.values.collectives import called
from migrate.syntax.tree import code, string_value

if TYPE_CHECKING:
    from migrate.reading.script import Script


def is_of_one_process(node: cst.CSTNode, name: str, context: Script) -> bool:
    """Whether a single-process script reads the variable `name` with the default that is right for it.

    The script is run directly, no other file imports it, and it joins no process group.
    """
    if not isinstance(node, cst.Call) or len(node.args) != 2:
        return False
    default = node.args[1].value
    value = string_value(default) or (default.value if isinstance(default, cst.Integer) else None)
    if value != ("1" if name.endswith("SIZE") else "0"):
        return False
    calls = context.calls
    several = calls.imported or calls.joins or calls.distributed
    if several or context.launch.style is not Style.NONE:
        return False
    if any(called(call, context) == "init_process_group" for call in context.all_of(cst.Call)):
        return False
    return any("__main__" in code(guard.test) for guard in context.all_of(cst.If))
