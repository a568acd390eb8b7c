"""Find the code that can see the variables of the function around a loop, and their aliases."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import CLOCKS
from migrate.reading.steps.loops import Loop
from migrate.syntax.tree import base_name, code, nodes, nodes_of, targets

if TYPE_CHECKING:
    from migrate.rewrite.workspace import Workspace

# What adds up values without showing them, by what makes it.
SUMS = re.compile(
    r".*(average|mean|meter|metric|smooth|tracker).*|defaultdict|deque|dict|list", re.IGNORECASE
)
# What a class must not call where it takes a value, to be no more than a sum.
SHOWS = {"print"} | {name.rpartition(".")[2] for name in CLOCKS}


class Variables:
    """The variables of the function around one loop.

    Args:
        loop: the loop.
        context: the script.
    """

    def __init__(self, loop: Loop, context: Workspace) -> None:
        self.loop = loop
        self._context = context
        self._owner = context.function_around(loop)
        self._in_loop = {id(node) for node in nodes(loop)}
        self._targets = {id(target) for target in targets(self._owner or context.module)}

    def mentions(self, name: str) -> list[cst.Name] | None:
        """Return the mentions of the variable `name`, or None if other functions see it too."""
        mentions = []
        home = self._owner or self._context.module
        for mention in self._context.references(name):
            if not self._is_variable(mention):
                continue
            if self._is_own(mention):
                mentions.append(mention)
            elif self._context.bound_to(mention)[0] is home:
                return None
        bound = bool(mentions) and self._context.bound_to(mentions[0])[0] is home
        return mentions if bound else None

    def in_loop(self, node: cst.CSTNode) -> bool:
        """Whether `node` is a part of the loop."""
        return id(node) in self._in_loop

    def is_sum(self, name: str) -> bool:
        """Whether `name` is an object that the function creates and that only sums up what it gets."""
        mentions = self.mentions(name) or ()
        if any(isinstance(self._context.parent(mention), cst.Param) for mention in mentions):
            return False
        bound = [mention for mention in mentions if id(mention) in self._targets]
        return bool(bound) and all(self._makes_sum(self._value(target)) for target in bound)

    def _value(self, target: cst.Name) -> cst.CSTNode | None:
        """Return what is assigned to `target`, also in `a, b = A(), B()`, or None if not plain to see."""
        above = self._context.parent(target)
        if isinstance(above, cst.AnnAssign):
            return above.value
        if isinstance(above, cst.Element):
            names = self._context.parent(above)
            assign = self._context.parent(self._context.parent(names))
            values = assign.value if isinstance(assign, cst.Assign) else None
            if not isinstance(names, cst.Tuple) or not isinstance(values, cst.Tuple):
                return None
            at = list(names.elements).index(above)
            same = len(names.elements) == len(values.elements)
            return values.elements[at].value if same else None
        assign = self._context.parent(above)
        return assign.value if isinstance(assign, cst.Assign) else None

    def _makes_sum(self, value: cst.CSTNode | None) -> bool:
        if isinstance(value, cst.List | cst.Dict):
            return True
        if not isinstance(value, cst.Call):
            return False
        callee = value.func.attr if isinstance(value.func, cst.Attribute) else value.func
        if not isinstance(callee, cst.Name) or not SUMS.fullmatch(callee.value):
            return False
        classes = (s for s in self._context.module.body if isinstance(s, cst.ClassDef))
        own = [c for c in classes if c.name.value == callee.value]
        return all(not _shows(class_) for class_ in own)

    def aliases(self, name: str) -> frozenset[str] | None:
        """Return all names of the object `name`, itself included, or None if they are unknown."""
        names: set[str] = set()
        waiting = [name]
        while waiting:
            alias = waiting.pop()
            if alias in names:
                continue
            names.add(alias)
            mentions = self.mentions(alias)
            if mentions is None:
                return None
            for mention in mentions:
                if self.in_loop(mention):
                    continue
                holders = self._holders(mention)
                if holders is None:
                    return None
                waiting.extend(holders)
        return frozenset(names)

    def is_dead_after(self, names: Iterable[str]) -> bool:
        """Whether `names` are unused after the loop: they are only set again before each start of it."""
        before = self._statements_before()
        for name in names:
            for mention in self.mentions(name) or ():
                statement = self._context.statement_around(mention)
                if self.in_loop(mention):
                    continue
                if id(statement) not in before or not _only_binds(statement):
                    return False
        return True

    def _statements_before(self) -> set[int]:
        block = self._context.parent(self.loop)
        assert isinstance(block, cst.IndentedBlock | cst.Module)
        before = set()
        for statement in block.body:
            if statement is self.loop:
                break
            before.add(id(statement))
        return before

    def _is_variable(self, name: cst.Name) -> bool:
        above = self._context.parent(name)
        if isinstance(above, cst.Attribute):
            return above.value is name
        return not (isinstance(above, cst.Arg) and above.keyword is name)

    def _is_own(self, name: cst.Name) -> bool:
        """Whether the function of the loop itself mentions `name`, when it runs."""
        for above in self._context.ancestors(name):
            if above is self._owner:
                return True
            if isinstance(
                above, cst.FunctionDef | cst.ClassDef | cst.Lambda | cst.Global | cst.Nonlocal
            ):
                return False
        return self._owner is None

    def _holders(self, mention: cst.Name) -> list[str] | None:
        """Return the names that a mention outside of the loop gives the object to, or None if unknown."""
        below: cst.CSTNode = mention
        for above in self._context.ancestors(mention):
            if isinstance(above, cst.Attribute):
                return []  # a method or a value of it
            if isinstance(above, cst.Assign | cst.AnnAssign | cst.For):
                source = above.iter if isinstance(above, cst.For) else above.value
                return _names_bound(above) if below is source else []
            if isinstance(above, cst.Call) and isinstance(below, cst.Arg):
                statement = self._context.parent(above)
                if isinstance(statement, cst.Expr) and self._is_before(above):
                    return _receiver(above)
            if isinstance(above, cst.WithItem):
                name = above.asname.name if above.asname is not None else None
                return [name.value] if isinstance(name, cst.Name) else []
            if isinstance(above, cst.NamedExpr | cst.Lambda):
                return None
            if isinstance(above, cst.Return | cst.Yield | cst.BaseStatement):
                return []
            below = above
        return None

    def _is_before(self, node: cst.CSTNode) -> bool:
        return self._context.position(node).line < self._context.position(self.loop).line


def _receiver(call: cst.Call) -> list[str] | None:
    """Return the name of what a method is called on: it may hold what it is given."""
    if isinstance(call.func, cst.Name) and call.func.value == "print":
        return []
    name = base_name(call.func.value) if isinstance(call.func, cst.Attribute) else None
    return [name] if name is not None and "." not in name else None


def _names_bound(node: cst.Assign | cst.AnnAssign | cst.For) -> list[str] | None:
    bound = [node.target] if isinstance(node, cst.For | cst.AnnAssign) else []
    bound += [target.target for target in node.targets] if isinstance(node, cst.Assign) else []
    names = [base_name(name) for target in bound for name in _flat(target)]
    return None if any(n is None or "." in n for n in names) else [n for n in names if n]


def _flat(target: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(target, cst.Tuple | cst.List):
        return [name for element in target.elements for name in _flat(element.value)]
    return [target]


def _only_binds(statement: cst.CSTNode) -> bool:
    """Whether `statement` is an assignment of names and nothing else."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return False
    return all(isinstance(s, cst.Assign | cst.AnnAssign) for s in statement.body) and all(
        isinstance(target, cst.Name) for target in targets(statement)
    )


def _shows(class_: cst.ClassDef) -> bool:
    """Whether a method of the class that takes a value prints it, or asks for the time."""
    taking = [
        method
        for method in nodes_of(class_.body, cst.FunctionDef)
        if method.name.value in ("update", "add", "append")
    ]
    return any(
        code(call.func).split(".")[-1] in SHOWS
        for method in taking
        for call in nodes_of(method.body, cst.Call)
    )
