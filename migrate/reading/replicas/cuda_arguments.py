"""Arguments that report to another library whether CUDA is present.

Example: `torch_fidelity.calculate_metrics(…, cuda=device == "cuda")`. The library does not know XLA and would
look for a GPU. On a TPU the argument has to be False.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.syntax.tree import dotted, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

SAYS_CUDA = frozenset({"cuda", "use_cuda", "with_cuda", "gpu", "use_gpu", "on_gpu"})
# Libraries that may support XLA accelerators.
OURS = frozenset({"torch", "torch_xla", "shims", "accelerate", "lightning", "pytorch_lightning"})


def told(call: cst.Call, context: Parsed) -> Iterator[tuple[cst.BaseExpression, str]]:
    """Yield the arguments of `call` that report CUDA, if it calls another library.

    Each comes with the name of the library.
    """
    named = [arg.value for arg in call.args if _name(arg) in SAYS_CUDA]
    spread = [arg.value for arg in call.args if arg.star == "**"]
    library = _library(call, context) if named or spread else ""
    if library:
        yield from ((value, library) for value in (*named, *_spread(spread, context)))


def asks_for_cuda(value: cst.BaseExpression) -> bool:
    """Whether `value` asks if a device is "cuda": unchanged, it is False for XLA devices."""
    asked = [string for string in nodes_of(value, cst.SimpleString) if string_value(string)]
    kinds = {string_value(string) for string in asked}
    compares = any(nodes_of(value, cst.Comparison)) or any(nodes_of(value, cst.Call))
    return compares and kinds == {"cuda"}


def _name(arg: cst.Arg) -> str | None:
    return arg.keyword.value if arg.keyword is not None else None


def _library(call: cst.Call, context: Parsed) -> str:
    """Return the first part of the name that `call` calls or binds; "" if it is no other library."""
    name = context.qualified_name(call.func) or ""
    if name == "functools.partial" and call.args:
        name = context.qualified_name(call.args[0].value) or ""
    root = name.partition(".")[0]
    known = root in OURS or "." not in name or context.calls.is_local(name)
    return "" if known or name.startswith("builtins.") else root


def _spread(values: list[cst.BaseExpression], context: Parsed) -> Iterator[cst.BaseExpression]:
    """Yield the values under such names in the dictionaries that `**` spreads."""
    for value in values:
        dictionaries = context.bound_values(value) if isinstance(value, cst.Name) else [value]
        for dictionary in dictionaries:
            if isinstance(dictionary, cst.Dict):
                for element in dictionary.elements:
                    named = isinstance(element, cst.DictElement) and string_value(element.key)
                    if named in SAYS_CUDA:
                        yield element.value
            elif isinstance(dictionary, cst.Call) and dotted(dictionary.func) == "dict":
                yield from (arg.value for arg in dictionary.args if _name(arg) in SAYS_CUDA)
