"""Inheritance among the classes of a project."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator

from migrate.model.calls.kinds import External, Value, Values
from migrate.model.calls.order import closure
from migrate.model.calls.scopes import Class, Function, Scope


class Families(ABC):
    """Bases and subclasses of classes.

    Args:
        classes: all classes of the project.
    """

    def __init__(self, classes: Iterable[Class]) -> None:
        self._subclasses: dict[Class, list[Class]] = defaultdict(list)
        for class_ in classes:
            for base in self.bases(class_):
                if isinstance(base, Class):
                    self._subclasses[base].append(class_)

    @abstractmethod
    def values(self, node: ast.expr | None, scope: Scope) -> Values:
        """Return the possible values of `node`, evaluated in `scope`."""

    def method(self, of: Class, name: str) -> Function | None:
        """Return the method `name` of the class `of`, inherited ones included."""
        for ancestor in self.ancestors(of):
            for binding in ancestor.bindings.get(name, ()):
                if isinstance(binding.scope, Function):
                    return binding.scope
        return None

    def ancestors(self, of: Class) -> Iterator[Class]:
        """Yield the class `of` and its bases in the project, the nearest first."""
        seen: set[Class] = set()
        waiting = [of]
        while waiting:
            class_ = waiting.pop(0)
            if class_ not in seen:
                seen.add(class_)
                yield class_
                waiting += [base for base in self.bases(class_) if isinstance(base, Class)]

    def external_bases(self, of: Class) -> set[str]:
        """Return the dotted names of the external classes that `of` derives from."""
        return {
            base.name
            for ancestor in self.ancestors(of)
            for base in self.bases(ancestor)
            if isinstance(base, External)
        }

    def bases(self, of: Class) -> Iterator[Value]:
        """Yield the bases in the definition of the class `of`."""
        for base in of.bases:
            yield from self.values(base, of.parent or of)

    def relatives(self, of: Class, exact: bool) -> Iterator[Class]:
        """Yield the classes whose members an instance of `of` may have: bases, and subclasses."""
        yield from self.ancestors(of)
        if not exact:
            yield from self._descendants(of)

    def _descendants(self, of: Class) -> Iterator[Class]:
        below = closure([of], lambda class_: self._subclasses.get(class_, ()))
        return (class_ for class_ in below if class_ is not of)
