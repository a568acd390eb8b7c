"""What one asks of the nodes of torch's graph."""

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

# Operators that torch makes of others.
_OF_OTHERS = torch._C.DispatchKey.CompositeImplicitAutograd
# Those that it makes of how tensors lie in memory.
_STRIDED = {"aten.stft.default", "aten.stft.center", "aten.istft.default"}
# What gives a number of Python for a tensor's value.
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
    """The lines of the original that were running, the outermost first.

    What is run for it, as the modes do that watch a recording, is none of its lines.
    """
    found = _FRAME.findall(node.meta.get("stack_trace") or "")
    return tuple(
        Frame(file, int(line), function)
        for file, line, function in found
        if not file.startswith(OURS)
    )


def made_of_others(graph: fx.Graph) -> dict[Any, Callable[..., Any]]:
    """Operators that nothing here writes and torch makes of others: each with how.

    Most are second names (`torch.multiply`, `torch.greater_equal`) or several steps (`torch.tensordot`). What
    gives a size that rests on values stays what it is called, which the refusal names.
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
        and any("Tensor" in str(one.type) for one in target._schema.returns)  # a size is no work
        and str(target) not in known
        and str(target) not in _STRIDED
        and not _draws(target)
        and target.has_kernel_for_dispatch_key(_OF_OTHERS)
    }


def _draws(target: torch._ops.OpOverload) -> bool:
    """Whether an operator draws random numbers: these are known as what they are."""
    return torch.Tag.nondeterministic_seeded in target.tags or "dropout" in str(target)


def needed(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the outputs rest on."""
    found: set[fx.Node] = set()
    todo = [node for node in graph.nodes if node.op == "output"]
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += node.all_input_nodes
    return found


def numbers_read(graph: fx.Graph) -> Iterator[fx.Node]:
    """The nodes that read a number, of which nothing is known, and on which the outputs rest."""
    wanted = needed(graph)
    for node in graph.nodes:
        if node in wanted and name_of(node.target) in _READ:
            value = node.meta.get("val")
            symbol = isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
            if symbol and not value.node.expr.is_number:
                yield node


def without_checks(graph: fx.Graph) -> None:
    """Take out what checks values, and what is computed for that alone."""
    for node in reversed(graph.nodes):
        if _CHECK.match(name_of(node.target)) and not node.users:
            graph.erase_node(node)
    graph.eliminate_dead_code()


# Operators whose result is a tensor of its own, and what these are when they write over their first argument.
_FRESH = re.compile(
    r"aten\.(add|sub|mul|div|batch_norm|group_norm|layer_norm|instance_norm|conv\dd|linear|matmul|relu|silu|"
    r"hardtanh|hardswish|hardsigmoid|leaky_relu|elu|sigmoid|tanh|cat|stack)\.|tpu_migrate\.mark\."
)
_OVER = re.compile(
    r"aten\.(add|sub|mul|relu|silu|hardtanh|hardswish|hardsigmoid|leaky_relu|elu|sigmoid|tanh)_\."
)


def without_changes(graph: fx.Graph) -> None:
    """Have what changes a tensor in place give a new one, where no other tensor shares its memory."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if not _OVER.match(name_of(node.target)) or not isinstance(source, fx.Node):
            continue
        before = [one for one in source.users if order[one] < order[node]]
        kinds = {getattr(one.meta.get("val"), "dtype", None) for one in node.all_input_nodes}
        if len(kinds) > 1 or not all(map(_is_fresh, (source, *before))):
            continue
        target: Any = node.target
        packet = getattr(torch.ops.aten, target._schema.name.removeprefix("aten::")[:-1])
        node.target = getattr(packet, target._overloadname)
        for user in list(source.users):
            if order[user] > order[node]:
                user.replace_input_with(source, node)


def _is_fresh(node: fx.Node) -> bool:
    """Whether what a node gives shares memory with nothing that was there before."""
    return node.op == "call_function" and _FRESH.match(name_of(node.target)) is not None


# What a mask is drawn into, and what is done to it in place.
_DRAWN = re.compile(r"aten\.(new_empty|empty|empty_like|rand|rand_like|bernoulli|add|floor)\.")
_ON_DRAWN = {
    "aten.bernoulli_.float": torch.ops.aten.bernoulli.p,
    "aten.floor_.default": torch.ops.aten.floor.default,
    "aten.div_.Tensor": torch.ops.aten.div.Tensor,
    "aten.div_.Scalar": torch.ops.aten.div.Scalar,
    "aten.mul_.Tensor": torch.ops.aten.mul.Tensor,
}


def drawn_anew(graph: fx.Graph) -> None:
    """Have what is drawn in place, and scaled then, be tensors of their own (stochastic depth's masks)."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in list(graph.nodes):
        source = node.args[0] if node.args else None
        made = _ON_DRAWN.get(name_of(node.target))
        if made is None or not isinstance(source, fx.Node):
            continue
        earlier = [one for one in source.users if order[one] < order[node]]
        if _DRAWN.match(name_of(source.target)) and not earlier:
            node.target = made
            for user in list(source.users):
                if order[user] > order[node]:
                    user.replace_input_with(source, node)
