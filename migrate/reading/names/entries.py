"""Values that a mapping holds under a key (`state["draws"]`), whichever function put them there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import libcst as cst

from migrate.reading.names.bindings import How
from migrate.syntax.tree import bind, is_attribute_of_self, last_part, nodes_of, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

DEEPEST = 6
COPIES = frozenset({"copy", "deepcopy", "dict"})
Asked = tuple[int, str, int]  # the id of a mapping, a key, and how many names lead to the mapping


def entries_of(
    holder: cst.BaseExpression, key: str, facts: Facts, depth: int = 0
) -> Sequence[cst.BaseExpression]:
    """Return the expressions that the script puts under `key` into the mapping `holder`, each once.

    The search follows names, attributes of `self`, parameters, return values of functions of the script, and
    functions that get the mapping as an argument. Each further name is one level deeper, so an answer never
    waits for itself, and each answer is cached.
    """
    if depth > DEEPEST:
        return ()
    known = _known(facts)
    asked = id(holder), key, depth
    if asked not in known:
        unique = {id(value): value for value in _entries(holder, key, facts, depth)}
        known[asked] = tuple(unique.values())
    return known[asked]


@lru_cache(maxsize=2)
def _known(facts: Facts) -> dict[Asked, Sequence[cst.BaseExpression]]:
    """Return the cached answers about the mappings of a script."""
    return {}


def _entries(
    holder: cst.BaseExpression, key: str, facts: Facts, depth: int
) -> Iterator[cst.BaseExpression]:
    for value in _values(holder, facts, depth):
        match value:
            case cst.Dict():
                for element in value.elements:
                    if isinstance(element, cst.StarredDictElement):
                        yield from entries_of(element.value, key, facts, depth + 1)
                    elif isinstance(element, cst.DictElement) and string_value(element.key) == key:
                        yield element.value
            case cst.IfExp():
                yield from entries_of(value.body, key, facts, depth + 1)
                yield from entries_of(value.orelse, key, facts, depth + 1)
            case cst.BinaryOperation(operator=cst.BitOr()):
                yield from entries_of(value.left, key, facts, depth + 1)
                yield from entries_of(value.right, key, facts, depth + 1)
            case cst.Call():
                yield from _of_call(value, key, facts, depth + 1)
            case cst.Name() | cst.Attribute() if value is not holder:
                yield from entries_of(value, key, facts, depth + 1)
    if isinstance(holder, cst.Name) or is_attribute_of_self(holder):
        for put in facts.bindings.put_into(holder):
            if put.key == key:
                yield put.value
    if isinstance(holder, cst.Name):
        yield from _filled(holder, key, facts, depth + 1)


def _values(holder: cst.BaseExpression, facts: Facts, depth: int) -> Iterator[cst.BaseExpression]:
    """Yield the values that `holder` may have."""
    if isinstance(holder, cst.Name):
        values = [
            assignment.value
            for assignment in facts.bindings.given(holder)
            if assignment.how is How.VALUE
        ]
        yield from (value for value in values if value is not None)
        parameter = facts.bindings.parameter(holder)
        if parameter is not None:
            yield from facts.bindings.passed(parameter[0], holder.value)
    elif isinstance(holder, cst.Attribute):
        if is_attribute_of_self(holder):
            yield from facts.values.given_to(holder)
    elif isinstance(holder, cst.Subscript):
        inner = holder.slice[0].slice if len(holder.slice) == 1 else None
        outer = string_value(inner.value) if isinstance(inner, cst.Index) else None
        if outer is not None:
            yield from entries_of(holder.value, outer, facts, depth + 1)
    else:
        yield holder


def _of_call(call: cst.Call, key: str, facts: Facts, depth: int) -> Iterator[cst.BaseExpression]:
    """Yield the values under `key` in the mapping that `call` returns."""
    for arg in call.args:
        if arg.keyword is not None and arg.keyword.value == key and last_part(call.func) == "dict":
            yield arg.value
    if last_part(call.func) in COPIES:
        copied = call.args[0].value if call.args else None
        if copied is None and isinstance(call.func, cst.Attribute):
            copied = call.func.value
        if copied is not None:
            yield from entries_of(copied, key, facts, depth)
    for function in facts.context.called(call):
        for returned in facts.bindings.returns.get(id(function), []):
            yield from entries_of(returned, key, facts, depth)


def _filled(name: cst.Name, key: str, facts: Facts, depth: int) -> Iterator[cst.BaseExpression]:
    """Yield the values that functions put under `key` into the mapping `name`, their argument."""
    if depth > DEEPEST:
        return
    around = facts.bindings.owner(name)
    for call in facts.below(around, cst.Call):
        if not any(
            isinstance(a.value, cst.Name) and a.value.value == name.value for a in call.args
        ):
            continue
        for function in facts.context.called(call):
            names = [parameter.name.value for parameter in function.params.params]
            passed = bind(call, names[names[:1] == ["self"] :]) or {}
            for parameter, arg in passed.items():
                if not (isinstance(arg.value, cst.Name) and arg.value.value == name.value):
                    continue
                inside = nodes_of(function.body, cst.Name)
                mention = next((name for name in inside if name.value == parameter), None)
                if mention is not None:
                    for put in facts.bindings.put_into(mention):
                        if put.key == key:
                            yield put.value
