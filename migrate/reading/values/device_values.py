"""Names in a loop that hold device tensors: reading them waits for the device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING

import libcst as cst
from libcst.helpers import get_full_name_for_node

from migrate.catalogue.words import COUNTER, DESCRIBES, METRIC, ONLY_TENSORS, TEXT_METHODS
from migrate.model.calls.effect import Effect
from migrate.model.calls.kind import Kind
from migrate.reading.names.bindings import pairs
from migrate.reading.values.devices import moves
from migrate.reading.values.values import asks_no_value
from migrate.syntax.tree import (
    base_name,
    container,
    is_attribute_of_self,
    is_dotted_name,
    keyword,
    last_part,
    nodes,
    nodes_of,
    string_value,
)
from migrate.syntax.walk import children

if TYPE_CHECKING:
    from migrate.reading.script import Script

# Methods of tensors whose result is a tensor, too.
OF_TENSORS = ONLY_TENSORS | {
    "clone",
    "cpu",
    "double",
    "float",
    "max",
    "mean",
    "min",
    "squeeze",
    "sum",
}
# Nodes that bind a name to something other than an object of the script.
_BINDING = frozenset(
    (cst.Assign, cst.AugAssign, cst.NamedExpr, cst.AnnAssign, cst.For, cst.CompFor)
)
NO_OBJECT = cst.FunctionDef | cst.ClassDef | cst.Import | cst.ImportFrom


class DeviceValues:
    """Names that hold device tensors in one loop, once its batches are on the device.

    `Values` says what an expression is: a device tensor there is one here. In addition, this class assumes
    that the batch is on the device, although it may not be there yet, and follows the statements in any
    order: a value computed from a device tensor, by any function, is one too. Sizes, types and the result of
    `.item()` are on the host.

    Args:
        root: the loop's body, or the function that runs the step.
        batch: the names that the loop binds to a batch.
        context: the script.
    """

    def __init__(self, root: cst.CSTNode, batch: Iterable[str], context: Script) -> None:
        self._context = context
        self._moved_entries = _moved_entries(root, context)
        self.names = {
            name
            for name in batch
            if not COUNTER.fullmatch(name) and not _is_only_written(name, root, context)
        }
        bindings = list(self._bound(root))
        self.names |= self._from_before(root, {name for targets, _ in bindings for name in targets})
        before = -1
        while before < len(self.names):
            before = len(self.names)
            for targets, value in bindings:
                if self.mentions(value):
                    self.names.update(targets)

    def _bound(self, root: cst.CSTNode) -> Iterable[tuple[list[str], cst.CSTNode]]:
        """Yield the names bound at and below `root`, with their values."""
        iterated = self._context.values.bindings.iterated
        for node in nodes(root):
            if type(node) not in _BINDING:
                continue
            if isinstance(node, cst.Assign):
                yield [n for target in node.targets for n in _names(target.target)], node.value
            elif isinstance(node, cst.AugAssign | cst.NamedExpr | cst.AnnAssign):
                if node.value is not None:
                    yield _names(node.target), node.value
            elif isinstance(node, cst.For | cst.CompFor):
                for target, _, value in pairs(node.target, iterated(node.iter)):
                    # No number of a turn, nor the name of something, nor a key.
                    if value is not None and not self._context.values.gives_keys(value):
                        yield _names(target), value

    def _from_before(self, root: cst.CSTNode, bound: Set[str]) -> set[str]:
        """Return the names of values put on the device before `root`, such as an agent's rollouts."""
        names = self._context.below(root, cst.Name)
        free = {name.value: name for name in names if name.value not in bound}
        return {
            name
            for name, node in free.items()
            if self._context.bindings(node) and self._context.values.kind(node) is Kind.ON_DEVICE
        }

    def mentions(self, node: cst.CSTNode) -> bool:
        """Whether the value of the expression `node` is, or holds, a tensor of the device."""
        return self._follows(node) or (
            isinstance(node, cst.BaseExpression) and self._context.values.on_device(node)
        )

    def _follows(self, node: cst.CSTNode) -> bool:
        """Whether `node` is such a value because of the names that hold one."""
        if isinstance(node, cst.Name):
            return node.value in self.names
        if (entry := _entry(node)) is not None:
            holder, key = entry
            if key not in self._moved_entries.get(holder, (key,)):
                return False  # what nothing moves is in host memory still
        if isinstance(node, cst.Attribute):
            if node.attr.value in DESCRIBES:
                return False
            name = get_full_name_for_node(node) if is_dotted_name(node) else None
            return name in self.names or self.mentions(node.value)
        if isinstance(node, cst.FormattedString) or is_text_item(node, self._context):
            return False  # a text; values in it are read there
        if isinstance(node, cst.Call):
            return not is_text_method(node) and self._call(node)
        if isinstance(node, cst.Comparison) and asks_no_value(node):
            return False
        if isinstance(node, cst.Lambda | cst.BaseStatement | cst.BaseSuite):
            return False
        return any(self.mentions(child) for child in children(node))

    def is_state(self, call: cst.Call) -> bool:
        """Whether the callee is an object of the script, such as a model, not a function."""
        func = container(call.func)
        if isinstance(func, cst.Name):
            bindings = self._context.bindings(func)
            return bool(bindings) and not any(
                isinstance(binding.node, NO_OBJECT) for binding in bindings
            )
        if not is_attribute_of_self(func):
            return False
        named = func.attr.value
        return all(definition.name != named for definition in self._context.run_by(call))

    def _call(self, call: cst.Call) -> bool:
        by_itself = self._context.values.by_itself(call)
        if by_itself is not None:
            return by_itself is Kind.ON_DEVICE
        if _is_conversion(call, self._context):
            return True
        func = call.func
        if any(self.mentions(choice.body) for choice in _chosen(func, self._context)):
            return True
        if self.is_state(call) and self._context.values.calls_model(call):
            return True
        called = self._context.called(call)
        if any(next(moves(callee.body, self._context), None) is not None for callee in called):
            return True
        if isinstance(func, cst.Attribute) and self.mentions(func.value):
            return True
        return any(self.mentions(arg.value) for arg in call.args)


