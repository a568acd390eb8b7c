"""Scripts that train nothing and use no device. Their saved values are on the host."""

from __future__ import annotations

import builtins
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.names.bindings import passed_for
from migrate.reading.values.host import is_on_the_cpu, items_put
from migrate.reading.values.saved import arguments
from migrate.syntax.tree import last_part

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# Names of torch that have to do with a device, with a model, or with values of which the place is not seen.
OF_DEVICES = (
    *("torch.backends", "torch.cuda", "torch.nn", "torch.optim"),
    *("torch.set_default_device", "torch_xla", "torchvision.models"),
)
# Names that have to do with a device where it is not plainly the CPU.
PLACES = ("torch.device", "torch.load")
KNOWN = frozenset({"numpy", "pandas", "regex", "tokenizers", "torch", "tqdm"})
MOVES = frozenset({"backward", "cuda", "load_state_dict", "state_dict", "to", "xla"})


def saves_of_the_host(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` saves what a script makes that trains nothing and uses no device."""
    if _uses_devices(context):
        return False
    saved = (arguments(call, context) or {}).get("obj")
    if saved is None:
        return False
    return not _holds_given(saved.value, context, frozenset())


@lru_cache(maxsize=2)
def _uses_devices(context: Workspace) -> bool:
    calls = context.calls
    if context.moves_to_accelerator or calls.run_on_accelerator or calls.effects or calls.models:
        return True
    if calls.saves or calls.saved_by_first or calls.moving or calls.led is not None:
        return True
    for node in context.all_of(cst.Attribute, cst.Name):
        name = context.qualified_name(node) or ""
        if name.startswith(OF_DEVICES) or (name in PLACES and not _is_of_cpu(node, context)):
            return True
    return any(
        last_part(call.func) in MOVES
        or any(
            arg.keyword is not None
            and arg.keyword.value == "device"
            and not context.values.is_surely_cpu(arg.value)
            for arg in call.args
        )
        for call in context.all_of(cst.Call)
    )


def _is_of_cpu(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether `node` is called for the CPU: `torch.device("cpu")`, `torch.load(path, map_location="cpu")`.

    A name that an import binds is judged where it is called.
    """
    call = context.parent(node)
    if not isinstance(call, cst.Call) or call.func is not node:
        return isinstance(call, cst.ImportAlias)
    return context.values.is_surely_cpu(call) or is_on_the_cpu(call, context)


def _is_made_here(parameter: cst.Param, context: Workspace) -> bool:
    """Whether `parameter` is one of the `__init__` of a class that the script itself makes objects of."""
    function = context.function_around(parameter)
    class_ = context.class_around(function) if function is not None else None
    if function is None or class_ is None or function.name.value != "__init__":
        return False
    return any(
        isinstance(call := context.parent(mention), cst.Call) and call.func is mention
        for mention in context.references(class_.name.value)
    )


def _is_given(name: cst.Name, context: Workspace, seen: frozenset[str]) -> bool:
    """Whether `name` may hold what another file makes, or hands to a function of this one."""
    if name.value in seen:
        return False
    seen |= {name.value}
    above = context.parent(name)
    if isinstance(above, cst.Arg) and above.keyword is name:
        return False
    if isinstance(above, cst.Attribute) and above.attr is name:
        values = [value for _, value in context.attributes.get(name.value, ())]
        return any(_holds_given(value, context, seen) for value in values if value is not None)
    bindings = context.bindings(name)
    if not bindings:
        return not hasattr(builtins, name.value)
    if any(_gives(binding.node, name, context, seen) for binding in bindings):
        return True
    inside = context.function_around(name) or context.module
    return any(_holds_given(item, context, seen) for item in items_put(name.value, inside))


def _gives(node: cst.CSTNode, name: cst.Name, context: Workspace, seen: frozenset[str]) -> bool:
    """Whether the binding `node` gives `name` what may come from another file."""
    if isinstance(node, cst.Param):
        if name.value in ("self", "cls") or _is_made_here(node, context):
            return False
        passed = passed_for(name, context)
        return not passed or any(_holds_given(value, context, seen) for value in passed)
    if isinstance(node, cst.Import | cst.ImportFrom):
        root = (context.qualified_name(name) or "").partition(".")[0]
        return root not in KNOWN and root not in sys.stdlib_module_names
    for above in context.within_statement(node):
        if isinstance(above, cst.Assign | cst.AnnAssign | cst.AugAssign | cst.NamedExpr):
            return above.value is not None and _holds_given(above.value, context, seen)
        if isinstance(above, cst.For | cst.CompFor):
            return _holds_given(above.iter, context, seen)
    return False


def _holds_given(value: cst.CSTNode, context: Workspace, seen: frozenset[str]) -> bool:
    if isinstance(value, cst.Call) and context.qualified_name(value.func) == "torch.load":
        return False  # on the CPU, or the script uses devices
    positions = {
        id(name)
        for part in context.below(value, cst.Subscript)
        for element in part.slice
        for name in context.below(element, cst.Name)
    }
    names = (name for name in context.below(value, cst.Name) if id(name) not in positions)
    return any(_is_given(name, context, seen) for name in names)
