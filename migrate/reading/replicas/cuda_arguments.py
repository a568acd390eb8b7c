"""Arguments that speak of CUDA and name no device of the script.

- They report to another library whether CUDA is present: `torch_fidelity.calculate_metrics(…, cuda=device ==
  "cuda")`. The library does not know XLA and would look for a GPU. On a TPU the argument has to be False.
- They choose a kernel, of which one is called "cuda": `assert impl in ["ref", "cuda"]`. It is the name of an
  implementation: its caller and its tests keep it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import DEVICE_NAME, words
from migrate.syntax.tree import dotted, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.names.parsed import Parsed

SAYS_CUDA = frozenset({"cuda", "use_cuda", "with_cuda", "gpu", "use_gpu", "on_gpu"})
# Libraries that may support XLA accelerators.
OURS = frozenset({"torch", "torch_xla", "shims", "accelerate", "lightning", "pytorch_lightning"})
DEVICES = words("auto cpu cuda gpu hip hpu ipu meta mlu mps musa npu rocm tpu xla xpu")


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


def kernel_names(context: Parsed) -> Iterator[cst.CSTNode]:
    """Yield the tests and defaults of parameters that choose a kernel, and defaults handed on to them."""
    choosing: dict[int, str] = {}  # the parameter, by the id of its function
    for comparison in context.all_of(cst.Comparison):
        name = _chosen(comparison)
        function = context.function_around(comparison) if name is not None else None
        if name is None or function is None or (param := _parameter(function, name)) is None:
            continue
        choosing[id(function)] = name
        yield from _default(param)
        for other in nodes_of(function.body, cst.Comparison):
            if isinstance(other.left, cst.Name) and other.left.value == name:
                yield other
    for call in context.all_of(cst.Call) if choosing else ():
        names = (choosing.get(id(function)) for function in context.called(call))
        name = next((name for name in names if name is not None), None)
        caller = context.function_around(call)
        if name is None or caller is None:
            continue
        for arg in call.args:
            if arg.keyword is None or arg.keyword.value != name:
                continue
            handed_on = isinstance(arg.value, cst.Name) and _parameter(caller, arg.value.value)
            if handed_on:
                yield from _default(handed_on)


def _parameter(function: cst.FunctionDef, name: str) -> cst.Param | None:
    """Return the parameter `name` of `function`, or None."""
    params = function.params
    named = (*params.posonly_params, *params.params, *params.kwonly_params)
    return next((param for param in named if param.name.value == name), None)


def _default(param: cst.Param) -> Iterator[cst.BaseExpression]:
    """Yield the default of `param` if it is "cuda"."""
    if param.default is not None and string_value(param.default) == "cuda":
        yield param.default


def _chosen(comparison: cst.Comparison) -> str | None:
    """Return the name that `comparison` looks up among "cuda" and names of no device, or None."""
    if not isinstance(comparison.left, cst.Name) or len(comparison.comparisons) != 1:
        return None
    if DEVICE_NAME.fullmatch(comparison.left.value) is not None:
        return None
    target = comparison.comparisons[0]
    among = target.comparator
    if not isinstance(target.operator, cst.In | cst.NotIn):
        return None
    if not isinstance(among, cst.List | cst.Tuple | cst.Set):
        return None
    named = {string_value(element.value) for element in among.elements}
    others = {name for name in named if name and name.partition(":")[0] not in DEVICES}
    return comparison.left.value if "cuda" in named and others else None
