"""Names of parameters of a compiled module, as strings: `"_orig_mod.weight"`."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import words
from migrate.rewrite.workspace import Workspace
from migrate.syntax.tree import code, nodes_of, string_value

PREFIX = "_orig_mod"
TAKES_OFF = words("replace removeprefix lstrip strip sub")
TAKES_PARTS = words("replace removeprefix lstrip sub len split partition rpartition rsplit pop")
ASKS = words("get pop setdefault")


def asks_for_prefix(node: cst.SimpleString | cst.FormattedStringText, context: Workspace) -> bool:
    """Whether the string, or a name that is bound to it, is used as if the prefix were there."""
    if isinstance(node, cst.FormattedStringText):
        whole = context.parent(node)
        return PREFIX in node.value and whole is not None and not _is_harmless(whole, context)
    if PREFIX not in (string_value(node) or ""):
        return False
    return any(not _is_harmless(use, context) for use in _uses(node, context))


def _uses(node: cst.SimpleString, context: Workspace) -> Iterator[cst.CSTNode]:
    """Yield the string, or the mentions of the variable that it is assigned to."""
    assign = context.parent(node)
    if not isinstance(assign, cst.Assign) or assign.value is not node:
        yield node
        return
    for target in assign.targets:
        if isinstance(target.target, cst.Name):
            name = target.target
            yield from (use for use in context.mentions(name) if use is not name)


def _is_harmless(use: cst.CSTNode, context: Workspace) -> bool:
    """Whether the use of the string has the same result if no name has the prefix."""
    above = context.parent(use)
    if isinstance(above, cst.Index):
        return False  # state["_orig_mod.weight"]
    if isinstance(above, cst.BinaryOperation | cst.DictElement | cst.FormattedStringExpression):
        return _harmless_in_call(above, context)
    if isinstance(above, cst.Comparison | cst.ComparisonTarget):
        exact = (string_value(use) or "").rpartition(f"{PREFIX}.")[2] != "" and "." in code(use)
        return not exact and _guards_strip(use, context)
    if isinstance(above, cst.Arg):
        return _harmless_argument(use, above, context)
    return True


def _harmless_in_call(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether a name that is put together is only taken off: `key.replace("module." + prefix, "")`."""
    above = context.parent(node)
    if isinstance(node, cst.FormattedStringExpression):
        above = context.parent(above)
    return isinstance(above, cst.Arg) and _harmless_argument(node, above, context)


def _harmless_argument(use: cst.CSTNode, arg: cst.Arg, context: Workspace) -> bool:
    call = cst.ensure_type(context.parent(arg), cst.Call)
    func = call.func
    method = func.attr.value if isinstance(func, cst.Attribute) else code(func)
    if method in TAKES_OFF:
        return call.args[0] is arg
    if method == "startswith":
        return _guards_strip(use, context)
    if method == "len":
        return _is_guarded(call, context)
    if method in ("split", "rsplit", "partition", "rpartition"):
        taken = context.parent(call)
        return not isinstance(taken, cst.Subscript) or code(taken.slice[0]) == "-1"
    if method in ASKS and call.args[0] is arg:
        return False
    if method == "getattr":
        return len(call.args) > 2
    return True


def _guards_strip(use: cst.CSTNode, context: Workspace) -> bool:
    """Whether a test for the prefix only chooses to take it off."""
    below = use
    for above in context.ancestors(use):
        if isinstance(above, cst.If | cst.IfExp):
            if below is not above.test:
                return False
            return _takes_off(above.body)
        if isinstance(above, cst.CompFor) and isinstance(
            comp := context.parent(above), cst.BaseComp
        ):
            return _takes_off(comp)
        if isinstance(above, cst.Return | cst.Assign):
            return False
        below = above
    return False


def _takes_off(node: cst.CSTNode) -> bool:
    """Whether something below `node` takes a part off a name."""
    return any(
        (call.func.attr.value if isinstance(call.func, cst.Attribute) else code(call.func))
        in TAKES_PARTS
        for call in nodes_of(node, cst.Call)
    ) or any(part.lower is not None for part in nodes_of(node, cst.Slice))


def _is_guarded(node: cst.CSTNode, context: Workspace) -> bool:
    """Whether a test for the prefix stands around `node`, or in its comprehension."""
    for above in context.ancestors(node):
        tests: list[cst.BaseExpression] = []
        if isinstance(above, cst.If | cst.IfExp):
            tests = [above.test]
        elif isinstance(above, cst.CompFor):
            tests = [part.test for part in above.ifs]
        elif isinstance(above, cst.DictComp | cst.BaseComp):
            tests = [part.test for part in above.for_in.ifs]
        elif isinstance(above, cst.FunctionDef):
            return False
        if any("startswith" in code(test) or PREFIX in code(test) for test in tests):
            return True
    return False
