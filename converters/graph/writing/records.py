"""Named tuples and dataclasses that the original's methods return, as classes of the port.

The compiler follows a result as plain tuples and dicts; where a method returns them, they become records
again.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from converters.graph.expression import call
from converters.graph.files import tree_of
from converters.graph.ir import Frame
from converters.graph.recording.returned import ReturnedRecord
from converters.graph.writing.model import Method
from converters.graph.writing.original.comments import above, commented, of
from converters.graph.writing.original.names import docstring, source_file


class Records:
    """The records of a port.

    Attributes:
        taken: names that stand for something else in the port.
        written: name → the source of its class.
        lacking: those that the port does not have, as notes on what it has instead.
    """

    def __init__(self, taken: Sequence[str]) -> None:
        self.taken = frozenset(taken)
        self.kinds: dict[str, type] = {}
        self.written: dict[str, ast.ClassDef] = {}
        self.lacking: dict[str, None] = {}

    def method(self, method: Method, returned: Any) -> Method:
        """A method that returns the records of the original."""
        result, kind = self._wrapped(method.result, returned)
        if result is method.result:
            return method
        kinds = {0: kind} if kind else self._inner_kinds(result, method.result_kinds)
        return replace(method, result=commented(result, of(method.result)), result_kinds=kinds)

    def _inner_kinds(self, result: ast.expr, kinds: Mapping[int, str]) -> dict[int, str]:
        own = dict(kinds)
        for place, part in enumerate(getattr(result, "elts", ())):
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                own |= {place: part.func.id} if part.func.id in self.written else {}
        return own

    def _wrapped(self, value: ast.expr, returned: Any) -> tuple[ast.expr, str]:
        """An expression with its records, and the name of its own record."""
        match returned:
            case ReturnedRecord():
                inner = list(returned.elements.values())
                if not self._is_written(returned):
                    return value, ""
                name = returned.kind.__name__
                match value:
                    case ast.Tuple(elts=parts) if len(parts) == len(inner):
                        own = [self._wrapped(*pair)[0] for pair in zip(parts, inner, strict=True)]
                        return call(name, *own), name
                    case ast.Dict(keys=keys, values=parts) if None not in keys:
                        named = {key.value: part for key, part in zip(keys, parts, strict=True)}  # type: ignore[union-attr]
                        own_named = {
                            key: self._wrapped(part, returned.elements.get(key))[0]
                            for key, part in named.items()
                        }
                        return call(name, **own_named), name
                spread: ast.expr
                if returned.is_tuple:
                    spread = ast.Call(
                        ast.Name(name, ast.Load()), [ast.Starred(value, ast.Load())], []
                    )
                else:
                    spread = ast.Call(ast.Name(name, ast.Load()), [], [ast.keyword(None, value)])
                return spread, name
            case tuple() if isinstance(value, ast.Tuple) and len(value.elts) == len(returned):
                parts = [self._wrapped(*pair)[0] for pair in zip(value.elts, returned, strict=True)]
                if any(a is not b for a, b in zip(parts, value.elts, strict=True)):
                    return ast.Tuple(parts, ast.Load()), ""
        for record in records(returned):
            self._lack(record)
        return value, ""

    def _is_written(self, record: ReturnedRecord) -> bool:
        """Whether the port has a class for a record; it is written with the first."""
        name = record.kind.__name__
        if name in self.taken or self.kinds.get(name, record.kind) is not record.kind:
            self._lack(record)
            return False
        if not record.is_whole:
            self._lack(record)
            return False
        if name not in self.written:
            self.kinds[name] = record.kind
            for inner in records(tuple(record.elements.values())):
                self._is_written(inner)
            self.written[name] = _definition(record, self.written)
        return True

    def _lack(self, record: ReturnedRecord) -> None:
        name = record.kind.__name__
        if record.is_tuple:
            fields = ", ".join(record.elements)
            note = f"`{name}`, a named tuple of the original, is a tuple here: ({fields})"
        else:
            note = f"`{name}`, a dataclass of the original, is a dict of its fields here"
        self.lacking[note] = None


def records(returned: Any) -> Iterator[ReturnedRecord]:
    """The records in a result, the outer ones first."""
    if isinstance(returned, ReturnedRecord):
        yield returned
        returned = tuple(returned.elements.values())
    if isinstance(returned, Mapping):
        returned = tuple(returned.values())
    for element in returned if isinstance(returned, tuple) else ():
        yield from records(element)


def _definition(record: ReturnedRecord, written: Mapping[str, Any]) -> ast.ClassDef:
    """The class of a record: a NamedTuple, or a dataclass that JAX takes apart."""
    body: list[ast.stmt] = []
    doc = _docstring(record.kind)
    if doc:
        body.append(ast.Expr(ast.Constant(doc)))
    lines, spared = _lines(record.kind), False
    for name, element in record.elements.items():
        # A field that may be left out comes before one that is always there in some originals.
        spared = not record.is_tuple and (spared or element is None)
        default = ast.Constant(None) if spared else None
        said = _annotation(element, written)
        optional = f"{said} | None" if spared and element is not None else said
        kind = ast.parse(optional, mode="eval").body
        node = ast.AnnAssign(ast.Name(name, ast.Store()), kind, default, 1)
        body.append(commented(node, above(lines[name])) if name in lines else node)
    bases: list[ast.expr] = [ast.Name("NamedTuple", ast.Load())] if record.is_tuple else []
    decorators = [] if record.is_tuple else [ast.parse("flax.struct.dataclass", mode="eval").body]
    return ast.ClassDef(record.kind.__name__, bases, [], body, decorators)


def _docstring(kind: type) -> str:
    """The docstring that a record's author wrote: Python writes others itself, of its fields."""
    source = _source(kind)
    return docstring(kind) if source is not None and ast.get_docstring(source) else ""


def _annotation(element: Any, written: Mapping[str, Any]) -> str:
    match element:
        case ReturnedRecord():
            name = element.kind.__name__
            return name if name in written else "Any"
        case "tensor":
            return "jax.Array"
        case None:
            return "jax.Array | None"
        case _:
            return "Any"


def _source(kind: type) -> ast.ClassDef | None:
    """The source of a class, as its file has it."""
    try:
        first = inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return None
    for node in ast.walk(tree_of(source_file(kind))):
        if isinstance(node, ast.ClassDef) and node.name == kind.__name__:
            start = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            if start == first:
                return node
    return None


def _lines(kind: type) -> dict[str, Frame]:
    """Field → the line that declares it."""
    source, file = _source(kind), source_file(kind)
    return {
        node.target.id: Frame(file, node.lineno, kind.__name__)
        for node in (source.body if source is not None else ())
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
