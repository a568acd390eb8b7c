"""Weights that a module uses and another one holds: they are handed down from where both are.

Tied weights are one leaf, at the first of their names. A module that has another of the names, or that reads
a weight of a module elsewhere, is given it as an argument by whoever holds both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from converters.graph.ir import Call, Fact, Given, Graph, Held, Item, Op, Ref, held


def first_names(root: torch.nn.Module) -> dict[str, str]:
    """Name of each parameter and buffer → the first name of the same tensor."""
    first: dict[int, str] = {}
    found = {}
    for path, module in root.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                key = f"{path}.{name}" if path else name
                found[key] = first.setdefault(id(tensor), key)
    return found


def first_paths(root: torch.nn.Module) -> dict[str, str]:
    """Path of each module → the first path of the same module."""
    first: dict[int, str] = {}
    every = root.named_modules(remove_duplicate=False)
    return {path: first.setdefault(id(module), path) for path, module in every}


def with_shared(
    graph: Graph, constants: Mapping[str, Any], dissolves: Callable[[Call], bool], free: set[str]
) -> Graph:
    """The graph, its calls given what they use of other modules.

    Args:
        graph: the recorded model.
        constants: name → tensor.
        dissolves: whether a call is written as part of the one around it.
        free: constants that stand in no module: everyone may write them down.
    """
    made = _Shared(graph, constants, dissolves, free)
    root, _ = made.call(graph.root)
    return replace(graph, root=root, facts=made.facts)


class _Shared:
    def __init__(
        self,
        graph: Graph,
        constants: Mapping[str, Any],
        dissolves: Callable[[Call], bool],
        free: set[str],
    ) -> None:
        self.constants, self.dissolves, self.free = constants, dissolves, free
        self.graph, self.facts = graph, dict(graph.facts)

    def call(self, one: Call) -> tuple[Call, list[str]]:
        """The call, and the names that whoever makes it has to know."""
        body: list[Item] = []
        needed: dict[str, None] = {}
        for item in one.body:
            if isinstance(item, Call):
                inner, below = self.call(item)
                body.append(inner)
                needed |= dict.fromkeys(below)
            else:
                body.append(item)
                if isinstance(item, Op):
                    keys = [value.key for value in held((item.arguments, item.named))]
                    needed |= dict.fromkeys(keys)
            if isinstance(item, Call):
                keys = [given.value.key for given in item.given if isinstance(given.value, Held)]
                needed |= dict.fromkeys(keys)
        names = [key for key in needed if key not in self.free]
        if self.dissolves(one) or not one.path:
            return replace(one, body=tuple(body)), names
        foreign = [key for key in names if not key.startswith(f"{one.path}.")]
        inside = {key: Ref(self._new(key)) for key in foreign}
        given = [Given(_label(key), Held(key), ref.id) for key, ref in inside.items()]
        return (
            replace(
                one,
                given=(*one.given, *given),
                body=tuple(self._with(item, inside) for item in body),
            ),
            foreign,
        )

    def _new(self, key: str) -> int:
        number = max(self.facts) + 1
        tensor = self.constants[key]
        self.facts[number] = Fact(tuple(tensor.shape), self.graph.dtype_of(key, tensor))
        return number

    def _with(self, item: Item, inside: Mapping[str, Ref]) -> Item:
        def put(value: Any) -> Any:
            if isinstance(value, Held):
                return inside.get(value.key, value)
            if isinstance(value, tuple):
                return tuple(put(one) for one in value)
            return value

        if isinstance(item, Op):
            named = {key: put(value) for key, value in item.named.items()}
            return replace(item, arguments=put(item.arguments), named=named)
        if isinstance(item, Call):
            given = tuple(replace(one, value=put(one.value)) for one in item.given)
            body = item.body
            if self.dissolves(item):
                body = tuple(self._with(one, inside) for one in item.body)
            return replace(item, given=given, body=body)
        return item


def _label(key: str) -> str:
    """As the recording marks a keyword argument: "encoder.shared.weight" is handed down as shared_weight."""
    return f"[1]['{'_'.join(key.split('.')[-2:])}']"
