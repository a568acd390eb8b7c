"""What one call of `torch.save` saves, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.tree.tree import code, nodes_of, targets
from migrate.reading.values.saved import arguments
from migrate.reading.values.words import COUNTERS, SAFETENSORS_SAVES
from migrate.rewrite.edits.nodes import keyword_arg, with_args
from migrate.rewrite.rules.saving.own_paths import names_replica, names_replica_at_times
from migrate.rewrite.rules.saving.whole_modules import is_module

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

NAMES = {"obj": "data", "f": "file_or_path"}
# What gives something that loads without running code.
PLAIN_METHODS = frozenset({"cpu", "item", "state_dict", "tolist"})
PLAIN_CALLS = frozenset({"float", "int", "len", "str", "vars"})


def by_hand(context: Workspace) -> str:
    """Return the call that saves in the chosen style, for a message."""
    return "shims.save(obj, path)" if context.portable else "xm.save(obj, path, global_master=True)"


def refused(call: cst.Call, context: Workspace) -> str | None:
    """Return why `call` cannot become `xm.save` whatever is around it, or None."""
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
        return (
            f"torch.save with a pickle of its own: {by_hand(context)} has none; move the tensors to the "
            "CPU first"
        )
    if "f" in bound and is_open_file(bound["f"].value, context):
        return (
            "torch.save into an open file: move it to the CPU on all replicas, "
            f"{by_hand(context)}, or give it the path"
        )
    if names_replica_at_times(call, context):
        return _at_times(context)
    if context.qualified_name(call.func) in SAFETENSORS_SAVES:
        if names_replica(call, context) or context.effects.divides(call) is not None:
            return (
                "each replica writes a safetensors file of its own: move what it holds to the CPU first, "
                "`{name: value.cpu() for name, value in weights.items()}`, and save_file stays"
            )
        return None
    for value in _held(bound["obj"].value) if "obj" in bound else ():
        if is_module(value, context):
            return (
                f"saves the module `{code(value)}` itself, whose tensors stay on the device: "
                f"save its state_dict() with {by_hand(context)} on all ranks"
            )
    return None


def _at_times(context: Workspace) -> str:
    return (
        "the path has the rank in it on some ways only, or what another file makes of the rank: "
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
        own_file: whether every replica does, to a file of its own.
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
    if isinstance(path, cst.Call):
        return _opens(path)
    if not isinstance(path, cst.Name):
        return False
    around = context.function_around(path) or context.module
    for item in nodes_of(around, cst.WithItem):
        bound = item.asname.name if item.asname is not None else None
        if isinstance(bound, cst.Name) and bound.value == path.value:
            return True
    for target in targets(around):
        assign = context.parent(context.parent(target))
        value = assign.value if isinstance(assign, cst.Assign) else None
        if code(target) == path.value and isinstance(value, cst.Call) and _opens(value):
            return True
    return False


def _opens(call: cst.Call) -> bool:
    last = call.func.attr.value if isinstance(call.func, cst.Attribute) else code(call.func)
    return last in ("open", "BytesIO", "NamedTemporaryFile", "BlobFile")


def _held(saved: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield `saved`, and the values of a dict."""
    yield saved
    for element in saved.elements if isinstance(saved, cst.Dict) else ():
        yield element.value
