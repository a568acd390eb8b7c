"""Gradient stops of the original: `detach`, `.data`, `torch.no_grad`, `torch.inference_mode`.

While a model is recorded, each node of the graph is labeled with whether torch would track it
(`FOLLOWED`). The label survives the passes of `torch.export`; `stops` reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from converters.graph.recording.nodes import name_of

# Key of the label in a node's `meta["custom"]`, which `torch.export` copies to the nodes that
# replace it.
FOLLOWED = "tpu_migrate_gradient_followed"
_DETACHED = {"aten.detach.default", "aten.detach_.default", "aten.detach_copy.default"}
# Operators whose results have an argument's dtype but none of its values, or no gradient at all.
_NO_GRADIENT = {
    f"aten.{name}"
    for name in (
        *("zeros_like.default", "ones_like.default", "empty_like.default", "full_like.default"),
        *("new_zeros.default", "new_ones.default", "new_empty.default", "new_full.default"),
        *("rand_like.default", "randn_like.default", "sign.default", "sgn.default"),
        *("floor.default", "ceil.default", "round.default", "trunc.default", "fix.default"),
        *("round.decimals", "heaviside.default"),
    )
}


@contextmanager
def gradients_followed(module: torch.nn.Module) -> Iterator[None]:
    """Record with gradients on, as in training, so that the recording shows where the model turns
    them off.

    Parameters require no gradient meanwhile: then a model may change them in place, as where
    gradients are off, and torch chooses the same operators. `torch.export` would put each region
    without gradients into a separate graph, which no longer shows the calls of modules. Its nodes
    are labeled instead.
    """
    from torch._export.passes import replace_set_grad_with_hop_pass as regions

    def labeled(graph_module: fx.GraphModule, signature: Any) -> tuple[fx.GraphModule, Any]:
        _label(graph_module)
        return graph_module, signature

    before = regions.replace_set_grad_with_hop_pass
    required = [parameter for parameter in module.parameters() if parameter.requires_grad]
    regions.replace_set_grad_with_hop_pass = labeled
    try:
        with torch.enable_grad(), inference_is_no_grad():
            for parameter in required:
                parameter.requires_grad_(False)
            yield
    finally:
        regions.replace_set_grad_with_hop_pass = before
        for parameter in required:
            parameter.requires_grad_(True)


@contextmanager
def inference_is_no_grad() -> Iterator[None]:
    """Replace `torch.inference_mode`, which a recording does not show, by `torch.set_grad_enabled`."""
    cls: Any = torch.inference_mode
    enter, leave = cls.__enter__, cls.__exit__
    previous: list[bool] = []

    def entered(self: Any) -> None:
        previous.append(torch.is_grad_enabled())
        torch.set_grad_enabled(not self.mode)

    def left(self: Any, *raised: Any) -> None:
        torch.set_grad_enabled(previous.pop())

    cls.__enter__, cls.__exit__ = entered, left
    try:
        yield
    finally:
        cls.__enter__, cls.__exit__ = enter, leave


def _label(graph_module: fx.GraphModule) -> None:
    """Label the nodes, and remove the gradient switches between them."""
    graph, followed = graph_module.graph, True
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target is torch._C._set_grad_enabled:
            followed = bool(node.args[0])
            graph.erase_node(node)
            continue
        name = name_of(node.target)
        # Removing changes in place would drop a node without this; `torch.tensor` has it too.
        if name == "aten.detach_.default" and _floats(node):
            node.target = torch.ops.aten.detach.default
        if not followed or name in _DETACHED:
            node.meta["custom"] = {**(node.meta.get("custom") or {}), FOLLOWED: False}
    graph_module.recompile()


def stops(program: torch.export.ExportedProgram) -> set[fx.Node]:
    """Nodes whose values pass no gradient in torch, and would pass one in JAX.

    They are floating, depend on a parameter or a floating input, and are used where gradients are
    tracked. Nodes that are integer, computed from constants, or used only in comparisons have no
    gradient anyway.
    """
    nodes = list(program.graph.nodes)
    live = _live(nodes)
    depends = _sources(program)
    passing = set(depends)  # nodes that depend on sources along a path without a stop
    stopped: set[fx.Node] = set()
    for node in nodes:
        if node.op != "call_function" or not _floats(node) or name_of(node.target) in _NO_GRADIENT:
            continue
        if any(source in depends for source in node.all_input_nodes):
            depends.add(node)
        # A second `detach` stays too: then the turns of a loop that begins with a `detach` are
        # alike.
        sources = depends if name_of(node.target) in _DETACHED else passing
        if not any(source in sources for source in node.all_input_nodes):
            continue
        if not _followed(node) and any(_followed(user) and user in live for user in node.users):
            stopped.add(node)
        elif any(source in passing for source in node.all_input_nodes):
            passing.add(node)
    return stopped


def _sources(program: torch.export.ExportedProgram) -> set[fx.Node]:
    """The floating parameters and inputs."""
    kinds = (InputKind.PARAMETER, InputKind.USER_INPUT)
    names = {spec.arg.name for spec in program.graph_signature.input_specs if spec.kind in kinds}
    return {node for node in program.graph.nodes if node.name in names and _floats(node)}


def _live(nodes: list[fx.Node]) -> set[fx.Node]:
    """The nodes that a gradient of an output reaches, and the output node."""
    live: set[fx.Node] = set()
    for node in reversed(nodes):
        passes = _floats(node) and name_of(node.target) not in _NO_GRADIENT
        if node.op == "output" or (passes and any(user in live for user in node.users)):
            live.add(node)
    return live


def _followed(node: fx.Node) -> bool:
    """Whether torch tracks a node's operator."""
    return bool((node.meta.get("custom") or {}).get(FOLLOWED, True))


def _floats(node: fx.Node) -> bool:
    """Whether a node's value is a tensor that can have gradients, or contains such a tensor."""
    value = node.meta.get("val")
    parts = value if isinstance(value, list | tuple) else [value]
    return any(
        isinstance(part, torch.Tensor) and (part.is_floating_point() or part.is_complex())
        for part in parts
    )
