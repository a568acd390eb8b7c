"""Numbers of replicas that a script passes to its samplers: its own number, or the size of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue import torch_other
from migrate.catalogue.entry import names
from migrate.catalogue.launchers import PROCESS, SPAWN, SPAWN_PARAMETERS
from migrate.reading.values.devices import is_device_count
from migrate.reading.values.environment import environment_name
from migrate.rewrite.rules.ranks.shared_counts import COUNTS, SharedCounts
from migrate.syntax.tree import bind, elements, nodes

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

SAMPLERS = names(*torch_other.SAMPLERS)
PARAMETERS = ("dataset", "num_replicas", "rank", "shuffle", "seed", "drop_last")
ASKED = frozenset(
    {
        "torch.distributed.get_world_size",
        "torch_xla.runtime.world_size",
        "torch_xla.runtime.global_device_count",
    }
)


def own_count(call: cst.Call, context: Workspace) -> cst.Arg | None:
    """Return the argument of a sampler for a number of replicas that the script itself chooses.

    The number is a literal, a name for a literal, a count of GPUs or an option. Return None if the number
    comes from the process group or the launcher's environment, or if the launched worker asks for it. Return
    None also if the file does not show the number, and for 1, which means that no data is divided.
    """
    if context.qualified_name(call.func) not in SAMPLERS:
        return None
    count = (bind(call, PARAMETERS) or {}).get("num_replicas")
    return count if count is not None and _is_own(count.value, context) else None


def _is_own(value: cst.BaseExpression, context: Workspace) -> bool:
    if isinstance(value, cst.Integer):
        return value.value != "1"
    if is_device_count(value, context):
        return True
    if not isinstance(value, cst.Name | cst.Attribute):
        return False
    last = value.attr.value if isinstance(value, cst.Attribute) else value.value
    values = context.values.given_to(value)
    if not values or any(_asks(expression, context) for expression in values):
        return False
    if isinstance(value, cst.Name):
        return (
            len(values) == 1 and isinstance(values[0], cst.Integer) and _is_own(values[0], context)
        )
    return COUNTS.fullmatch(last.lower()) is not None and not _worker_asks(value, context)


def _asks(value: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `value` is, or is made from, a number that the group or the launcher knows."""
    for node in nodes(value):
        if isinstance(node, cst.Call) and context.qualified_name(node.func) in ASKED:
            return True
        if isinstance(node, cst.SimpleString) and environment_name(node, context) == "WORLD_SIZE":
            return True
    return isinstance(value, cst.Call) and not is_device_count(value, context)


def _worker_asks(value: cst.Attribute, context: Workspace) -> bool:
    """Whether the worker sets `args.world_size` itself, once its launch has been rewritten."""
    for call in context.all_of(cst.Call):
        name = context.qualified_name(call.func)
        if name not in SPAWN | PROCESS:
            continue
        parameters = ("group", "target", "name", "args") if name in PROCESS else SPAWN_PARAMETERS
        bound = bind(call, parameters) or {}
        target = bound.get("target" if name in PROCESS else "fn")
        if target is None or "args" not in bound or not isinstance(target.value, cst.Name):
            continue
        worker = context.functions.get(target.value.value)
        count = bound["nprocs"].value if "nprocs" in bound else None
        first = 0 if name in PROCESS else 1
        shared = SharedCounts(context, call, count, elements(bound["args"]), worker, first)
        if value.attr.value in shared.words_in_worker():
            return True
    return False
