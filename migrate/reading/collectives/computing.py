"""Expressions that add an operation to the device graph, and the tensors they add it to.

A tensor copied from the host (`x.to(device)`, `torch.tensor([3], device=device)`) is an input of the next
graph: the graph is the same for any values. A tensor made on the device (also `torch.empty(1,
device=device)`) and writes into a tensor there are operations of that graph.

Source: torch_xla 2.9 (measured: the graphs of such tensors before anything runs).
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import MODEL, UPDATES, words
from migrate.model.calls.kind import Kind
from migrate.model.pure import same_everywhere
from migrate.reading.collectives import pending_values as v
from migrate.reading.facts import Facts
from migrate.syntax.tree import (
    base_name,
    code,
    is_attribute_of_self,
    is_none,
    last_part,
    nodes_of,
    string_value,
)

# Functions of torch whose result is a copy of host values.
COPIES = frozenset(
    f"torch.{name}" for name in words("tensor as_tensor from_numpy asarray frombuffer load")
)
# Methods that return the same tensor, or a copy that is no operation.
SAME = words(
    "clone contiguous cpu cuda data detach float half bfloat16 double long int bool to type xla"
)
# Methods of tensors that write into the tensor.
WRITING = words(
    "abs_ add_ addcdiv_ addcmul_ addmm_ bernoulli_ bitwise_and_ bitwise_or_ cauchy_ ceil_ clamp_ "
    "clamp_max_ clamp_min_ clip_ copy_ cos_ cumsum_ div_ erf_ exp_ exponential_ fill_ fill_diagonal_ floor_ "
    "index_add_ index_copy_ index_fill_ index_put_ lerp_ log_ log_normal_ logical_and_ logical_not_ "
    "logical_or_ masked_fill_ masked_scatter_ mul_ multiply_ nan_to_num_ neg_ normal_ pow_ put_ random_ "
    "reciprocal_ relu_ remainder_ renorm_ round_ rsqrt_ scatter_ scatter_add_ scatter_reduce_ sigmoid_ "
    "sign_ sin_ sqrt_ square_ sub_ subtract_ tanh_ tril_ triu_ trunc_ uniform_ zero_"
)
# Methods of tensors that compute one number, or one for each row.
REDUCES = words("amax amin max mean median min norm prod std sum var")
COLLECTIONS = cst.Dict | cst.DictComp | cst.List | cst.ListComp
DEEPEST = 4


def computes(node: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether the value of `node` is a device tensor that the graph has yet to compute."""
    if isinstance(node, cst.IfExp):
        return computes(node.body, facts, depth) or computes(node.orelse, facts, depth)
    if isinstance(node, cst.Tuple | cst.List | cst.Dict):
        return any(computes(element.value, facts, depth) for element in node.elements)
    if isinstance(node, cst.ListComp | cst.GeneratorExp):
        return computes(node.elt, facts, depth)
    if v.is_description(node):
        return False
    if not facts.values.on_device(node):
        return _may_compute(node, facts)
    if isinstance(node, cst.Call):
        return _is_computed_by(node, facts, depth)
    return isinstance(node, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison)


