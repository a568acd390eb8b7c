"""Queries on the nodes of torch's graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from converters.graph.ir import Frame
from converters.graph.ops.registry import lowerings
from converters.original_lines import OURS

# Operators that torch composes from others.
_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
# Operators that torch composes depending on how tensors lie in memory.
_STRIDED = {"aten.stft.default", "aten.stft.center", "aten.istft.default"}
# Operators that turn a tensor's value into a Python number.
_READ = {"aten.item.default", "aten._local_scalar_dense.default"}
_CHECK = re.compile(r"aten\._assert|aten\.sym_constrain|aten\._functional_sym_constrain")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')


def name_of(target: Any) -> str:
    """The name of an operator: "aten.add.Tensor"."""
    if hasattr(target, "_schema"):
        return str(target)
    module = getattr(target, "__module__", "")
    return f"{module}.{getattr(target, '__name__', target)}"


def frames_of(node: fx.Node) -> tuple[Frame, ...]:
    """The running lines of the original, outermost first.

    Lines of our own code, such as the modes that watch a recording, are left out.
    """
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    return tuple(
        Frame(file, int(line), function)
        for file, line, function in frames
        if not file.startswith(OURS)
    )


def made_of_others(graph: fx.Graph) -> dict[Any, Callable[..., Any]]:
    """Operators without a lowering that torch composes from others, each with its decomposition.

    Most are second names (`torch.multiply`, `torch.greater_equal`) or several steps
    (`torch.tensordot`). An operator that gives a size that depends on values keeps its name, which
    the refusal reports.
    """
    known = lowerings()
    targets = {
        node.target
        for node in graph.nodes
        if node.op == "call_function" and not free_unbacked_symbols(node.meta.get("val"))
    }
    return {
        target: partial(target._op_dk, _OF_OTHERS)
        for target in targets
        if isinstance(target, torch._ops.OpOverload)
        and any(
            "Tensor" in str(result.type) for result in target._schema.returns
        )  # a size needs no computation
        and str(target) not in known
        and str(target) not in _STRIDED
        and not _draws(target)
        and target.has_kernel_for_dispatch_key(_OF_OTHERS)
    }


def _draws(target: torch._ops.OpOverload) -> bool:
    """Whether an operator draws random numbers: these keep their names."""
    return torch.Tag.nondeterministic_seeded in target.tags or "dropout" in str(target)


def needed(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the outputs depend on."""
    nodes: set[fx.Node] = set()
    todo = [node for node in graph.nodes if node.op == "output"]
    while todo:
        node = todo.pop()
        if node not in nodes:
            nodes.add(node)
            todo += node.all_input_nodes
    return nodes


def numbers_read(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes that read a number of unknown value and that the outputs depend on."""
    wanted = needed(graph)
    for node in graph.nodes:
        if node in wanted and name_of(node.target) in _READ:
            value = node.meta.get("val")
            symbol = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
            if symbol and not value.node.expr.is_number:
                yield node


def without_checks(graph: fx.Graph) -> None:
    """Remove the checks of values, and nodes that only the checks use."""
    for node in reversed(graph.nodes):
        if _CHECK.match(name_of(node.target)) and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


# Operators whose result is a new tensor, and their in-place forms.
_FRESH = re.compile(
    r"aten\.(add|sub|mul|div|batch_norm|group_norm|layer_norm|instance_norm|conv\dd|linear|matmul|relu|silu|"
    r"hardtanh|hardswish|hardsigmoid|leaky_relu|elu|sigmoid|tanh|cat|stack)\.|tpu_migrate\.mark\."
)
_OVER = re.compile(
    r"aten\.(add|sub|mul|relu|silu|hardtanh|hardswish|hardsigmoid|leaky_relu|elu|sigmoid|tanh)_\."
)


def without_changes(graph: fx.Graph) -> None:
    """Replace in-place operators by operators that return a new tensor, where no other tensor
    shares the memory.
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if not _OVER.match(name_of(node.target)) or not isinstance(source, fx.Node):
            continue
        before = [user for user in source.users if order[user] < order[node]]
        kinds = {
            getattr(source_node.meta.get("val"), "dtype", None)
            for source_node in node.all_input_nodes
        }
        if len(kinds) > 1 or not all(map(_is_fresh, (source, *before))):
            continue
        target: Any = node.target
        packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::")[:-1])
        node.target = getattr(packet, target._overloadname)
        for user in list(source.users):
            if order[user] > order[node]:
                user.replace_input_with(source, node)


def _is_fresh(node: fx.Node) -> bool:
    """Whether a node's result shares no memory with older tensors."""
    return node.op == "call_function" and _FRESH.match(name_of(node.target)) is not None


# Tensors that a mask is drawn into, and in-place operators on it.
_DRAWN = re.compile(r"aten\.(new_empty|empty|empty_like|rand|rand_like|bernoulli|add|floor)\.")
_ON_DRAWN = {
    "aten.bernoulli_.float": torch.ops.aten.bernoulli.p,
    "aten.floor_.default": torch.ops.aten.floor.default,
    "aten.div_.Tensor": torch.ops.aten.div.Tensor,
    "aten.div_.Scalar": torch.ops.aten.div.Scalar,
    "aten.mul_.Tensor": torch.ops.aten.mul.Tensor,
}


def drawn_anew(graph: fx.Graph) -> None:
    """Replace in-place draws, and the scaling after them, by new tensors (stochastic depth's
    masks).
    """
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        replacement = _ON_DRAWN.get(name_of(node.target))
        if replacement is None or not isinstance(source, fx.Node):
            continue
        earlier = [user_before for user_before in source.users if order[user_before] < order[node]]
        if _DRAWN.match(name_of(source.target)) and not earlier:
            node.target = replacement
            for user in list(source.users):
                if order[user] > order[node]:
                    user.replace_input_with(source, node)
