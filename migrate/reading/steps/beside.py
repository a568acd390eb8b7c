"""Functions that a training loop calls at every step, but outside of the step: metrics and their logging."""

from __future__ import annotations

import libcst as cst

from migrate.reading.script import Script
from migrate.syntax.tree import code, dotted, nodes_of, targets


class EveryStepFunctions:
    """Functions that run at every step, outside of the step.

    Args:
        script: the script.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.functions: dict[
            int, str
        ] = {}  # calls in other files, by the id of the function's body
        self.calls: list[tuple[cst.Call, str]] = []  # calls that run functions of the project

    def take(self, call: cst.Call, origin: str) -> None:
        """Record a call that every step makes, and the functions of this file that it runs."""
        ran = self._script.run_by(call)
        if not ran:
            return
        self.calls.append((call, origin))
        for function in self._script.here(ran):
            self.enter(function, origin)

    def enter(self, function: cst.FunctionDef, origin: str) -> None:
        """Record a function that every step runs, and the functions that it always calls."""
        if id(function.body) in self.functions:
            return
        self.functions[id(function.body)] = origin
        for call in self._script.below(function.body, cst.Call):
            if unconditional(call, id(function.body), self._script):
                self.take(call, origin)

    def every_step(self, node: cst.CSTNode) -> bool:
        """Whether `node` is in one of the functions, and runs whenever the function does."""
        for above in self._script.ancestors(node):
            if isinstance(above, cst.FunctionDef):
                body = id(above.body)
                return body in self.functions and unconditional(node, body, self._script)
        return False

    def origin(self, node: cst.CSTNode) -> str:
        """Return where another file calls the function around `node`; empty if none does."""
        for above in (node, *self._script.ancestors(node)):
            if id(above) in self.functions:
                return self.functions[id(above)]
        return ""


def unconditional(node: cst.CSTNode, body: int, script: Script) -> bool:
    """Whether `node` runs whenever the block with the id `body` does, on some replicas at least.

    A test that has one result in all turns of a loop, of options, decides for the run: `if args.normalize:`.
    """
    below = node
    tests: list[cst.BaseExpression] = []
    for above in script.ancestors(node):
        if id(above) == body:
            loop = script.parent(above)
            return not tests or (
                isinstance(loop, cst.For | cst.While)
                and all(is_fixed(test, loop) for test in tests)
            )
        if isinstance(above, cst.FunctionDef | cst.ClassDef | cst.Lambda | cst.ExceptHandler):
            return False
        if isinstance(above, cst.If | cst.IfExp) and below is not above.test:
            always = code(above.test) in ("True", "1") and below is above.body
            if not always and not script.guards.asks(above.test):
                tests.append(above.test)
        below = above
    return False


def is_fixed(test: cst.BaseExpression, loop: cst.For | cst.While) -> bool:
    """Whether `test` has the same result in all turns of `loop`: an option, or a variable set before it."""
    match test:
        case cst.UnaryOperation(operator=cst.Not(), expression=operand):
            return is_fixed(operand, loop)
        case cst.BooleanOperation(left=left, right=right):
            return is_fixed(left, loop) and is_fixed(right, loop)
        case cst.Comparison(left=left, comparisons=[cst.ComparisonTarget(operator, compared)]):
            if isinstance(compared, cst.Name) and compared.value == "None":
                return is_fixed(left, loop)
            if isinstance(compared, cst.Integer | cst.Float) and float(compared.value) == 0:
                return is_fixed(left, loop) and not _calls_methods_of(left, loop)
            is_equality = isinstance(operator, cst.Equal | cst.NotEqual | cst.In | cst.NotIn)
            held = compared.elements if isinstance(compared, cst.List | cst.Tuple) else ()
            values = [element.value for element in held] or [compared]
            texts = all(isinstance(value, cst.SimpleString) for value in values)
            return is_equality and texts and is_fixed(left, loop)
        case cst.Name() | cst.Attribute():
            if isinstance(test, cst.Attribute) and _calls_methods_of(test, loop):
                return False
            root = dotted(test).partition(".")[0]
            return root not in ("", "self") and not any(
                name.value == root
                for target in (
                    *targets(loop),
                    *([loop.target] if isinstance(loop, cst.For) else ()),
                )
                for name in nodes_of(target, cst.Name)
            )
    return False


def _calls_methods_of(value: cst.BaseExpression, loop: cst.For | cst.While) -> bool:
    """Whether `loop` calls a method of the object that `value` is an attribute of, which may count turns."""
    root = dotted(value).partition(".")[0]
    return any(dotted(call.func).startswith(f"{root}.") for call in nodes_of(loop, cst.Call))
