"""Lists with one part of each sample, which a `collate_fn` returns unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import NO_TENSORS
from migrate.reading.names.bindings import How
from migrate.syntax.tree import code, last_part, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Calls that make a tensor from a part, or another tensor of the same length.
TENSORS = frozenset({"tensor", "as_tensor", "from_numpy", "Tensor", "FloatTensor", "LongTensor"})
SAME_LENGTH = frozenset(
    {"to", "float", "half", "long", "int", "bool", "clone", "contiguous", "detach"}
)


def lists_of_parts(result: cst.Return, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the expressions that make the lists in `result`, or the `zip(*batch)` that they come from.

    Args:
        result: the return value of a function that makes batches.
        facts: the script.
    """
    function = facts.context.function_around(result)
    if (
        function is None
        or result.value is None
        or any(True for _ in facts.bindings.callers(function))
    ):
        return  # an argument of another function may be padded there
    line = facts.context.position(function.name).line
    texts = facts.context.calls.text_parts.get(line, frozenset())
    samples = {p.name.value for p in function.params.params} - {"self", "cls"}
    seen: set[int] = set()
    for part in _handed_out(result.value, facts):
        parts = _list_of(part, samples, texts, facts)
        if parts is not None and id(parts) not in seen:
            seen.add(id(parts))
            yield parts


def _handed_out(value: cst.BaseExpression, facts: Facts) -> Iterator[cst.BaseExpression]:
    """Yield the parts of a returned value: of a tuple, a dictionary, or a variable that holds one."""
    if isinstance(value, cst.Tuple | cst.List):
        for element in value.elements:
            yield from _handed_out(element.value, facts)
    elif isinstance(value, cst.Dict):
        for entry in value.elements:
            key = string_value(entry.key) if isinstance(entry, cst.DictElement) else None
            if key is None or not NO_TENSORS.search(key):
                yield from _handed_out(entry.value, facts)
    elif isinstance(value, cst.Call) and code(value.func) == "dict":
        for arg in value.args:
            if arg.keyword is None or not NO_TENSORS.search(arg.keyword.value):
                yield from _handed_out(arg.value, facts)
    else:
        for assignment in facts.bindings.reaching(value) if isinstance(value, cst.Name) else ():
            if assignment.how is How.VALUE and isinstance(assignment.value, cst.Tuple | cst.Dict):
                yield from _handed_out(assignment.value, facts)
        yield value


def _list_of(
    value: cst.BaseExpression, samples: set[str], texts: Set[int | str], facts: Facts
) -> cst.BaseExpression | None:
    """Return the expression that makes `value`, a list with one part of each of `samples` that is no text."""
    if (
        isinstance(value, cst.Call)
        and code(value.func) in ("list", "tuple")
        and len(value.args) == 1
    ):
        return _list_of(value.args[0].value, samples, texts, facts)
    if isinstance(value, cst.ListComp | cst.GeneratorExp):
        plain = isinstance(value.for_in.iter, cst.Name) and value.for_in.inner_for_in is None
        of_samples = plain and code(value.for_in.iter) in samples
        is_part = of_samples and _is_part(value.elt, value.for_in.target, texts)
        return value if is_part else None
    if isinstance(value, cst.Subscript) and isinstance(value.value, cst.Name):
        whole = [_zip_of(g.value, samples) for g in facts.bindings.reaching(value.value)]
        return next((zipped for zipped in whole if zipped is not None), None)
    if not isinstance(value, cst.Name) or NO_TENSORS.search(value.value):
        return None
    for assignment in facts.bindings.reaching(value):
        zipped = _zip_of(assignment.value, samples)
        if zipped is not None and assignment.how is not How.VALUE:
            return zipped if assignment.index not in texts else None
        if (
            assignment.how is How.VALUE
            and assignment.value is not None
            and not isinstance(assignment.value, cst.Name)
        ):
            parts = _list_of(assignment.value, samples, texts, facts)
            if parts is not None:
                return parts
    for put in facts.bindings.put_into(value):
        loop = next((a for a in facts.context.ancestors(put.value) if isinstance(a, cst.For)), None)
        if (
            loop is not None
            and code(loop.iter) in samples
            and (
                _is_part(put.value, loop.target, texts)
                or _is_unpacked(put.value, loop, texts, facts)
            )
        ):
            return put.value
    return None


def _is_unpacked(
    part: cst.BaseExpression, loop: cst.For, texts: Set[int | str], facts: Facts
) -> bool:
    """Whether `part` is a part of the sample of a turn, and no text: `points, graph = sample`."""
    if not isinstance(part, cst.Name) or NO_TENSORS.search(part.value):
        return False
    return any(
        assignment.how is How.PART
        and assignment.index is not None
        and assignment.index not in texts
        and code(assignment.value) == code(loop.target)
        for assignment in facts.bindings.reaching(part)
        if assignment.value is not None
    )


def _zip_of(value: cst.BaseExpression | None, samples: set[str]) -> cst.Call | None:
    """Return the `zip(*batch)` in `value`."""
    while isinstance(value, cst.Call) and code(value.func) in ("list", "tuple") and value.args:
        value = value.args[0].value
    if not isinstance(value, cst.Call) or code(value.func) != "zip":
        return None
    zipped = [arg for arg in value.args if arg.keyword is None]  # not `strict=True`
    if len(zipped) != 1:
        return None
    star = zipped[0]
    return value if star.star == "*" and code(star.value) in samples else None


def _is_part(
    part: cst.BaseExpression, target: cst.BaseAssignTargetExpression, texts: Set[int | str]
) -> bool:
    """Whether `part` is a part of a sample and no text, or a tensor of it: `x[1]`, `x["boxes"].float()`."""
    if isinstance(part, cst.Call):
        if last_part(part.func) in TENSORS and part.args:
            return _is_part(part.args[0].value, target, texts)
        same = isinstance(part.func, cst.Attribute) and part.func.attr.value in SAME_LENGTH
        return same and _is_part(cst.ensure_type(part.func, cst.Attribute).value, target, texts)
    if isinstance(part, cst.Subscript) and len(part.slice) == 1:
        index = part.slice[0].slice
        key = string_value(index.value) if isinstance(index, cst.Index) else None
        whole = isinstance(index, cst.Index) and code(index.value) not in ("None", "np.newaxis")
        if code(part.value) == code(target) and isinstance(index, cst.Index):
            position = int(code(index.value)) if isinstance(index.value, cst.Integer) else None
            if key in texts or position in texts:
                return False
        named = bool(key and NO_TENSORS.search(key))
        return whole and not named and _is_part(part.value, target, texts)
    if isinstance(part, cst.Attribute):
        return isinstance(part.value, cst.Name) and not NO_TENSORS.search(part.attr.value)
    if not isinstance(part, cst.Name) or NO_TENSORS.search(part.value):
        return False
    names = (
        [code(element.value) for element in target.elements]
        if isinstance(target, cst.Tuple | cst.List)
        else [code(target)]
    )
    return part.value in names and (len(names) == 1 or names.index(part.value) not in texts)
