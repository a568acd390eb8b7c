"""Read a call of `torch.save`: the saved object and its path."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import COUNTERS, SAFETENSORS_SAVES
from migrate.reading.values.saved import arguments, contents
from migrate.reading.values.whole_modules import is_module
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rules.saving.own_paths import (
    names_replica,
    names_replica_at_times,
    ways_of_path,
)
from migrate.syntax.tree import code, keyword, nodes_of, string_value, targets

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

NAMES = {"obj": "data", "f": "file_or_path"}
ON_SOME_WAYS = "the path has the rank in it on some ways only"
TO_CPU_FIRST = "to the CPU first"
# What gives something that loads without running code.
PLAIN_METHODS = frozenset({"cpu", "item", "state_dict", "tolist"})
# Calls that give an open file, or a buffer.
OPENS = frozenset({"BlobFile", "BytesIO", "NamedTemporaryFile", "open"})
PLAIN_CALLS = frozenset({"float", "int", "len", "str", "vars"})


def by_hand(context: Workspace, *, own_file: bool = False) -> str:
    """Return the call that saves in the chosen style, for a message: by one replica, or each its own file."""
    if context.portable:
        return 'shims.save(obj, path, writers="all")' if own_file else "shims.save(obj, path)"
    return f"xm.save(obj, path, {'master_only=False' if own_file else 'global_master=True'})"


def refused(call: cst.Call, context: Workspace, *, alone: bool = False) -> str | None:
    """Return why `call` cannot become `xm.save` whatever is around it, or None.

    Args:
        call: the save.
        context: the script.
        alone: whether the first replica alone makes it: then into a file that it has opened, too.
    """
    bound = arguments(call, context)
    if bound is None and context.qualified_name(call.func) in SAFETENSORS_SAVES:
        return "safetensors with arguments that cannot be read"
    if bound is None:
        stars = all(arg.star for arg in call.args)
        share = context.effects.divides(call) if context.guards.around(call) is None else None
        if share is not None and share.mixed:
            return _at_times(context)
        return None if stars and call.args else "torch.save with arguments that cannot be read"
    if "pickle_module" in bound or "pickle_protocol" in bound:
        own = by_hand(context, own_file=names_replica(call, context))
        return (
            f"torch.save with a pickle of its own: {own} has none; move the tensors {TO_CPU_FIRST}"
        )
    into_file = "f" in bound and is_open_file(bound["f"].value, context)
    if into_file and (not alone or context.portable):
        return _into_open_file(bound["f"].value, context)
    if names_replica_at_times(call, context):
        return _at_times(context)
    if context.qualified_name(call.func) in SAFETENSORS_SAVES:
        if names_replica(call, context) or context.effects.divides(call) is not None:
            return (
                f"each replica writes a safetensors file of its own: move what it holds {TO_CPU_FIRST}, "
                "`{name: value.cpu() for name, value in weights.items()}`, and save_file stays"
            )
        return None
    each = names_replica(call, context)
    for value in contents(bound["obj"].value, context) if "obj" in bound else ():
        if is_module(value, context):
            return (
                f"saves the module `{code(value)}` itself, whose tensors stay on the device: "
                f"save its state_dict() with {by_hand(context, own_file=each)} on all ranks"
            )
    return None


def _into_open_file(file: cst.BaseExpression, context: Workspace) -> str:
    """Return what to do about a save into `file`: write on one replica or on each, by the path."""
    path = opened_path(file, context)
    ways = set() if path is None else ways_of_path(path, context)
    if ways == {True, False}:
        return f"torch.save into an open file, and {_at_times(context)}"
    if True in ways:
        return (
            "torch.save into an open file whose path has the rank in it, as each replica writes a file of "
            f"its own: {by_hand(context, own_file=True)} on all replicas"
        )
    return (
        "torch.save into an open file: move it to the CPU on all replicas, "
        f"{by_hand(context)}, or give it the path"
    )


def _at_times(context: Workspace) -> str:
    return (
        f"{ON_SOME_WAYS}, or what another file makes of the rank: "
        f"{by_hand(context)} where one replica writes, "
        "a save of its own with `master_only=False` where each does"
    )


def as_xla_save(name: str, option: tuple[str, str] | None) -> Callable[[cst.Call], cst.Call]:
    """Return the edit that makes a call of `name`, with a keyword more, of a call of torch.save."""

    def replace(updated: cst.Call) -> cst.Call:
        args = []
        for arg in updated.args:
            key = arg.keyword.value if arg.keyword is not None else ""
            if key == "_use_new_zipfile_serialization":
                continue
            named = cst.Name(NAMES.get(key, key)) if key else None
            args.append(arg.with_changes(keyword=named))
        if option is not None:
            args.append(keyword_arg(option[0], cst.Name(option[1])))
        return with_args(updated, args).with_changes(func=cst.parse_expression(name))

    return replace


def as_shims_save(
    name: str, call: cst.Call, local: bool, own_file: bool, context: Workspace
) -> Callable[[cst.Call], cst.Call]:
    """Return the edit that makes a call of `shims.save` of `call`, a call of torch.save.

    Args:
        name: of the function.
        call: the original.
        local: whether the first replica of every host saves.
        own_file: whether every replica writes its own file.
        context: the script.
    """
    saved = (arguments(call, context) or {}).get("obj")
    options = []
    if local or own_file:
        writers = context.string("all" if own_file else "local")
        options.append(keyword_arg("writers", writers))
    if saved is None or not is_plain(saved.value, context):
        options.append(keyword_arg("weights_only", cst.Name("False")))

    def replace(updated: cst.Call) -> cst.Call:
        args = []
        for arg in updated.args:
            key = arg.keyword.value if arg.keyword is not None else ""
            if key == "_use_new_zipfile_serialization":
                continue
            named = cst.Name("path" if key == "f" else key) if key else None
            args.append(arg.with_changes(keyword=named))
        return with_args(updated, [*args, *options]).with_changes(func=cst.parse_expression(name))

    return replace


def is_plain(value: cst.BaseExpression, context: Workspace, depth: int = 4) -> bool:
    """Whether `value` plainly holds what loads without running code: state dicts, numbers, strings."""
    if isinstance(value, cst.BaseNumber | cst.SimpleString | cst.FormattedString):
        return True
    if isinstance(value, cst.Dict):
        parts = [e.value if isinstance(e, cst.DictElement) else e for e in value.elements]
        return all(isinstance(p, cst.BaseExpression) and is_plain(p, context) for p in parts)
    if isinstance(value, cst.List | cst.Tuple):
        return all(is_plain(element.value, context) for element in value.elements)
    if isinstance(value, cst.BinaryOperation):
        return is_plain(value.left, context) and is_plain(value.right, context)
    if isinstance(value, cst.Call):
        if isinstance(value.func, cst.Attribute):
            return value.func.attr.value in PLAIN_METHODS
        return isinstance(value.func, cst.Name) and value.func.value in PLAIN_CALLS
    if isinstance(value, cst.Name | cst.Attribute):
        last = value.attr.value if isinstance(value, cst.Attribute) else value.value
        if COUNTERS.fullmatch(last) or last in ("True", "False", "None"):
            return True
        bound = context.bound_to(value)[1] if isinstance(value, cst.Name) else None
        if isinstance(bound, cst.BaseExpression) and depth > 0:
            return is_plain(bound, context, depth - 1)
    return False


def is_open_file(path: cst.BaseExpression, context: Workspace) -> bool:
    """Whether `path` is an open file, or a buffer."""
    return _opening(path, context) is not None


def into_memory(call: cst.Call, context: Workspace) -> str | None:
    """Return what to do about a save into a buffer in memory, which stays; None for other saves.

    No replica writes a file there, and no path can be given.
    """
    bound = arguments(call, context) or {}
    opening = _opening(bound["f"].value, context) if "f" in bound else None
    if opening is None or context.qualified_name(opening.func) != "io.BytesIO":
        return None
    saved = f"`{code(bound['obj'].value)}`" if "obj" in bound else "what it saves"
    if context.guards.around(call) is None:
        return (
            f"{_last(call)} into a buffer in memory stays: see that {saved} is on the CPU first "
            "(`x.cpu()`), as a tensor of the device loads elsewhere only with map_location"
        )
    return (
        f"{_last(call)} into a buffer in memory, on some replicas only: move {saved} to the CPU on "
        "all replicas first (`x.cpu()`), then it stays"
    )


def opened_path(file: cst.BaseExpression, context: Workspace) -> cst.BaseExpression | None:
    """Return the path of the open file `file`: of `open(path, "wb")` or `path.open("wb")`."""
    call = _opening(file, context)
    if call is None or _last(call) != "open":
        return None
    by_name = keyword(call, "file") or keyword(call, "path")
    first = by_name or next((arg for arg in call.args if arg.keyword is None), None)
    if first is None or (isinstance(first.value, cst.SimpleString) and _is_mode(first.value)):
        return call.func.value if isinstance(call.func, cst.Attribute) else None
    return first.value


def _opening(file: cst.BaseExpression, context: Workspace) -> cst.Call | None:
    """Return the call that opens `file`, or None if it is no open file."""
    if isinstance(file, cst.Call):
        return file if _last(file) in OPENS else None
    if not isinstance(file, cst.Name):
        return None
    around = context.function_around(file) or context.module
    for item in nodes_of(around, cst.WithItem):
        bound = item.asname.name if item.asname is not None else None
        if isinstance(bound, cst.Name) and bound.value == file.value:
            # Any context manager here gives a file.
            return item.item if isinstance(item.item, cst.Call) else cst.Call(cst.Name("open"))
    for target in targets(around):
        assign = context.parent(context.parent(target))
        value = assign.value if isinstance(assign, cst.Assign) else None
        if code(target) == file.value and isinstance(value, cst.Call) and _last(value) in OPENS:
            return value
    return None


def _last(call: cst.Call) -> str:
    return call.func.attr.value if isinstance(call.func, cst.Attribute) else code(call.func)


def _is_mode(value: cst.SimpleString) -> bool:
    return set(string_value(value) or "") <= set("rwxabt+")
