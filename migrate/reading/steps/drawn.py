"""Random numbers that Python draws on the host: `random.random()`, `np.random.rand()`, `torch.rand(1)`."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.draws import FILLS, LIKES
from migrate.reading.catalogue.drawing import (
    EMPTIES,
    GENERATORS,
    HOST_DRAWS,
    MAKERS,
    NUMPY_OTHERS,
)
from migrate.reading.tree.tree import code, keyword, nodes_of
from migrate.reading.values.devices import is_accelerator

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Functions and methods whose result is random where an argument or the receiver is.
PLAIN = frozenset(
    {"int", "float", "bool", "round", "abs", "min", "max", "any", "all", "sum", "len", "math", "np"}
)
READS = frozenset(
    {"item", "tolist", "any", "all", "numpy", "astype", "round", "floor", "int", "cpu"}
)
DEEPEST = 5


@lru_cache(maxsize=2)
def drawn_of(facts: Facts) -> Drawn:
    """Return the numbers of a script that its host draws at random."""
    return Drawn(facts)


class Drawn:
    """Finds out whether an expression is a number that the host draws at random.

    A draw of torch counts where its tensor is on the CPU. A tensor that is moved to the device is no number
    of the host any more.

    Args:
        facts: the script.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._has_default = "torch.set_default_device" in facts.called

    def is_drawn(self, node: cst.BaseExpression | None, depth: int = 0) -> bool:
        """Whether `node` is a random number of the host, or made of one."""
        if node is None or depth > DEEPEST:
            return False
        match node:
            case cst.Name():
                return self._is_name(node, depth + 1)
            case cst.Call():
                return self._is_call(node, depth + 1)
            case cst.UnaryOperation():
                return self.is_drawn(node.expression, depth)
            case cst.BinaryOperation() | cst.BooleanOperation():
                return self.is_drawn(node.left, depth) or self.is_drawn(node.right, depth)
            case cst.Comparison():
                if any(isinstance(part.operator, cst.Is | cst.IsNot) for part in node.comparisons):
                    return False
                sides = (node.left, *(target.comparator for target in node.comparisons))
                return any(self.is_drawn(side, depth) for side in sides)
            case cst.IfExp():
                parts = (node.test, node.body, node.orelse)
                return any(self.is_drawn(part, depth) for part in parts)
            case cst.Subscript():
                return self._is_subscript(node, depth)
        return False

    def _is_subscript(self, node: cst.Subscript, depth: int) -> bool:
        if self._facts.values.on_device(node.value):
            return False
        chosen = (part.slice for part in node.slice)
        indices = [part.value for part in chosen if isinstance(part, cst.Index)]
        return self.is_drawn(node.value, depth) or any(self.is_drawn(i, depth) for i in indices)

    def _is_name(self, name: cst.Name, depth: int) -> bool:
        nearest = self._facts.bindings.nearest(name)
        if nearest is not None:
            if nearest.loop is not None:
                return False
            return self.is_drawn(nearest.value, depth)
        parameter = self._facts.bindings.parameter(name)
        if parameter is None:
            return False
        passed = self._facts.bindings.passed(parameter[0], name.value)
        return any(self.is_drawn(value, depth) for value in passed)

    def _is_call(self, call: cst.Call, depth: int) -> bool:
        name = self._facts.names.of(call.func) or ""
        if name:
            return self._is_library_call(name, call, depth)
        func = call.func
        args = [arg.value for arg in call.args]
        if isinstance(func, cst.Name):
            if func.value in PLAIN:
                return any(self.is_drawn(arg, depth) for arg in args)
            return self._returns_drawn(call, depth)
        if isinstance(func, cst.Attribute):
            method, base = func.attr.value, func.value
            if method in FILLS:
                return self._is_empty(base)
            if method in READS:
                return self.is_drawn(base, depth)
            if method in HOST_DRAWS | MAKERS and self._is_generator(base):
                return True
            return self._returns_drawn(call, depth)
        return False

    def _is_library_call(self, name: str, call: cst.Call, depth: int) -> bool:
        package, _, last = name.rpartition(".")
        if package == "random":
            return last in HOST_DRAWS
        if package == "numpy.random":
            return last not in NUMPY_OTHERS
        if package == "torch" and last in MAKERS:
            return self._is_on_host(call)
        args = [arg.value for arg in call.args]
        if package == "torch" and last == "bernoulli":
            return bool(args) and isinstance(args[0], cst.Call) and self._is_on_host(args[0])
        if package in ("math", "numpy"):
            return any(self.is_drawn(arg, depth) for arg in args)
        return False

    def _is_on_host(self, call: cst.Call) -> bool:
        """Whether the tensor that `call` makes is on the CPU."""
        if self._has_default or self._facts.values.on_device(call):
            return False
        device = keyword(call, "device")
        if device is None:
            return True
        return not is_accelerator(device.value, self._facts.context) and "cpu" in code(device.value)

    def _is_empty(self, base: cst.BaseExpression) -> bool:
        if not isinstance(base, cst.Call):
            return False
        last = code(base.func).rpartition(".")[2]
        made = last in EMPTIES - LIKES and (self._facts.names.of(base.func) or "").startswith(
            "torch."
        )
        return made and not last.endswith("_like") and self._is_on_host(base)

    def _is_generator(self, base: cst.BaseExpression) -> bool:
        """Whether `base` is a generator of `random` or NumPy that the script makes."""
        if isinstance(base, cst.Name):
            values = [given.value for given in self._facts.bindings.given(base)]
        elif isinstance(base, cst.Attribute):
            values = list(self._facts.values.given_to(base))
        else:
            values = [base]
        return any(
            isinstance(value, cst.Call) and self._facts.names.of(value.func) in GENERATORS
            for value in values
        )

    def _returns_drawn(self, call: cst.Call, depth: int) -> bool:
        """Whether a function of the script that `call` runs returns such a number."""
        script = self._facts.context
        for function in script.here(script.run_by(call)):
            if not isinstance(function, cst.FunctionDef):
                continue
            for returned in nodes_of(function.body, cst.Return):
                value = returned.value
                parts = (
                    [element.value for element in value.elements]
                    if isinstance(value, cst.Tuple)
                    else [value]
                )
                if any(self.is_drawn(part, depth) for part in parts):
                    return True
        return False


def is_transform(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is in a module that holds no modules and no parameters, and no step uses it.

    Such a module is a transform of the loader as often as a part of the model.
    """
    around = facts.context.class_around(node)
    if facts.steps.calls_it(facts.context.function_around(node)):
        return False
    if around is None or not _is_module(around, facts) or _holds_modules(around, facts):
        return False
    name = around.name.value
    uses = (call for call in facts.calls if code(call.func).rpartition(".")[2] == name)
    for use in uses:
        user = facts.context.class_around(use)
        if user is not None and user is not around and _is_module(user, facts):
            return False
    return True


def _is_module(around: cst.ClassDef, facts: Facts) -> bool:
    names = [facts.names.of(base.value) or code(base.value) for base in around.bases]
    return any(name.rpartition(".")[2] in ("Module", "Sequential", "ModuleList") for name in names)


def _holds_modules(around: cst.ClassDef, facts: Facts) -> bool:
    """Whether the class makes modules or parameters, or runs what it holds."""
    names = (facts.names.of(call.func) or "" for call in nodes_of(around, cst.Call))
    return any(name.startswith("torch.nn.") and name[9:10].isupper() for name in names)
