"""The commonest kinds of hazard: a use of a library's name, an import of a library."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

import libcst as cst

from migrate.catalogue import catalogue
from migrate.check.failing_imports import fallback, is_optional
from migrate.check.hazard import Hazard, Hit, Severity
from migrate.check.manual_work import ManualWork
from migrate.check.only_cuda import only_with_cuda
from migrate.reading.facts import Facts
from migrate.reading.names.bindings import passed_for
from migrate.reading.steps.evaluating import in_evaluation
from migrate.reading.steps.in_step import When
from migrate.syntax.tree import (
    code,
    compared_with_type,
    is_attribute_of_self,
    keyword,
    string_value,
)


class NamedHazard(Hazard):
    """A hazard at each use of a name whose catalogue entry has the hazard's code."""

    nodes: ClassVar[tuple[type[cst.CSTNode], ...]] = (cst.Name, cst.Attribute)
    of_names = True

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name."""
        name = facts.names.of(node)
        if name is None:
            return
        entry = catalogue.of(name, facts.target)
        if entry is not None and entry.code == self.code and not is_a_type(node, facts):
            yield self.hit(node, f"{name}: {entry.says()}", subject=name)


class CudaHazard(NamedHazard):
    """A named hazard with the severity INFO where only a run on CUDA reaches it."""

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name, with its severity there."""
        for hit in super().find(node, facts):
            never = only_with_cuda(node, facts)
            yield replace(hit, severity=Severity.INFO) if never else hit


def is_a_type(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` only names a type: in an annotation, or for isinstance."""
    above = facts.context.parent(node)
    if isinstance(above, cst.BaseElement):
        return True  # one of several types
    if compared_with_type(above, facts.context.parent(above)):
        return True
    call = facts.context.parent(above) if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call):
        asks = isinstance(call.func, cst.Name) and call.func.value in ("isinstance", "issubclass")
        return asks and call.args[0] is not above
    return any(isinstance(ancestor, cst.Annotation) for ancestor in facts.context.ancestors(node))


class ImportHazard(Hazard):
    """A hazard at each import of a library whose catalogue entry has the hazard's code.

    An import under `try:` is information only if the script continues without the library. It is a warning
    if the library imports without CUDA and raises where it is used.
    """

    nodes: ClassVar[tuple[type[cst.CSTNode], ...]] = (cst.Import, cst.ImportFrom)
    works_on_host: ClassVar[bool] = False

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one import statement."""
        for name in facts.imported(node):
            if facts.context.calls.is_local(name):
                return
            entry = catalogue.of_import(name, facts.target)
            if entry is not None and entry.code == self.code:
                optional = Severity.WARNING if self.works_on_host else Severity.INFO
                severity = optional if is_optional(node, facts) else self.severity
                without = fallback(node, facts, self.works_on_host)
                shown = bool(without) and self.work is ManualWork.KERNELS
                message = f"{name}: {entry.says()}{without}"
                yield self.hit(node, message, severity, is_shown=shown, subject=name)
                return


def method(node: cst.CSTNode) -> str:
    """Return the name of the method that the call `node` calls. Empty for another node."""
    if type(node) is cst.Call and type(node.func) is cst.Attribute:
        return node.func.attr.value
    return ""


def receiver(call: cst.Call) -> cst.BaseExpression:
    """Return the object of the method call `call`."""
    return cst.ensure_type(call.func, cst.Attribute).value


def moved_before(model: cst.BaseExpression, at: cst.Call, facts: Facts) -> bool:
    """Whether a model is moved to the device above a location in its file, or in another file."""
    text = code(model)
    start = place_of(at, facts)
    moves = [
        call
        for call in facts.calls
        if method(call) in ("to", "cuda")
        and code(receiver(call) or call) == text
        and (
            isinstance(model, cst.Attribute)
            or facts.bindings.owner(call) is facts.bindings.owner(at)
        )
    ]
    if any(place_of(call, facts) < start for call in moves):
        return True
    if isinstance(model, cst.Name):
        values = [v for v in facts.context.bound_values(model) if isinstance(v, cst.Call)]
        return any(method(value) in ("to", "cuda") for value in values)
    return not moves


def place_of(node: cst.CSTNode, facts: Facts) -> tuple[int, int]:
    """Return the line and the column of `node`."""
    position = facts.context.position(node)
    return position.line, position.column


def placed(
    hazard: Hazard, node: cst.CSTNode, value: cst.CSTNode | None, message: str, facts: Facts
) -> Iterator[Hit]:
    """Yield a hit at `node` for what is done to `value`.

    The severity is the usual one inside a step. In the training loop at every step it is too, if the value
    is on the device, because data is prepared on the host in the same ways. Code that runs once or now and
    then is information.
    """
    when = facts.steps.when(node)
    if when is When.STEP:
        yield hazard.hit(node, message)
    elif facts.values.on_device(value):
        every = when is When.EVERY_STEP and facts.guards.around(node) is None
        yield hazard.hit(node, message, hazard.severity if every else Severity.INFO)


def varying(
    hazard: Hazard, node: cst.CSTNode, value: cst.CSTNode | None, message: str, facts: Facts
) -> Iterator[Hit]:
    """Yield a hit at `node` for what gives `value` a shape that depends on values.

    XLA compiles for each new shape, in an evaluation as in training: for every batch, before and after its
    step, and in a metric that is computed at every step.
    """
    every = facts.guards.around(node) is None and in_evaluation(node, facts)
    every = every or facts.steps.beside.every_step(node)
    if every and facts.values.on_device(value):
        yield hazard.hit(node, message)
    else:
        yield from placed(hazard, node, value, message, facts)


def option(call: cst.Call, name: str, facts: Facts) -> cst.BaseExpression | None:
    """Return the value that `call` passes for the keyword `name`, also in a dictionary: `**options`."""
    arg = keyword(call, name)
    if arg is not None:
        return arg.value
    for starred in call.args:
        if starred.star != "**":
            continue
        holder = starred.value
        named = isinstance(holder, cst.Name | cst.Attribute)
        for value in facts.values.given_to(holder) if named else [holder]:  # type: ignore[arg-type]
            entry = _entry(value, name)
            if entry is not None:
                return entry
    return None


def _entry(holder: cst.BaseExpression, name: str) -> cst.BaseExpression | None:
    """Return the value of the key `name` in the dictionary that `holder` writes."""
    if isinstance(holder, cst.Dict):
        for element in holder.elements:
            if isinstance(element, cst.DictElement) and string_value(element.key) == name:
                return element.value
    if isinstance(holder, cst.Call) and code(holder.func) == "dict":
        arg = keyword(holder, name)
        return arg.value if arg is not None else None
    return None


def truth(node: cst.BaseExpression, facts: Facts, depth: int = 4) -> bool | None:
    """Return whether `node` is true. None: it depends on the command line or on the caller."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        inner = truth(node.expression, facts, depth)
        return None if inner is None else not inner
    if code(node) in ("True", "1"):
        return True
    if code(node) in ("False", "0", "None"):
        return False
    values: list[cst.BaseExpression] = []
    if isinstance(node, cst.Name):
        is_parameter = facts.bindings.parameter(node) is not None
        values = passed_for(node, facts.context) if is_parameter else facts.values.given_to(node)
    elif isinstance(node, cst.Attribute) and is_attribute_of_self(node):
        values = facts.values.given_to(node)
    truths = {truth(value, facts, depth - 1) for value in values if depth}
    return truths.pop() if len(truths) == 1 else None
