"""Which calls run a backward pass or an optimizer step, through the functions of the script.

The step loop of a training script is the innermost loop whose body has both effects.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from enum import Flag, auto
from typing import TYPE_CHECKING

import libcst as cst

from migrate.rewrite.tree import is_attribute_of_self, nodes_of

if TYPE_CHECKING:
    from migrate.rewrite.context import Context


class Effect(Flag):
    """What running a piece of code does to the training state."""

    NONE = 0
    BACKWARD = auto()
    STEP = auto()


BOTH = Effect.BACKWARD | Effect.STEP

# `.step()` is also what these are told, by the names that scripts give them.
NOT_OPTIMIZERS = ("sched", "profil", "prof", "env", "writer", "meter", "warmup", "progress", "bar")


class Effects:
    """The effects of every call, as a fixpoint over the functions and methods of one script.

    Methods are found by name: `self._run_batch(x)` has the effects of the `_run_batch` of the class
    around it. A step loop consumes its effects: who calls `train()` does not train a step.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._functions: dict[tuple[int, str], cst.FunctionDef] = {}
        for node in context.nodes:
            if isinstance(node, cst.FunctionDef):
                self._functions[id(self._owner(node)), node.name.value] = node
        self._known: dict[int, Effect] = defaultdict(lambda: Effect.NONE)
        for _ in self._functions:  # a chain of calls is no longer than that
            if not self._spread():
                break

    def of(self, node: cst.CSTNode) -> Effect:
        """Return the effects of running `node`, nested functions and inner step loops left out."""
        found = Effect.NONE
        stack = [node]
        while stack:
            current = stack.pop()
            inside = current is not node
            if inside and isinstance(current, cst.FunctionDef | cst.ClassDef | cst.Lambda):
                continue
            if inside and isinstance(current, cst.For | cst.While):
                inner = self.of(current.body)
                if inner & BOTH != BOTH:
                    found |= inner
                continue
            if isinstance(current, cst.Call):
                found |= self._of_call(current)
            stack.extend(current.children)
        return found

    def _of_call(self, call: cst.Call) -> Effect:
        callee = self._callee(call)
        if callee is not None:
            return self._known[id(callee)]
        if isinstance(call.func, cst.Attribute):
            if call.func.attr.value == "backward":
                return Effect.BACKWARD
            if call.func.attr.value == "step" and self._is_optimizer(call.func.value):
                return Effect.STEP
        return Effect.NONE

    def _callee(self, call: cst.Call) -> cst.FunctionDef | None:
        """Return the function or method of the script that `call` runs, if it is plain to see."""
        function = call.func
        if isinstance(function, cst.Name):
            return self._functions.get((id(None), function.value))
        if is_attribute_of_self(function):
            owner = self._context.class_around(call)
            return self._functions.get((id(owner), function.attr.value))
        return None

    def callees(self, statements: Iterable[cst.CSTNode]) -> list[cst.FunctionDef]:
        """Return the functions of the script with an effect that `statements` call."""
        calls = [call for statement in statements for call in nodes_of(statement, cst.Call)]
        found = [self._callee(call) for call in calls]
        return [callee for callee in found if callee is not None and self._known[id(callee)]]

    def _is_optimizer(self, receiver: cst.BaseExpression) -> bool:
        last = receiver
        while isinstance(last, cst.Subscript | cst.Call):
            last = last.value if isinstance(last, cst.Subscript) else last.func
        if isinstance(last, cst.Attribute):
            name = last.attr.value
        elif isinstance(last, cst.Name):
            name = last.value
            if self._context.qualified_name(last) is not None:
                return False  # `torch_xla.step()`: a module or an imported function
        else:
            return False
        return not any(word in name.lower() for word in NOT_OPTIMIZERS)

    def _owner(self, function: cst.FunctionDef) -> cst.CSTNode | None:
        """Return the class that `function` is a method of, or the function around it, or None."""
        kinds = (cst.ClassDef, cst.FunctionDef)
        return next((a for a in self._context.ancestors(function) if isinstance(a, kinds)), None)

    def _spread(self) -> bool:
        changed = False
        for function in self._functions.values():
            effect = self.of(function.body)
            if effect != self._known[id(function)]:
                self._known[id(function)] = effect
                changed = True
        return changed