def _chosen(func: cst.BaseExpression, context: Script) -> Iterable[cst.Lambda]:
    """Return the lambdas that a call of `func` may run: `{"a": lambda: model(x)}[kind]()`."""
    if isinstance(func, cst.Subscript):
        of = func.value
        value = context.bound_to(of)[1] if isinstance(of, cst.Name) else of
        if isinstance(value, cst.Dict | cst.List | cst.Tuple):
            parts = [element.value for element in value.elements]
            return [part for part in parts if isinstance(part, cst.Lambda)]
    return [func] if isinstance(func, cst.Lambda) else []


def is_text_method(call: cst.Call) -> bool:
    """Whether `call` is of a method that texts have and tensors do not: `template.format(name)`."""
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in TEXT_METHODS


def _is_only_written(name: str, root: cst.CSTNode, context: Script) -> bool:
    """Whether the variable `name` is only used in texts at and below `root`: it is no batch tensor."""
    uses = [node for node in context.below(root, cst.Name) if node.value == name]
    return bool(uses) and all(_is_in_text(use, context) for use in uses)


def _is_in_text(use: cst.Name, context: Script) -> bool:
    above = context.parent(use)
    if isinstance(above, cst.FormattedStringExpression):
        return True
    call = context.parent(above) if isinstance(above, cst.Arg) else None
    if not isinstance(call, cst.Call):
        return False
    # A tokenizer takes texts, and makes tensors from them.
    return is_text_method(call) or keyword(call, "return_tensors") is not None


def _is_conversion(call: cst.Call, context: Script) -> bool:
    """Whether `call` is `x.to(…)` with anything but a dtype or the CPU: perhaps the device."""
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "to" or not call.args:
        return False
    first = call.args[0].value
    if context.values.is_surely_cpu(first):
        return False
    return not (context.qualified_name(first) or "").startswith("torch.")


def is_left_entry(node: cst.CSTNode, context: Script) -> bool:
    """Whether `node` is `batch["x"]`, and the loop around it moves other entries of the batch, and not this.

    Example: a number of the host, `if batch["padding"] > 0:`, beside `batch["image"].to(device)`. Its
    comparison with a number is one, too.
    """
    if isinstance(node, cst.Comparison):
        sides = [node.left, *(target.comparator for target in node.comparisons)]
        others = [side for side in sides if not isinstance(side, cst.BaseNumber)]
        return bool(others) and all(is_left_entry(side, context) for side in others)
    entry, loop = _entry(node), context.loop_around(node)
    if entry is None or loop is None:
        return False
    name, key = entry
    return key not in _moved_entries(loop.body, context).get(name, (key,))


