"""A form of a class of the original, and what is asked of its statements."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from converters.graph.writing.model import Class


@dataclass(frozen=True)
class Form:
    """A form of a class.

    Attributes:
        cls: as it is written alone.
        modules: the original's that have it.
        fields: what the fields are for each of them.
    """

    cls: Class
    modules: tuple[Any, ...]
    fields: tuple[Mapping[str, Any], ...]


class Apart(Exception):  # noqa: N818
    """The forms have no form in common."""


@dataclass
class Entry:
    """A statement of some forms.

    Attributes:
        statement: as all of them have it.
        places: form → where it stands there.
        none: form → arguments named in it that the form has not, which are None there.
        fields: name of a new field in it → form → its value for each module.
    """

    statement: ast.stmt
    places: dict[int, int]
    none: dict[int, set[str]] = field(default_factory=dict)
    fields: dict[str, dict[int, tuple[Any, ...]]] = field(default_factory=dict)

    @property
    def forms(self) -> frozenset[int]:
        """The forms that have the statement."""
        return frozenset(self.places)


def key(values: Iterable[Any]) -> tuple[str, ...]:
    """Key by which values of a field are equal: numbers, and their origins."""
    return tuple(
        ast.dump(value) if isinstance(value, ast.AST) else f"{value!r} {getattr(value, 'text', '')}"
        for value in values
    )


def own_field(tree: ast.AST) -> str:
    """`self.width` → "width"."""
    match tree:
        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Load()):
            return name
    return ""


def fields_of(tree: ast.AST) -> Iterator[str]:
    """The fields that a tree reads."""
    return (name for node in ast.walk(tree) if (name := own_field(node)))


def attribute(statement: ast.AST) -> str:
    """`self.norm = …` → "norm"."""
    match statement:
        case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
            return name
    return ""


def names_stored(body: Iterable[ast.AST]) -> list[str]:
    """The names that statements give values to."""
    return [
        node.id
        for tree in body
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id != "_"
    ]


def names_read(tree: ast.AST) -> set[str]:
    """The names that a tree reads."""
    return {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }


def is_none(tree: Any) -> bool:
    """Whether this is None, written out."""
    return isinstance(tree, ast.Constant) and tree.value is None
