"""Which code runs inside of a training step, and how often the rest of it runs."""

from __future__ import annotations

from enum import Enum, auto

import libcst as cst

from migrate.rewrite.context import Context
from migrate.rewrite.effects import BOTH, Effect
from migrate.rewrite.tree import code, is_attribute_of_self, nodes_of, targets

FORWARDS = frozenset({"forward", "training_step"})


class When(Enum):
    """When a piece of code runs."""

    STEP = auto()  # inside of the step: forward, backward, update, and what they call
    EVERY_STEP = auto()  # in the training loop, at every step, but not inside of it
    SOMETIMES = auto()  # in the training loop, under a condition
    ELSEWHERE = auto()


class Steps:
    """The steps of a script: slices of training loops, forward methods, and what both call.

    A step that torch_xla marks (`with torch_xla.step():`) is what the mark says. What another file calls
    is not followed.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._functions: dict[tuple[int, str], cst.FunctionDef] = {}
        self.loops: list[cst.For | cst.While] = []
        self._inside: set[int] = set()
        self._bodies: set[int] = set()
        marked: list[cst.With] = []
        for node in context.nodes:
            if isinstance(node, cst.FunctionDef):
                around = context.class_around(node)
                self._functions[id(around) if around is not None else 0, node.name.value] = node
            elif isinstance(node, cst.For | cst.While):
                if context.effects.of(node.body) & BOTH == BOTH:
                    self.loops.append(node)
            elif isinstance(node, cst.With) and is_step(node, context):
                marked.append(node)
        starts: list[cst.CSTNode] = [block.body for block in marked]
        for loop in self.loops:
            self._bodies.add(id(loop.body))
            if not any(loop in context.ancestors(block) for block in marked):
                starts.extend(_slice(loop, context))
        starts.extend(self._forwards())
        self._follow(starts)

    @property
    def found(self) -> bool:
        """Whether the script has a training loop, a marked step or a module's forward."""
        return bool(self._inside)

    def when(self, node: cst.CSTNode) -> When:
        """Return when `node` runs."""
        conditional = False
        below = node
        for above in (node, *self._context.ancestors(node)):
            if id(above) in self._inside:
                return When.STEP
            if id(above) in self._bodies:
                return When.SOMETIMES if conditional else When.EVERY_STEP
            if isinstance(above, cst.FunctionDef | cst.ClassDef):
                return When.ELSEWHERE
            if isinstance(above, cst.If) and below is not above.test and above is not node:
                if below is above.body and code(above.test).endswith("not self.training"):
                    return When.ELSEWHERE  # evaluation, in the forward of a module
                conditional = True
            below = above
        return When.ELSEWHERE

    def inside(self, node: cst.CSTNode) -> bool:
        """Whether `node` runs inside of a step."""
        return self.when(node) is When.STEP

    def is_forward(self, function: cst.CSTNode | None) -> bool:
        """Whether `function` is the forward of a module."""
        return (
            isinstance(function, cst.FunctionDef)
            and function.name.value in FORWARDS
            and self._is_module(self._context.class_around(function))
        )

    def _is_module(self, around: cst.ClassDef | None) -> bool:
        if around is None or not around.bases:
            return False
        names = [self._context.qualified_name(base.value) or "" for base in around.bases]
        # A data pipeline or an autograd.Function has a `forward` too, but is no module.
        return not any("autograd" in name or "Transform" in name for name in names)

    def _forwards(self) -> list[cst.CSTNode]:
        return [f.body for f in self._functions.values() if self.is_forward(f)]

    def _follow(self, starts: list[cst.CSTNode]) -> None:
        """Take along the functions of the script that the code at `starts` calls."""
        stack = list(starts)
        while stack:
            start = stack.pop()
            if id(start) in self._inside:
                continue
            self._inside.add(id(start))
            for call in nodes_of(start, cst.Call):
                callee = self._callee(call)
                if callee is None or id(callee.body) in self._inside | self._bodies:
                    continue
                if self._context.effects.of(callee.body) & BOTH == BOTH:
                    # A method that is the whole step: what stands below the update is not in it.
                    self._bodies.add(id(callee.body))
                    stack.extend(_slice(callee, self._context))
                else:
                    stack.append(callee.body)

    def _callee(self, call: cst.Call) -> cst.FunctionDef | None:
        if isinstance(call.func, cst.Name):
            return self._functions.get((0, call.func.value))
        if is_attribute_of_self(call.func):
            around = self._context.class_around(call)
            return self._functions.get((id(around), call.func.attr.value)) if around else None
        return None


def is_step(block: cst.With, context: Context) -> bool:
    """Whether `block` is `with torch_xla.step():`."""
    return any(
        isinstance(item.item, cst.Call)
        and context.qualified_name(item.item.func) == "torch_xla.step"
        for item in block.items
    )


def _slice(around: cst.For | cst.While | cst.FunctionDef, context: Context) -> list[cst.CSTNode]:
    """Return the statements of a loop or function from what the backward pass starts from to the update.

    From the backward pass upwards a statement belongs if it binds a name that a later one uses; what lies
    between is taken along: as the script stands, it runs between forward and update.
    """
    if not isinstance(around.body, cst.IndentedBlock):
        return [around.body]
    statements = list(around.body.body)
    effects = [context.effects.of(statement) for statement in statements]
    backward = [i for i, effect in enumerate(effects) if Effect.BACKWARD in effect]
    if not backward:
        return []
    first = backward[0]
    last = max(i for i, effect in enumerate(effects) if effect)
    used = _names(statements[first])
    for index in range(first - 1, -1, -1):
        bound = {name.value for t in targets(statements[index]) for name in nodes_of(t, cst.Name)}
        if bound & used:
            first = index
            used |= _names(statements[index])
    return list(statements[first : last + 1])


def _names(statement: cst.CSTNode) -> set[str]:
    return {name.value for name in nodes_of(statement, cst.Name)}