def _entry(node: cst.CSTNode | None) -> tuple[str, str] | None:
    """Return the name and the key of `batch["x"]`."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        return None
    index = node.slice[0].slice
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    return None if key is None else (node.value.value, key)


def _moved_entries(root: cst.CSTNode, context: Script) -> dict[str, set[str]]:
    """Return the keys of what is moved from each dict of which `root` moves some entries, and no other way.

    A dict that a call, an assignment or a loop gets as a whole may move there.
    """
    moved: dict[str, set[str]] = {}
    for call in moves(root, context):
        entry = _entry(call.func.value) if isinstance(call.func, cst.Attribute) else None
        if entry is not None:
            moved.setdefault(entry[0], set()).add(entry[1])
    for name in nodes_of(root, cst.Name) if moved else ():
        above = context.parent(name)
        asks = isinstance(above, cst.ComparisonTarget) and isinstance(above.operator, cst.In)
        is_set = isinstance(context.parent(above), cst.AssignTarget)
        if name.value in moved and not asks and (_entry(above) is None or is_set):
            del moved[name.value]
    return moved


def _names(target: cst.CSTNode) -> list[str]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _names(element.value)]
    name = base_name(target)
    return [name] if name else []


def has_gradients(value: cst.CSTNode, script: Script, depth: int = 2) -> bool:
    """Whether `value` is, or is computed from, a variable that starts a backward pass: `loss.backward()`.

    So is a variable that is given another name first (`total = loss`), and one that the same call returns
    beside the loss: `loss, accuracy = net.losses(x, y)`.
    """
    while isinstance(value, cst.Call) and last_part(value.func) in OF_TENSORS:
        if not isinstance(value.func, cst.Attribute):
            return False
        value = value.func.value
    if not isinstance(value, cst.Name) or script.values.bindings.nearest(value) is None:
        return False
    function = script.function_around(value)
    return any(
        script.function_around(mention) is function
        and (
            _is_backward(mention, script)
            or (
                depth > 0
                and any(has_gradients(n, script, depth - 1) for n in _beside(mention, script))
            )
        )
        for mention in script.mentions(value)
    )


def _beside(mention: cst.CSTNode, script: Script) -> Iterator[cst.Name]:
    """Yield the names that an assignment gives to `mention`, or binds beside it to what one call returns."""
    above = script.parent(mention)
    if isinstance(above, cst.Assign) and above.value is mention:
        yield from (t.target for t in above.targets if isinstance(t.target, cst.Name))
    held = script.parent(above) if isinstance(above, cst.Element) else None
    target = script.parent(held) if isinstance(held, cst.Tuple) else None
    assigned = script.parent(target) if isinstance(target, cst.AssignTarget) else None
    called = isinstance(assigned, cst.Assign) and isinstance(assigned.value, cst.Call)
    if isinstance(held, cst.Tuple) and called:
        parts = (element.value for element in held.elements)
        yield from (p for p in parts if isinstance(p, cst.Name) and p is not mention)


def _is_backward(mention: cst.CSTNode, script: Script) -> bool:
    """Whether a backward pass starts with `mention`: also `scaler.scale(loss).backward()`.

    `loss_scaler(loss, optimizer)` counts too: the first argument is named a loss.
    """
    node, above = mention, script.parent(mention)
    call = script.parent(above)
    if isinstance(above, cst.Arg) and isinstance(call, cst.Call) and call.args[0] is above:
        named = isinstance(mention, cst.Name) and METRIC.fullmatch(mention.value) is not None
        if named and Effect.BACKWARD in script.effects.of(call):
            return True
    while isinstance(above, cst.Arg | cst.Call | cst.BinaryOperation):
        if isinstance(above, cst.Call) and last_part(above.func) == "backward":
            return True
        node, above = above, script.parent(above)
    return (
        isinstance(above, cst.Attribute) and above.value is node and above.attr.value == "backward"
    )


TABLES = frozenset({"OrderedDict", "dict", "list", "tuple"})
TEXTS = cst.SimpleString | cst.ConcatenatedString | cst.FormattedString


def is_text_item(node: cst.CSTNode, context: Script) -> bool:
    """Whether `node` is a text of each row of a written table, whose rows a loop around it binds."""
    if not isinstance(node, cst.Subscript) or not isinstance(node.value, cst.Name):
        return False
    index = node.slice[0].slice
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    loop = next((above for above in context.ancestors(node) if isinstance(above, cst.For)), None)
    if key is None or loop is None:
        return False
    last = loop.target.elements[-1].value if isinstance(loop.target, cst.Tuple) else loop.target
    if not isinstance(last, cst.Name) or last.value != node.value.value:
        return False
    rows = list(_rows(loop.iter, context))
    is_set = any(
        isinstance(target.target, cst.Subscript) and target.target.deep_equals(node)
        for target in nodes_of(loop.body, cst.AssignTarget)
    )
    return bool(rows) and not is_set and all(_is_text_at(key, row, context) for row in rows)


def _rows(table: cst.BaseExpression, context: Script) -> Iterator[cst.BaseExpression]:
    """Yield the rows of a table as it is written: the values of a dictionary, the elements of a list."""
    if isinstance(table, cst.Call) and isinstance(table.func, cst.Attribute):
        if table.func.attr.value in ("items", "values"):
            yield from _rows(table.func.value, context)
        return
    value = _written(table, context)
    if isinstance(value, cst.Call) and len(value.args) == 1 and last_part(value.func) in TABLES:
        value = value.args[0].value
    if isinstance(value, cst.Dict | cst.List | cst.Tuple):
        yield from (element.value for element in value.elements)


def _is_text_at(key: str, row: cst.BaseExpression, context: Script) -> bool:
    row = _written(row, context)
    if not isinstance(row, cst.Dict):
        return False
    values = [
        element.value
        for element in row.elements
        if isinstance(element, cst.DictElement) and string_value(element.key) == key
    ]
    return bool(values) and isinstance(_written(values[-1], context), TEXTS)


def _written(node: cst.BaseExpression, context: Script) -> cst.BaseExpression:
    """Return the value that a variable is bound to, or the expression itself."""
    value = context.bound_to(node)[1] if isinstance(node, cst.Name) else node
    return value if isinstance(value, cst.BaseExpression) else node
