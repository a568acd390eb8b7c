"""Two statements as one: what one form is not given stands for None, numbers that differ for a field."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from converters.graph.expression import code
from converters.graph.writing.forms.form import Entry, Form, is_none, key, names_read, own_field
from converters.graph.writing.original.comments import commented, of


@dataclass
class Common:
    """Facts about the forms that are joined.

    Attributes:
        forms: all of them.
        taken: names that no field may have.
        settings: of the model, by name.
        arguments: the arguments of each form.
        optional: those that not all forms have.
        fields: name of a field → its values, for each form and module.
        bodies: the statements of each form that are put together now.
        results: what these give; none: they are constructors.
    """

    forms: Sequence[Form]
    taken: Set[str]
    settings: Mapping[str, Any]
    arguments: Sequence[Sequence[str]]
    optional: Sequence[str]
    fields: dict[str, dict[int, tuple[Any, ...]]] = field(default_factory=dict)
    bodies: Sequence[list[ast.stmt]] = ()
    results: Sequence[Sequence[ast.expr | None]] = ()

    def unread(self, name: str, form: int, at: int) -> bool:
        """Whether a form does not read a name after its statement `at`."""
        loop = not isinstance(self.bodies[form][at], ast.Assign)  # it reads in the next turn
        after = self.bodies[form][at if loop else at + 1 :]
        results = (
            [result for result in self.results[form] if result is not None] if self.results else []
        )
        return not any(name in names_read(tree) for tree in (*after, *results))


def unified(
    common: Common, entry: Entry, number: int, at: int, statement: ast.stmt
) -> Entry | None:
    """An entry that is of one more form; None where the two do not say the same.

    Args:
        common: what is known of the forms.
        entry: of the forms before.
        number: of the form.
        at: where the statement stands there.
        statement: of the form.
    """
    unify = _Unify(common, entry, number, at)
    both = unify.both(entry.statement, statement)
    if both is None:
        return None
    none = {form: set(names) for form, names in entry.none.items()}
    for form, names in unify.none.items():
        none.setdefault(form, set()).update(names)
    return Entry(both, {**entry.places, number: at}, none, unify.fields)


class _Unify:
    """Two trees as one: an argument that one form has not stands for None, a name for what is not read."""

    def __init__(self, above: Common, entry: Entry, number: int, at: int) -> None:
        self.above, self.entry, self.number, self.at = above, entry, number, at
        self.none: dict[int, set[str]] = {}
        self.fields: dict[str, dict[int, tuple[Any, ...]]] = {}

    def both(self, a: Any, b: Any, hint: str = "") -> Any:
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return None
            elements = [self.both(x, y, hint) for x, y in zip(a, b, strict=True)]
            return None if any(element is None for element in elements) else elements
        if not isinstance(a, ast.AST) or not isinstance(b, ast.AST):
            return _Leaf(a) if a == b and type(a) is type(b) else None
        if is_none(a) and isinstance(b, ast.Name):
            return self._absent(b, self.entry.forms)
        if is_none(b) and isinstance(a, ast.Name):
            return self._absent(a, {self.number})
        if isinstance(a, ast.Name) and isinstance(b, ast.Name) and a.id != b.id:
            return self._unread(a, b)
        if _is_value(a) and _is_value(b) and ast.dump(a) != ast.dump(b):
            return self._field(a, b, hint)
        if type(a) is not type(b):
            return None
        below = a.arg or "" if isinstance(a, ast.keyword) else ""
        parts: dict[str, Any] = {}
        for name in a._fields:
            field_value = self.both(getattr(a, name, None), getattr(b, name, None), below)
            if field_value is None:
                return None
            parts[name] = _plain(field_value)
        return commented(type(a)(**parts), of(a))

    def _absent(self, name: ast.Name, without: Iterable[int]) -> ast.Name | None:
        """An argument, which is None in the forms that have it not."""
        arguments, optional = self.above.arguments, self.above.optional
        if name.id not in optional or not isinstance(name.ctx, ast.Load):
            return None
        if any(name.id in arguments[form] for form in without):
            return None
        for form in without:
            self.none.setdefault(form, set()).add(name.id)
        return name

    def _unread(self, a: ast.Name, b: ast.Name) -> ast.Name | None:
        if not isinstance(a.ctx, ast.Store):
            return None
        if a.id == "_" and all(
            self.above.unread(b.id, form, at) for form, at in self.entry.places.items()
        ):
            return b
        if b.id == "_" and self.above.unread(a.id, self.number, self.at):
            return a
        return None

    def _field(self, a: ast.expr, b: ast.expr, hint: str) -> ast.expr | None:
        """A field for two numbers that differ: one that is there, or one as the original calls it."""
        forms, other = sorted(self.entry.forms), self.number
        values = {form: self._values(a, form) for form in forms} | {other: self._values(b, other)}
        if any(value is None for value in values.values()):
            return None
        own = [name for name in (own_field(a), own_field(b)) if name]
        # In a forward nothing says what a bare number is.
        candidates = own or (
            [] if _bare(a, b) and self.above.results else [self._called(values) or hint]
        )
        name = next(
            (
                candidate
                for candidate in candidates
                if candidate and self._may_be(candidate, values)
            ),
            "",
        )
        if not name or name in self.above.taken:
            return None
        self.fields.setdefault(name, {}).update(
            {form: tuple(value or ()) for form, value in values.items()}
        )
        return code(f"self.{name}")

    def _may_be(self, name: str, values: Mapping[int, Any]) -> bool:
        """Whether a field may have these values: no form has others under its name."""
        known = [self.above.fields.get(name, {}), self.fields.get(name, {})]
        return all(
            key(value) == key(held[form])
            for form, value in values.items()
            for held in known
            if form in held
        )

    def _values(self, expression: ast.expr, form: int) -> tuple[Any, ...] | None:
        modules = self.above.forms[form].modules
        if isinstance(expression, ast.Constant):
            return (expression.value,) * len(modules)
        own = own_field(expression)
        if own:
            return self.above.fields.get(own, {}).get(form)
        return (expression,) * len(modules)

    def _called(self, values: Mapping[int, Any]) -> str:
        """The attribute of the original's modules that has these values."""
        first = self.above.forms[self.number].modules[0]
        for name in vars(first):
            if name.startswith("_") or not name.isidentifier() or name in self.above.taken:
                continue
            if all(
                self._is(vars(module).get(name), value)
                for form, each in values.items()
                for module, value in zip(self.above.forms[form].modules, each, strict=True)
            ):
                return name
        return ""

    def _is(self, held: Any, value: Any) -> bool:
        """Whether an attribute has the value that a number, or a setting of the model, has."""
        match value:
            case ast.Attribute(attr=name):
                value = self.above.settings.get(name)
        return type(held) is type(value) and bool(held == value)


@dataclass(frozen=True)
class _Leaf:
    """A value that is not a tree, wrapped so that None is distinct."""

    value: Any


def _plain(element: Any) -> Any:
    if isinstance(element, list):
        return [_plain(each) for each in element]
    return element.value if isinstance(element, _Leaf) else element


def _is_value(tree: ast.AST) -> TypeGuard[ast.expr]:
    """Whether this is a number, a field or a setting."""
    if isinstance(tree, ast.Constant):
        return isinstance(tree.value, bool | int | float)
    setting = isinstance(tree, ast.Attribute) and own_field(tree.value) == "config"
    return setting or bool(own_field(tree))


def _bare(*values: ast.expr) -> bool:
    """Whether one of these is a number that nothing gives."""
    return any(isinstance(value, ast.Constant) for value in values)
