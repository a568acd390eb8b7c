"""Scripts that train nothing and use no device: what they save lies on the host."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.names.bindings import passed_for
from migrate.reading.tree.tree import bind, last_part, nodes_of
from migrate.reading.values.saved import PARAMETERS

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# Names of torch that have to do with a device, with a model, or with values of which the place is not seen.
OF_DEVICES = (
    *("torch.backends", "torch.cuda", "torch.device", "torch.load", "torch.nn", "torch.optim"),
    *("torch.set_default_device", "torch_xla", "torchvision.models"),
)
MOVES = frozenset({"backward", "cuda", "load_state_dict", "state_dict", "to", "xla"})


def saves_of_the_host(call: cst.Call, context: Workspace) -> bool:
    """Whether `call` saves what a script makes that trains nothing and uses no device."""
    if _uses_devices(context):
        return False
    saved = (bind(call, PARAMETERS) or {}).get("obj")
    if saved is None:
        return False
    names = nodes_of(saved.value, cst.Name)
    return not any(_is_given(name, context, frozenset()) for name in names)


@lru_cache(maxsize=2)
def _uses_devices(context: Workspace) -> bool:
    calls = context.calls
    if context.moves_to_accelerator or calls.run_on_accelerator or calls.effects or calls.models:
        return True
    if calls.saves or calls.saved_by_first or calls.moving or calls.led is not None:
        return True
    named = (context.qualified_name(node) or "" for node in context.all_of(cst.Attribute, cst.Name))
    if any(name.startswith(OF_DEVICES) for name in named):
        return True
    return any(
        last_part(call.func) in MOVES
        or any(arg.keyword is not None and arg.keyword.value == "device" for arg in call.args)
        for call in context.all_of(cst.Call)
    )


def _is_made_here(parameter: cst.Param, context: Workspace) -> bool:
    """Whether `parameter` is one of the `__init__` of a class that the script itself makes objects of."""
    function = context.function_around(parameter)
    made = context.class_around(function) if function is not None else None
    if function is None or made is None or function.name.value != "__init__":
        return False
    return any(
        isinstance(call := context.parent(mention), cst.Call) and call.func is mention
        for mention in context.references(made.name.value)
    )


def _is_given(name: cst.Name, context: Workspace, seen: frozenset[str]) -> bool:
    """Whether `name` may hold what another file hands to a function of this one."""
    above = context.parent(name)
    if isinstance(above, cst.Attribute) and above.attr is name:
        given = context.attributes.get(name.value, ())
        return name.value not in seen and any(
            _is_given(part, context, seen | {name.value})
            for _, value in given
            if value is not None
            for part in nodes_of(value, cst.Name)
        )
    for binding in context.bindings(name):
        if isinstance(binding.node, cst.Param) and name.value not in ("self", "cls"):
            passed = passed_for(name, context)
            if not passed and _is_made_here(binding.node, context):
                continue
            if name.value in seen or not passed:
                return True
            parts = (part for value in passed for part in nodes_of(value, cst.Name))
            if any(_is_given(part, context, seen | {name.value}) for part in parts):
                return True
    return False
