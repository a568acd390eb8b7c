"""NumPy arrays that a script makes from tensors."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from migrate.catalogue.words import words
from migrate.reading.facts import Facts
from migrate.syntax.tree import last_part

# Functions that make an array from their first argument: a tensor, or a list of tensors.
OF_FIRST = words(
    "numpy.array numpy.asarray numpy.asanyarray numpy.ascontiguousarray numpy.concatenate numpy.hstack "
    "numpy.stack numpy.vstack"
)
# Functions whose arguments may all be tensors.
OF_EACH = words("numpy.save numpy.savetxt numpy.savez numpy.savez_compressed")
METRICS = "sklearn.metrics."
CONTAINERS = cst.List | cst.Tuple | cst.Dict | cst.BaseComp
MAKES_CONTAINERS = words("deque dict list set sorted tuple")


def receiver_of(call: cst.Call, facts: Facts) -> cst.BaseExpression | None:
    """Return `x` of `x.numpy()`; None for another call."""
    func = call.func
    if not isinstance(func, cst.Attribute) or func.attr.value != "numpy" or facts.names.of(func):
        return None
    return func.value


def array_arguments(call: cst.Call, facts: Facts) -> Iterator[cst.Arg]:
    """Yield the arguments that `call`, a function of NumPy or scikit-learn, converts to arrays."""
    name = facts.names.of(call.func) or ""
    plain = [arg for arg in call.args if not arg.star]
    if name in OF_FIRST:
        yield from plain[:1]
    elif name in OF_EACH or name.startswith(METRICS):
        yield from plain


def is_container(node: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `node` is a list or another container, not a tensor."""
    if isinstance(node, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(node)]
        return any(value is not None and _makes_container(value) for value in values)
    return _makes_container(node)


def _makes_container(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.Call):
        return isinstance(value.func, cst.Name) and last_part(value.func) in MAKES_CONTAINERS
    return isinstance(value, CONTAINERS)
