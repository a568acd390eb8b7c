"""Activations that a mesh divides by their batch: those between layers, and around convolutions in groups.

The functions `constrain_batch`, `conv_in_groups` and `attend_on_mesh` are in the file of partition rules
beside the source.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from converters.graph.expression import call
from converters.graph.ir import Call, Free, Graph, calls
from converters.graph.writing.model import Model
from converters.graph.writing.original.comments import commented, of

CONSTRAIN, CONVOLVE, SHARDING = "constrain_batch", "conv_in_groups", "sharding"
# Calls attention with what each device has of the batch and of the heads.
ATTEND = "attend_on_mesh"
_CONVOLUTION, _GROUPS = "conv_general_dilated", "feature_group_count"


def constrain_layers(model: Model, graph: Graph, modules: Mapping[str, torch.nn.Module]) -> None:
    """Constrain the results of the model's layers whose first axis is the batch.

    Layers are the modules of a list, but not those within another layer.

    Args:
        model: the classes; their methods change.
        graph: the recorded model.
        modules: path → module.
    """
    batches = {
        side.expression
        for _, number in graph.inputs
        for side in graph.facts[number].shape[:1]
        if isinstance(side, Free)
    }
    places: dict[str, list[frozenset[int]]] = defaultdict(list)
    for layer in _layers(graph, modules):
        name = model.instances.get(layer.path)
        if name is not None:
            facts = [graph.facts[taken.inside] for taken in layer.taken]
            places[name].append(
                frozenset(
                    at
                    for at, fact in enumerate(facts)
                    if len(fact.shape) > 1
                    and isinstance(fact.shape[0], Free)
                    and fact.shape[0].expression in batches
                    and fact.dtype.is_floating_point
                )
            )
    for cls in model.classes:
        method = cls.methods.get("__call__")
        if cls.name in places and method is not None:
            everywhere = frozenset.intersection(*places[cls.name])
            result = _constrained(method.result, everywhere)
            cls.methods["__call__"] = replace(method, result=result)


def _layers(graph: Graph, modules: Mapping[str, torch.nn.Module]) -> Iterator[Call]:
    lists = (torch.nn.ModuleList, torch.nn.Sequential)

    def is_layer(path: str) -> bool:
        above, _, name = path.rpartition(".")
        return bool(above) and name.isdecimal() and isinstance(modules.get(above), lists)

    for module_call in calls(graph.root):
        parts = module_call.path.split(".")
        above = (".".join(parts[:count]) for count in range(1, len(parts)))
        if is_layer(module_call.path) and not any(map(is_layer, above)):
            yield module_call


def _constrained(result: ast.expr, places: frozenset[int]) -> ast.expr:
    if isinstance(result, ast.Tuple):
        if any(isinstance(part, ast.Starred) for part in result.elts):
            return result
        parts = [
            call(CONSTRAIN, part) if at in places else part for at, part in enumerate(result.elts)
        ]
        return commented(ast.Tuple(parts, ast.Load()), of(result))
    if places != {0} or isinstance(result, ast.Dict | ast.Constant):
        return result
    return commented(call(CONSTRAIN, result), of(result))


def convolve_in_groups(modeling: str) -> str:
    """Let `conv_in_groups` compute the convolutions in groups of a source, calls and layers."""
    lines, tree = modeling.encode().split(b"\n"), ast.parse(modeling)
    edits: list[tuple[int, int, int, str]] = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        keywords = {keyword.arg: keyword for keyword in node.keywords}
        groups = keywords.get(_GROUPS)
        if groups is None or _CONVOLUTION in keywords:
            continue
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr == _CONVOLUTION:
            edits.append((func.lineno, func.col_offset, func.end_col_offset or 0, CONVOLVE))
        else:
            start = groups.col_offset  # before the keyword: behind it a parenthesis may stand
            edits.append((groups.lineno, start, start, f"{_CONVOLUTION}={CONVOLVE}, "))
    if not edits:
        return modeling
    last = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)][-1]
    line, end = last.end_lineno or 0, last.end_col_offset or 0
    shared = isinstance(last, ast.ImportFrom) and last.module == SHARDING
    imported = f", {CONVOLVE}" if shared else f"\nfrom .{SHARDING} import {CONVOLVE}"
    for number, start, stop, text in sorted([*edits, (line, end, end, imported)], reverse=True):
        before = lines[number - 1]
        lines[number - 1] = before[:start] + text.encode() + before[stop:]
    return b"\n".join(lines).decode()
