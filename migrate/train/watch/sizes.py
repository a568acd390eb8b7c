"""Sizes for which a port of the loss holds, and further forms of the loss for batches of other sizes.

A recording has one branch of `if ids.size(1) >= length:`, and one length of a loop over tokens. A form is
the same statements, recorded with a batch of other sizes. The step calls it where its own recording does
not hold.
"""

from __future__ import annotations

import ast
import itertools
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from migrate.port.errors import PortError
from migrate.train.slice.text import first_line

Shapes = Mapping[str, Sequence[int]]
_FORM = "of_other_sizes"


def form_names(count: int) -> list[str]:
    """Names of the methods of further forms."""
    return [_FORM if number == 1 else f"{_FORM}_{number}" for number in range(1, count + 1)]


def broken(recorded: Any, shapes: Shapes) -> list[str]:
    """Conditions on sizes of a port, or of a method of it, that inputs of these shapes do not meet."""
    named = {name: SimpleNamespace(shape=tuple(shape)) for name, shape in shapes.items()}
    return [
        condition
        for condition in _conditions(recorded)
        if not eval(condition, {"max": max, "min": min}, dict(named))
    ]


def has_forms(port: Any) -> bool:
    """Whether a port was recorded with batches of other sizes too."""
    return any(method.name.startswith(_FORM) for method in port.methods)


def fits(port: Any, shapes: Shapes) -> bool:
    """Whether a port has a form for inputs of these shapes."""
    forms = [method for method in port.methods if method.name.startswith(_FORM)]
    return any(not broken(form, shapes) for form in (port, *forms))


def difference(port: Any, shapes: Shapes) -> tuple[Any, ...]:
    """Kind of difference from the sizes that a port holds for: its conditions, which sizes are larger."""
    sizes = [size for name in sorted(shapes) for size in shapes[name][1:]]
    order = [(a > b) - (a < b) for a, b in itertools.combinations(sizes, 2)]
    lengths = [c for c in broken(port, shapes) if c.rpartition(" ")[2].isdigit()]
    return (*broken(port, shapes), *order, *(sizes if lengths else ()))


def _conditions(recorded: Any) -> list[str]:
    """Conditions on sizes: numbers, sides that are equal, and branches that the recording took."""
    conditions: list[str] = []
    first: dict[str, str] = {}
    for argument in recorded.inputs:
        for axis, side in enumerate(argument.shape):
            size = f"{argument.name}.shape[{axis}]"
            if isinstance(side, int):
                conditions.append(f"{size} == {side}")
            elif axis and first.setdefault(side, size) != size:
                conditions.append(f"{size} == {first[side]}")
    return [*conditions, *(bound.condition for bound in recorded.bounds)]


def with_forms(port: Any, first: Shapes, examples: Sequence[Shapes]) -> Any:
    """The port, whose step runs a further form where its own recording does not hold.

    Sizes are free where a form has the same statements.

    Args:
        port: has the methods of the forms.
        first: shapes with which the port itself was recorded.
        examples: shapes with which they were recorded, in their order.

    Raises:
        PortError: which form a batch needs cannot be told by its sizes.
    """
    recordings = {method.name: method for method in port.methods}
    tree = ast.parse(port.modeling)
    step = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == port.model_class)
    methods = {node.name: node for node in step.body if isinstance(node, ast.FunctionDef)}
    own = methods["__call__"]
    shapes_of = dict(zip(form_names(len(examples)), examples, strict=True))
    apart = {n: x for n, x in shapes_of.items() if _statements(methods[n]) != _statements(own)}
    free = {c for n, x in shapes_of.items() if n not in apart for c in broken(port, x)}
    others = [first, *apart.values()]
    edits = _Edits(port.modeling)
    for name in shapes_of.keys() - apart.keys():
        edits.remove(methods[name])
    chain = [(own, port), *((methods[name], recordings[name]) for name in apart)]
    for number, (method, recording) in enumerate(chain):
        later = [*apart][number:]
        unmet = [[c for c in broken(recording, apart[n]) if c not in free] for n in later]
        if not all(unmet):
            raise PortError("two forms of the loss hold for the same sizes", "report it")
        conditions = dict.fromkeys(itertools.chain.from_iterable(unmet))
        for statement in method.body:
            if _demanded(statement) in {*conditions, *free}:
                edits.remove(statement)
        if conditions:
            edits.insert(method, _dispatch([*conditions], method, later[0]))
        elif apart:
            demanded = {_demanded(statement) for statement in method.body}
            own_sizes = dict.fromkeys(
                c for shapes in others for c in broken(recording, shapes) if c not in demanded
            )
            if own_sizes:
                edits.insert(method, _refusal([*own_sizes]))
    numbers = free | {c for shapes in apart.values() for c in broken(port, shapes)}
    return replace(port, modeling=edits.text(), inputs=_freed(port.inputs, numbers))


def _freed(inputs: Sequence[Any], conditions: Collection[str]) -> tuple[Any, ...]:
    """The inputs, with names for sizes that are free now."""

    def side(argument: Any, axis: int, size: Any) -> Any:
        condition = f"{argument.name}.shape[{axis}] == {size}"
        return f"{argument.name}_{axis}" if condition in conditions else size

    return tuple(
        replace(a, shape=tuple(side(a, axis, size) for axis, size in enumerate(a.shape)))
        for a in inputs
    )


class _Edits:
    """Changes of a source by whole lines: its comments stay."""

    def __init__(self, source: str) -> None:
        self._lines = source.splitlines()
        self._removed: set[int] = set()
        self._inserted: dict[int, str] = {}

    def remove(self, node: ast.stmt) -> None:
        """Remove a statement or a method."""
        self._removed.update(range(first_line(node), (node.end_lineno or 0) + 1))

    def insert(self, method: ast.FunctionDef, text: str) -> None:
        """Put text before the first statement of a method."""
        self._inserted[first_line(method.body[0])] = textwrap.indent(text, " " * 8)

    def text(self) -> str:
        """The changed source."""
        result = []
        for number, line in enumerate(self._lines, 1):
            result += [self._inserted[number]] if number in self._inserted else []
            result += [] if number in self._removed else [line]
        return "\n".join(result) + "\n"


def _statements(method: ast.FunctionDef) -> list[str]:
    """Statements of a method, without demands on sizes."""
    return [ast.dump(s) for s in method.body if not _demanded(s)]


def _demanded(statement: ast.stmt) -> str:
    """The condition of a statement that demands sizes; "" of others."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "demand_size":
        return ast.unparse(value.args[0])
    return ""


def _dispatch(conditions: Sequence[str], method: ast.FunctionDef, other: str) -> str:
    """`if not (…): return self.of_other_sizes(…)`."""
    names = [argument.arg for argument in (*method.args.args, *method.args.kwonlyargs)][1:]
    called = ", ".join(f"{name}={name}" for name in names)
    return (
        "# The script computes otherwise for batches of other sizes.\n"
        f"if not ({' and '.join(conditions)}):\n    return self.{other}({called})"
    )


def _refusal(conditions: Sequence[str]) -> str:
    """A check of the last form: no recording has other sizes."""
    test = " and ".join(conditions)
    return (
        f"if not ({test}):\n"
        '    raise ValueError("no batch of these sizes was seen when the program was written")'
    )
