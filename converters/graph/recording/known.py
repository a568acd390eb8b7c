"""Values that a recording computes from constants alone. They are computed once, and the port holds
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree

from converters.graph.ir import Held, size_of


class Known:
    """The values of nodes that depend on constants alone.

    Args:
        program: the recording.
        wanted: whether to compute them: where sizes depend on values.
    """

    def __init__(self, program: torch.export.ExportedProgram, wanted: bool) -> None:
        self.values: dict[fx.Node, Any] = {}
        self.constants: dict[str, torch.Tensor] = {}
        self._held: dict[Any, Held] = {}
        if not wanted:
            return
        nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            if spec.kind is InputKind.CONSTANT_TENSOR:
                self.values[nodes[spec.arg.name]] = program.constants[str(spec.target)]

    def takes(self, node: fx.Node) -> bool:
        """Compute a node if it depends on constants alone, and return whether it does."""
        if not any(source in self.values for source in node.all_input_nodes):
            return False
        arguments = pytree.tree_map(self._given, (node.args, node.kwargs))
        if any(
            isinstance(argument, fx.Node | torch.SymInt)
            for argument in pytree.tree_leaves(arguments)
        ):
            return False
        self.values[node] = node.target(*arguments[0], **arguments[1])
        return True

    def _given(self, value: Any) -> Any:
        if not isinstance(value, fx.Node):
            return value
        size = value.meta.get("val")
        if isinstance(size, torch.SymInt) and isinstance(size_of(size), int):
            return size_of(size)
        return self.values.get(value, value)

    def argument(self, node: fx.Node) -> Held | None:
        """The constant that a computed tensor becomes; None if the node was not computed."""
        value = self.values.get(node)
        if not isinstance(value, torch.Tensor):
            return None
        key = (value.dtype, tuple(value.shape), str(value.tolist()))
        if key not in self._held:
            name = f"constant_{len(self._held)}"
            self._held[key] = Held(name)
            self.constants[name] = value
        return self._held[key]
