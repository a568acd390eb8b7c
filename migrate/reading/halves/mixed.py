"""Torch calls whose tensors autocast converts to one type on CUDA, but not on XLA."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from migrate.catalogue.words import words
from migrate.reading.facts import Facts
from migrate.reading.halves.half_values import Half, HalfValues, Precision, narrow_values_of
from migrate.reading.halves.operations import ROOTS
from migrate.reading.halves.regions import AutocastRegion, region_around
from migrate.syntax.tree import keyword

# The tensors of each function, by name where they have a fixed position. In a CUDA region they become
# float16.
# Source: torch 2.9 and torch_xla 2.9: each raises if the types of its tensors differ (measured).
NARROWED = {
    "scaled_dot_product_attention": ("query", "key", "value"),
    "addmv": ("input", "mat", "vec"),
    "linalg.vecdot": ("x", "y"),
}
# In a CUDA region they take the wider of the types.
WIDENED = {
    "bilinear": ("input1", "input2"),
    "cross": ("input", "other"),
    "linalg.cross": ("input", "other"),
    "grid_sample": ("input", "grid"),
    "inner": ("input", "other"),
    "scatter_add": ("input", "dim", "index", "src"),
    "tensordot": ("a", "b"),
    "vdot": ("input", "other"),
}
# Values that are no tensors and need no comparison.
NO_TENSORS = frozenset({"dim", "index"})
METHODS = words("addmv cross inner scatter_add vdot")
# Maximum depth of calls from a region to the function.
DEEPEST = 6


@dataclass(frozen=True)
class Mixed:
    """Call whose tensors differ in type.

    Args:
        half: the argument that is bfloat16.
        wide: the arguments that are float32.
        narrows: whether CUDA makes all of them float16; otherwise float32.
        sure: whether they surely differ.
        region: the region that makes `half` bfloat16.
    """

    half: cst.BaseExpression
    wide: tuple[cst.BaseExpression, ...]
    narrows: bool
    sure: bool
    region: AutocastRegion


def mixed_of(call: cst.Call, facts: Facts) -> tuple[Mixed, bool] | None:
    """Return how the tensors of `call` differ in an autocast region, or None.

    The second value says whether the region is seen to run the call; otherwise some region of the project
    may.
    """
    name = _name(call, facts)
    table = NARROWED if name in NARROWED else WIDENED
    if name not in table:
        return None
    tensors = _tensors(call, table[name], facts)
    if len(tensors) < 2:
        return None
    values = narrow_values_of(facts)
    around = running_region(call, facts)
    here = around is not None
    if around is None:
        if not facts.context.calls.narrow_regions:
            return None
        path, line = facts.context.calls.narrow_regions[0]
        around = AutocastRegion(path, line, half=False)
    differing = _differing(tensors, values, around)
    if differing is None:
        return None
    half, wide, sure = differing
    region = values.of(half, around).region or around
    return Mixed(half, wide, table is NARROWED, sure, region), here


def _differing(
    tensors: list[cst.BaseExpression], values: HalfValues, around: AutocastRegion
) -> tuple[cst.BaseExpression, tuple[cst.BaseExpression, ...], bool] | None:
    """Return the half tensor, the float32 tensors, and whether they surely differ."""
    pairs: list[tuple[cst.BaseExpression, Precision]] = [
        (tensor, values.of(tensor, around)) for tensor in tensors
    ]
    sure = [tensor for tensor, known in pairs if known.half is Half.SURE]
    wide = [tensor for tensor, known in pairs if known.wide]
    if not wide:
        return None
    only = [tensor for tensor, known in pairs if known.wide and known.half is Half.NO]
    if sure:
        return sure[0], tuple(wide), bool(only)
    possible = [tensor for tensor, known in pairs if known.half is Half.POSSIBLE]
    return (possible[0], tuple(only), False) if possible and only else None


def running_region(node: cst.CSTNode, facts: Facts, depth: int = DEEPEST) -> AutocastRegion | None:
    """Return the region that `node` runs in, directly or by the calls of the function around it."""
    region = region_around(node, facts.context)
    if region is not None:
        return region if region.narrow else None
    function = facts.context.function_around(node)
    if depth <= 0 or not isinstance(function, cst.FunctionDef):
        return None
    for call, _ in facts.bindings.callers(function):
        around = running_region(call, facts, depth - 1)
        if around is not None:
            return around
    return None


def _name(call: cst.Call, facts: Facts) -> str:
    """Return the torch name of the function that `call` calls, or the name of a method."""
    func = call.func
    name = facts.context.qualified_name(func)
    if name is None:
        is_method = isinstance(func, cst.Attribute) and func.attr.value in METHODS
        return cst.ensure_type(func, cst.Attribute).attr.value if is_method else ""
    root = next((prefix for prefix in ROOTS if name.startswith(prefix)), None)
    return name[len(root) :] if root is not None else ""


def _tensors(call: cst.Call, parameters: tuple[str, ...], facts: Facts) -> list[cst.BaseExpression]:
    """Return the tensor arguments of `call`, without those that may have no type of their own."""
    tensors: list[cst.BaseExpression] = []
    func = call.func
    names = list(parameters)
    if isinstance(func, cst.Attribute) and facts.context.qualified_name(func) is None:
        tensors.append(func.value)
        names = names[1:]
    for index, name in enumerate(names):
        arg = keyword(call, name)
        if arg is None and index < len(call.args):
            placed = call.args[index]
            if any(arg.star for arg in call.args[: index + 1]):
                break
            arg = placed if placed.keyword is None else None
        if arg is not None and name not in NO_TENSORS:
            tensors.append(arg.value)
    return tensors
