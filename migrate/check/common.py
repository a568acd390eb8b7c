"""The two commonest kinds of hazard: a name of a library that is used, a library that is imported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import ClassVar

import libcst as cst

from migrate.check.hazard import Hazard, Hit, Severity
from migrate.reading.facts import Facts
from migrate.reading.steps.in_step import When


class NamedHazard(Hazard):
    """A hazard wherever one of `names` is used; names that end in a dot stand for all that follow."""

    nodes = (cst.Name, cst.Attribute)
    names: ClassVar[tuple[tuple[str, str], ...]]  # qualified name; what happens, and what to do

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield the use of one name."""
        name = facts.names.of(node)
        if name is None:
            return
        if is_a_type(node, facts):
            return
        for known, message in self.names:
            if name == known or (known.endswith(".") and name.startswith(known)):
                yield self.hit(node, f"{name}: {message}")
                return


def is_a_type(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` only says of what type something is: in an annotation, for isinstance."""
    above = facts.context.parent(node)
    if isinstance(above, cst.BaseElement):
        return True  # one of several types
    call = facts.context.parent(above) if isinstance(above, cst.Arg) else None
    if isinstance(call, cst.Call):
        asks = isinstance(call.func, cst.Name) and call.func.value in ("isinstance", "issubclass")
        return asks and call.args[0] is not above
    return any(isinstance(one, cst.Annotation) for one in facts.context.ancestors(node))


class ImportHazard(Hazard):
    """A hazard wherever one of `modules`, or a part of it, is imported.

    An import under `try:` is information only: the script runs without the library.
    """

    nodes = (cst.Import, cst.ImportFrom)
    modules: ClassVar[tuple[str, ...]]
    message: ClassVar[str]

    def find(self, node: cst.CSTNode, facts: Facts) -> Iterable[Hit]:
        """Yield one import statement."""
        for name in imported(node):
            if facts.is_local(name):
                return
            if any(name == module or name.startswith(f"{module}.") for module in self.modules):
                optional = any(isinstance(a, cst.Try) for a in facts.context.ancestors(node))
                severity = Severity.INFO if optional else self.severity
                yield self.hit(node, f"{name}: {self.message}", severity)
                return


def imported(node: cst.CSTNode) -> list[str]:
    """Return the dotted names that an import statement imports."""
    if isinstance(node, cst.Import):
        return [alias.evaluated_name for alias in node.names]
    if isinstance(node, cst.ImportFrom) and node.module is not None and not node.relative:
        module = cst.Module(body=[]).code_for_node(node.module)
        if isinstance(node.names, cst.ImportStar):
            return [module]
        return [f"{module}.{alias.evaluated_name}" for alias in node.names]
    return []


def method(node: cst.CSTNode) -> str:
    """Return the name of the method that the call `node` calls; nothing for another node."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute):
        return node.func.attr.value
    return ""


def receiver(call: cst.Call) -> cst.BaseExpression:
    """Return what the method `call` is called on."""
    return cst.ensure_type(call.func, cst.Attribute).value


def placed(
    hazard: Hazard, node: cst.CSTNode, value: cst.CSTNode | None, message: str, facts: Facts
) -> Iterator[Hit]:
    """Yield a hit at `node` for what is done to `value`.

    Inside of a step it is as bad as usual; elsewhere, where it runs once or now and then, it is information,
    and only if the value is on the device: data is prepared on the host in just these ways.
    """
    if facts.steps.when(node) is When.STEP:
        yield hazard.hit(node, message)
    elif facts.tensors.on_device(value):
        yield hazard.hit(node, message, Severity.INFO)
