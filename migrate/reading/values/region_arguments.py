"""Arguments of an autocast region: those of the call, and those of a dictionary that it spreads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import bind, dotted, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

PARTIAL = "functools.partial"
CHANGES = frozenset({"clear", "pop", "popitem", "setdefault", "update"})

# Keyword arguments of a region by name, as one dictionary holds them.
Options = Mapping[str, cst.BaseExpression]


@dataclass(frozen=True)
class Arguments:
    """Arguments of an autocast region.

    Args:
        bound: the arguments of the call by parameter.
        spread: the argument `**options`, if there is one.
        options: the dictionaries that `options` may be.
    """

    bound: Mapping[str, cst.Arg]
    spread: cst.Arg | None = None
    options: Sequence[Options] = ()

    @property
    def names_type(self) -> bool | None:
        """Whether the arguments name a type; None if only some of the dictionaries do."""
        if "dtype" in self.bound:
            return True
        named = {"dtype" in options for options in self.options} or {False}
        return named.pop() if len(named) == 1 else None


def arguments(
    call: cst.Call, parameters: Sequence[str], context: Parsed, *, skipped: int = 0
) -> Arguments | None:
    """Return the arguments of a region; None if the script does not show them.

    Args:
        call: the call that makes the region, or binds its arguments.
        parameters: the names of the region's parameters.
        context: the script.
        skipped: number of leading arguments that are not the region's.
    """
    args = call.args[skipped:]
    spreads = [arg for arg in args if arg.star == "**"]
    plain = [arg for arg in args if arg.star != "**"]
    bound = bind(call.with_changes(args=plain), parameters)
    if bound is None or len(spreads) > 1:
        return None
    if not spreads:
        return Arguments(bound)
    options = dictionaries(spreads[0].value, context)
    if options is None or any("device_type" in arguments for arguments in options):
        return None
    return Arguments(bound, spreads[0], options)


def dictionaries(value: cst.BaseExpression, context: Parsed) -> list[Options] | None:
    """Return the dictionaries that `value` may be, if the script spells all of them."""
    values = context.bound_values(value) if isinstance(value, cst.Name) else [value]
    entries = [_entries(value) for value in values]
    if not entries or (isinstance(value, cst.Name) and _changes(value, context)):
        return None
    known = [options for options in entries if options is not None]
    return known if len(known) == len(entries) else None


def _entries(node: cst.CSTNode | None) -> Options | None:
    if isinstance(node, cst.Call) and dotted(node.func) == "dict":
        named = {arg.keyword.value: arg.value for arg in node.args if arg.keyword is not None}
        return named if len(named) == len(node.args) else None
    if isinstance(node, cst.Dict):
        pairs = [e for e in node.elements if isinstance(e, cst.DictElement)]
        options = {string_value(element.key): element.value for element in pairs}
        if len(options) == len(node.elements) and None not in options:
            return {str(name): value for name, value in options.items()}
    return None


def _changes(name: cst.Name, context: Parsed) -> bool:
    """Whether the script changes the dictionary `name` after it is made: by a key, or by a method."""
    for use in context.references(name.value):
        above = context.parent(use)
        if isinstance(above, cst.Subscript) and above.value is use:
            if isinstance(context.parent(above), cst.AssignTarget | cst.AugAssign | cst.Del):
                return True
        elif (
            isinstance(above, cst.Attribute) and above.value is use and above.attr.value in CHANGES
        ):
            return True
    return False


def is_type_of_options(node: cst.CSTNode, context: Parsed) -> bool:
    """Whether `node` is the entry "dtype" of a dictionary literal in the script."""
    above = context.parent(node)
    if isinstance(node, cst.Arg):
        is_dictionary = isinstance(above, cst.Call) and dotted(above.func) == "dict"
        return is_dictionary and node.keyword is not None and node.keyword.value == "dtype"
    return isinstance(node, cst.DictElement) and string_value(node.key) == "dtype"
