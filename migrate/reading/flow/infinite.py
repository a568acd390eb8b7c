"""Tensors that hold infinities, by what made them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import words
from migrate.reading.values.numbers import INFINITIES, is_infinity
from migrate.syntax.tree import (
    code,
    is_attribute_of_self,
    last_part,
    nodes_of,
)

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Functions and methods of torch and numpy whose result holds what an argument, or the receiver, holds. For
# functions that choose, one of the two is enough.
KEEPING = words(
    "Buffer Parameter add add_ array as_tensor asarray astype bfloat16 block_diag broadcast_to cat clone "
    "concatenate contiguous copy cpu cuda detach diag double expand expand_as fill fill_ flatten float "
    "from_numpy full full_like half index_fill index_fill_ index_put_ masked_fill masked_fill_ "
    "masked_scatter mul mul_ neg new_full new_tensor numpy pad permute repeat repeat_interleave "
    "requires_grad_ reshape roll scatter scatter_ squeeze squeeze_ stack sub sub_ t tensor tile to "
    "transpose tril tril_ triu triu_ type type_as unsqueeze unsqueeze_ view where"
)
IN_PLACE = frozenset({"add_", "sub_", "mul_", "fill_", "masked_fill_", "copy_", "index_fill_"})
IN_PLACE |= {"fill", "index_put_", "scatter_", "log_"}
CHOOSING = words("where masked_fill masked_fill_ masked_scatter")
TRIANGLES = words("tril triu tri")
INTEGERS = words("bool int long int32 int64 uint8 bool_")
MASK = "generate_square_subsequent_mask"
DEEPEST = 8


class Infinite:
    """Tensors of a script that hold infinities.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def holds(self, node: cst.CSTNode | None, depth: int = 0) -> bool:
        """Whether `node`, a number, a tensor or a list of them, surely holds an infinity."""
        if node is None or depth > DEEPEST:
            return False
        return any(self.holds(part, depth + 1) for part in self._parts(node)) or self._is_infinite(
            node, depth
        )

    def _parts(self, node: cst.CSTNode) -> Iterator[cst.CSTNode | None]:
        """Yield the expressions whose infinities `node` takes over."""
        if isinstance(node, cst.UnaryOperation):
            if not isinstance(node.operator, cst.Not):
                yield node.expression
        elif isinstance(node, cst.BinaryOperation):
            yield node.left
            if isinstance(node.operator, cst.Add | cst.Subtract | cst.Multiply):
                yield node.right
        elif isinstance(node, cst.IfExp):
            yield from (node.body, node.orelse)
        elif isinstance(node, cst.List | cst.Tuple):
            yield from (element.value for element in node.elements)
        elif isinstance(node, cst.ListComp):
            yield node.elt
        elif isinstance(node, cst.Subscript):
            yield node.value
        elif isinstance(node, cst.Call):
            yield from self._of_call(node)

    def _of_call(self, call: cst.Call) -> Iterator[cst.CSTNode | None]:
        functions = self._facts.context.called(call)
        for function in functions:
            yield from self._facts.bindings.returns[id(function)]
        last = last_part(call.func)
        if functions or last not in KEEPING or _is_whole(call):
            return
        name = self._facts.names.of(call.func) or ""
        if name and not name.startswith(("torch.", "numpy.")):
            return
        values: list[cst.BaseExpression] = [arg.value for arg in call.args]
        if not name and isinstance(call.func, cst.Attribute):
            values.insert(0, call.func.value)
        # `where` chooses by its first argument; the others, and `where` as a method, by their second.
        chooser = 0 if last == "where" and name else 1
        if last in CHOOSING and len(values) > chooser:
            test = values.pop(chooser)
            if self._asks_infinite(test):  # what is infinite there is replaced
                values = [v for v in values if not isinstance(v, cst.Name | cst.Attribute)]
        yield from values

    def _asks_infinite(self, test: cst.CSTNode) -> bool:
        """Whether `test` asks for infinities: `x == float("-inf")`, `x.isinf()`."""
        return any(
            last_part(call.func) in ("isinf", "isfinite", "isneginf", "isposinf")
            or self._is_infinite(call, 0)
            for call in self._facts.below(test, cst.Call)
        ) or any(
            self._facts.names.of(node) in INFINITIES
            for kind in (cst.Name, cst.Attribute)
            for node in nodes_of(test, kind)
        )

    def _is_infinite(self, node: cst.CSTNode, depth: int) -> bool:
        """Whether `node` is an infinity itself, or the name of a tensor that holds one."""
        if is_infinity(node, self._facts):
            return True
        if isinstance(node, cst.Call):
            return self._makes_mask(node)
        if isinstance(node, cst.Name):
            return self._is_named(node, depth)
        if isinstance(node, cst.Attribute) and is_attribute_of_self(node):
            return any(self.holds(value, depth + 1) for value in self._facts.values.given_to(node))
        return False

    def _makes_mask(self, call: cst.Call) -> bool:
        """Whether `call` is torch's causal mask, or the logarithm of a triangle of ones."""
        last = last_part(call.func)
        if last == MASK:
            return not self._facts.context.called(call)
        if last not in ("log", "log_"):
            return False
        name = self._facts.names.of(call.func)
        operand = call.args[0].value if name and call.args else call.func
        return any(
            last_part(inner.func) in TRIANGLES for inner in self._facts.below(operand, cst.Call)
        )

    def _is_named(self, name: cst.Name, depth: int) -> bool:
        bindings = self._facts.bindings
        reaching = [assignment.value for assignment in bindings.reaching(name)]
        if not reaching and bindings.parameter(name) is None:
            # Values in the module, or in a function around.
            reaching = list(self._facts.values.given_to(name))
        if any(self.holds(value, depth + 1) for value in reaching):
            return True
        bound = bindings.parameter(name)
        if bound is not None:
            function, parameter = bound
            passed = [*bindings.passed(function, name.value), parameter.default]
            if any(self.holds(value, depth + 1) for value in passed):
                return True
        return any(self.holds(value, depth + 1) for value in self._written(name))

    def _written(self, name: cst.Name) -> Iterator[cst.CSTNode]:
        """Yield what the function around `name` writes into the tensor: `mask.fill_(x)`, `mask[i] = x`."""
        yield from (put.value for put in self._facts.bindings.put_into(name))
        owner = self._facts.bindings.owner(name)
        for call in self._facts.calls:
            func = call.func
            if (
                isinstance(func, cst.Attribute)
                and func.attr.value in IN_PLACE
                and code(func.value) == name.value
                and self._facts.bindings.owner(func.value) is owner
            ):
                yield from (arg.value for arg in call.args[-1:])

    def written_to(
        self, node: cst.CSTNode
    ) -> tuple[cst.Attribute | None, cst.BaseExpression | None]:
        """Return the attribute of `self` that `node` sets or writes into, and what it writes."""
        if isinstance(node, cst.Call):
            func = node.func
            if (
                not isinstance(func, cst.Attribute)
                or func.attr.value not in IN_PLACE
                or not node.args
            ):
                return None, None
            target, value = func.value, node.args[-1].value
        elif isinstance(node, cst.Assign):
            target, value = node.targets[0].target, node.value
        else:
            return None, None
        while isinstance(target, cst.Subscript) or (
            isinstance(target, cst.Attribute) and target.attr.value == "data"
        ):
            target = target.value
        if isinstance(target, cst.Attribute) and is_attribute_of_self(target):
            return target, value
        return None, None


def _is_whole(call: cst.Call) -> bool:
    """Whether the result has a type without infinities: `.to(torch.bool)`, `dtype=torch.long`."""
    return any(
        last_part(arg.value) in INTEGERS and isinstance(arg.value, cst.Attribute | cst.Name)
        for arg in call.args
    )