def _may_compute(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is a mean or the like of something of which nothing is known: `rewards.mean()`.

    What a library returns that is given tensors of the device may be on the device.
    """
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    kinds = facts.values.kind(node), facts.values.kind(node.func.value)
    is_unknown = facts.names.of(node.func) is None and not facts.context.called(node)
    return node.func.attr.value in REDUCES and is_unknown and set(kinds) == {Kind.UNKNOWN}


def _is_computed_by(call: cst.Call, facts: Facts, depth: int) -> bool:
    name = facts.names.of(call.func) or ""
    if name in COPIES or name == "copy.deepcopy" or facts.values.kind(call) is Kind.MODEL:
        return False
    if name.startswith("torch."):
        return not name.startswith(("torch.distributed.", "torch.cuda."))
    functions = facts.context.called(call)
    if functions:
        returned = (r for f in functions[:3] for r in facts.bindings.returns[id(f)])
        return depth > 0 and any(computes(value, facts, depth - 1) for value in returned)
    if isinstance(call.func, cst.Attribute):
        inner = call.func.value
        if call.func.attr.value in SAME:
            return computes(inner, facts, depth)
        return facts.values.on_device(inner) or facts.values.calls_model(call)
    return facts.values.calls_model(call) or bool(facts.context.run_by(call))


def is_flag(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is a device tensor without dimensions that follows from a condition: 0 or 1.

    torch_xla makes each of the two values a constant of the graph, not an input.
    """
    if not facts.values.on_device(node):
        return False
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        if node.func.attr.value not in SAME or not isinstance(node.func.value, cst.Call):
            break
        node = node.func.value
    if not isinstance(node, cst.Call) or not makes_bit(node, facts):
        return False
    value = node.args[0].value
    asked = value.test if isinstance(value, cst.IfExp) else value
    by_rank = any(map(facts.guards.is_index, nodes_of(asked, cst.Name)))
    return by_rank or not same_everywhere(asked)


def makes_bit(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` makes a tensor of one number that is 0 or 1 by a condition: `torch.tensor(x > 0)`."""
    if not call.args or facts.names.of(call.func) not in ("torch.tensor", "torch.as_tensor"):
        return False
    return _is_condition(call.args[0].value, facts)


def _is_condition(node: cst.BaseExpression, facts: Facts, depth: int = DEEPEST) -> bool:
    """Whether the value of `node` is True/False or 0/1 by a condition, or the replica's index."""
    if isinstance(node, cst.Comparison) or facts.guards.is_index(node):
        return True
    if isinstance(node, cst.UnaryOperation):
        return isinstance(node.operator, cst.Not)
    if isinstance(node, cst.BooleanOperation):
        return _is_condition(node.left, facts, depth) and _is_condition(node.right, facts, depth)
    if isinstance(node, cst.IfExp):
        return _is_bit(node.body) and _is_bit(node.orelse)
    if isinstance(node, cst.Call):
        kind = code(node.func)
        first = node.args[0].value if len(node.args) == 1 else None
        if kind == "bool" or first is None:
            return kind == "bool"
        return kind in ("int", "float") and _is_condition(first, facts, depth)
    bound: list[cst.CSTNode | None] = []
    if isinstance(node, cst.Name):
        bound = list(facts.context.bound_values(node))
    elif is_attribute_of_self(node):
        bound = [value for _, value in facts.context.attributes.get(node.attr.value, ())]
    values = [value for value in bound if isinstance(value, cst.BaseExpression)]
    bits = [_is_bit(value) for value in values]
    if depth and values and len(values) == len(bound):
        return (len(values) > 1 or not all(bits)) and all(
            bit or _is_condition(value, facts, depth - 1)
            for bit, value in zip(bits, values, strict=True)
        )
    return False


def _is_bit(node: cst.BaseExpression) -> bool:
    return code(node) in ("0", "1", "0.0", "1.0", "True", "False")


def written_by(call: cst.Call, facts: Facts) -> Iterator[str]:
    """Yield the dotted names of the device tensors that `call` writes into by an operation."""
    func = call.func
    name = facts.names.of(func) or ""
    if name.startswith(("torch.nn.init.", "torch._foreach_")) and name.endswith("_"):
        yield from (place for arg in call.args[:1] for place in _tensors(arg.value, facts))
    elif isinstance(func, cst.Attribute) and not name and func.attr.value in WRITING:
        if (
            func.attr.value == "copy_"
            and call.args
            and not _may_be_there(call.args[0].value, facts)
        ):
            return
        yield from _tensors(func.value, facts)


def _tensors(node: cst.BaseExpression, facts: Facts) -> Iterator[str]:
    """Yield the dotted name of the tensor that `node` is (or is a part of), if it may be on the device."""
    inner = node
    while True:
        if _may_be_there(inner, facts) and (base := base_name(inner)) is not None:
            yield base.removesuffix(".data")
            return
        if isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute):
            inner = inner.func.value
        elif isinstance(inner, cst.Subscript):
            inner = inner.value
        else:
            return


def _may_be_there(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is a device tensor, or a tensor of unknown device."""
    if isinstance(node, cst.BaseNumber | cst.BaseString) or is_none(node):
        return False
    kind = facts.values.kind(node)
    if kind is Kind.UNKNOWN:
        moves = facts.context.moves_to_accelerator or facts.context.calls.accelerated
        return bool(moves) and not facts.values.is_surely_cpu(node)
    return kind is Kind.ON_DEVICE


def is_written_by_index(target: cst.Subscript, facts: Facts) -> bool:
    """Whether `target` is a part of a tensor of the device, not an item of a dictionary or list."""
    key = target.slice[0].slice
    if isinstance(key, cst.Index) and string_value(key.value) is not None:
        return False
    inner: cst.BaseExpression = target.value
    bound = facts.context.bound_values(inner) if isinstance(inner, cst.Name) else []
    if is_attribute_of_self(inner):
        bound = [value for _, value in facts.context.attributes.get(inner.attr.value, ())]
    if any(isinstance(value, COLLECTIONS) for value in bound):
        return False
    return facts.values.on_device(inner)


def replaced_data(target: cst.BaseExpression) -> str | None:
    """Return the dotted name of the tensor whose values an assignment to `target` replaces: `p.data = x`."""
    if isinstance(target, cst.Attribute) and target.attr.value == "data":
        return base_name(target.value)
    return None


def named_in(node: cst.CSTNode) -> set[str]:
    """Return the dotted names that `node` mentions, and the names of the objects that hold them."""
    names = {name.value for name in nodes_of(node, cst.Name)}
    names |= {code(part) for part in nodes_of(node, cst.Attribute)}
    return names


def is_wrapper(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` wraps a model so that its parameters are broadcast: `DistributedDataParallel(net)`."""
    name = facts.names.of(call.func) or ""
    return last_part(call.func) == "DDP" or name.endswith(("DistributedDataParallel", "shims.ddp"))


def updates_copy(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` updates an object that was made of a model: `average.update_parameters(model)`."""
    func = call.func
    if not isinstance(func, cst.Attribute) or not UPDATES.fullmatch(func.attr.value):
        return False
    if not isinstance(facts.context.parent(call), cst.Expr):
        return False
    return any(_holds_weights(value, facts) for value in _made(func.value, facts))


def _made(receiver: cst.BaseExpression, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the values that the script assigns to `receiver`."""
    values: list[cst.BaseExpression | None]
    if isinstance(receiver, cst.Attribute):
        values = [value for _, value in facts.context.attributes.get(receiver.attr.value, [])]
    elif isinstance(receiver, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(receiver)]
    else:
        return
    for value in values:
        parts = (value.body, value.orelse) if isinstance(value, cst.IfExp) else (value,)
        yield from (part for part in parts if isinstance(part, cst.BaseExpression))


def _holds_weights(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` is made of a model: `EMA(model)`, `deepcopy(net)`, `EMA(model).cuda()`."""
    while (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and isinstance(value.func.value, cst.Call)
    ):
        value = value.func.value
    if not isinstance(value, cst.Call):
        return False
    return any(_is_model(arg.value, facts) for arg in value.args)


def _is_model(node: cst.BaseExpression, facts: Facts) -> bool:
    if not isinstance(node, cst.Name | cst.Attribute):
        return False
    if (
        facts.values.kind(node) is Kind.MODEL
        or facts.context.place(node) in facts.context.calls.models
    ):
        return True
    return bool(MODEL.fullmatch(last_part(node)))
