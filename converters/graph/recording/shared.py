"""Weights that one module uses and another holds: they are passed down from the module above both.

Tied weights are one leaf, at the first of their names. A module that has another of the names, or
that reads a weight of another module, gets it as an argument from the module that contains both.
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
    names = {}
    for path, module in root.named_modules(remove_duplicate=False):
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                key = f"{path}.{name}" if path else name
                names[key] = first.setdefault(id(tensor), key)
    return names


def first_paths(root: torch.nn.Module) -> dict[str, str]:
    """Path of each module → the first path of the same module."""
    first: dict[int, str] = {}
    every = root.named_modules(remove_duplicate=False)
    return {path: first.setdefault(id(module), path) for path, module in every}


def with_shared(
    graph: Graph, constants: Mapping[str, Any], dissolves: Callable[[Call], bool], free: set[str]
) -> Graph:
    """The graph, with weights of other modules passed to calls that use them.

    Args:
        graph: the recorded model.
        constants: name → tensor.
        dissolves: whether a call is written as part of the call around it.
        free: constants outside all modules: any class may write them down.
    """
    shared = _Shared(graph, constants, dissolves, free)
    root, _ = shared.call(graph.root)
    return replace(graph, root=root, facts=shared.facts)


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

    def call(self, outer: Call) -> tuple[Call, list[str]]:
        """The call, and the names that its caller must have."""
        body: list[Item] = []
        needed: dict[str, None] = {}
        for item in outer.body:
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
                keys = [
                    argument.value.key
                    for argument in item.arguments
                    if isinstance(argument.value, Held)
                ]
                needed |= dict.fromkeys(keys)
        names = [key for key in needed if key not in self.free]
        if self.dissolves(outer) or not outer.path:
            return replace(outer, body=tuple(body)), names
        foreign = [key for key in names if not key.startswith(f"{outer.path}.")]
        inside = {key: Ref(self._new(key)) for key in foreign}
        arguments = [Given(_label(key), Held(key), ref.id) for key, ref in inside.items()]
        return (
            replace(
                outer,
                arguments=(*outer.arguments, *arguments),
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
                return tuple(put(element) for element in value)
            return value

        if isinstance(item, Op):
            named = {key: put(value) for key, value in item.named.items()}
            return replace(item, arguments=put(item.arguments), named=named)
        if isinstance(item, Call):
            passed = tuple(
                replace(argument, value=put(argument.value)) for argument in item.arguments
            )
            body = item.body
            if self.dissolves(item):
                body = tuple(self._with(inner, inside) for inner in item.body)
            return replace(item, arguments=passed, body=body)
        return item


def _label(key: str) -> str:
    """The label of a passed-down weight, as for a keyword argument: "encoder.shared.weight" becomes
    shared_weight.
    """
    return f"[1]['{'_'.join(key.split('.')[-2:])}']"
