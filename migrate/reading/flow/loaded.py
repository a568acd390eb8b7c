"""Expressions that hold the contents of a checkpoint on the host: torch.load restores nothing to XLA."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.catalogue.words import OF_CHECKPOINTS, words
from migrate.reading.names.bindings import Assignment, How, passed_for
from migrate.reading.values.devices import LOADERS
from migrate.syntax.tree import code, is_none, keyword, string_value

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

DEEPEST = 8
# Attributes that only a module has.
OF_MODULES = words("eval load_state_dict named_parameters parameters train zero_grad")


def is_loaded(node: cst.CSTNode | None, facts: Facts, depth: int = 0) -> bool:
    """Whether `node` is a checkpoint, or a part of one, that has not been moved to the device."""
    if node is None or depth > DEEPEST:
        return False
    if isinstance(node, cst.Subscript):
        if _is_saved_number(node, facts):
            return False
        return _is_loaded_part(node, facts) or is_loaded(node.value, facts, depth + 1)
    if isinstance(node, cst.IfExp):
        return any(is_loaded(side, facts, depth + 1) for side in (node.body, node.orelse))
    if isinstance(node, cst.DictComp):
        return is_loaded(node.value, facts, depth + 1)
    if isinstance(node, cst.Call):
        return _is_loading_call(node, facts, depth)
    if isinstance(node, cst.Name):
        return _is_loaded_name(node, facts, depth)
    if isinstance(node, cst.Attribute):
        values = [v for v in facts.context.values.given_to(node) if not is_none(v)]
        return bool(values) and all(is_loaded(value, facts, depth + 1) for value in values)
    return False


def _is_loading_call(call: cst.Call, facts: Facts, depth: int) -> bool:
    name = facts.names.of(call.func) or ""
    if name == "shims.load":  # loaded to the host everywhere
        return True
    position = LOADERS.get(name)
    if position is not None:
        # Without `map_location`, a checkpoint that torch.save wrote of XLA tensors is loaded there.
        says_where = keyword(call, "map_location") is not None or len(call.args) > position
        return says_where or not facts.uses_xla
    here = facts.context.called(call)
    if here:
        below = facts.context.below
        returns = (part.value for function in here for part in below(function, cst.Return))
        return any(is_loaded(value, facts, depth + 1) for value in returns)
    if facts.context.place(call) in facts.context.calls.loading:
        return True
    func = call.func
    if not isinstance(func, cst.Attribute) or facts.names.of(func) is not None:
        return False
    if func.attr.value == "to" and call.args:
        to_dtype = (facts.names.of(call.args[0].value) or "").startswith("torch.")
        stays = to_dtype or facts.context.values.is_surely_cpu(call.args[0].value)
        return stays and is_loaded(func.value, facts, depth + 1)
    if func.attr.value in ("get", "pop") and _gets_number(call, facts):
        return False
    return func.attr.value in OF_CHECKPOINTS and is_loaded(func.value, facts, depth + 1)


def _is_used_as_module(name: cst.Name, facts: Facts) -> bool:
    """Whether the script calls what `name` holds, or asks it for parameters: it is a saved module."""
    for mention in facts.context.mentions(name):
        above = facts.context.parent(mention)
        if type(above) is cst.Call and above.func is mention:
            return True
        if type(above) is cst.Attribute and above.attr.value in OF_MODULES:
            return isinstance(facts.context.parent(above), cst.Call)
    return False


def _is_number(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is a Python number, or a name that is assigned one or counts: `step += 1`."""
    if isinstance(node, cst.UnaryOperation):
        return _is_number(node.expression, facts)
    if isinstance(node, cst.BaseNumber):
        return True
    if isinstance(node, cst.Call):
        return code(node.func) in ("int", "float", "len") or code(node.func).endswith(".item")
    if not isinstance(node, cst.Name):
        return False
    passed = passed_for(node, facts.context)
    if passed and all(isinstance(value, cst.BaseNumber) for value in passed):
        return True
    values = facts.values.given_to(node)
    added = [
        above.value
        for mention in facts.context.mentions(node)
        for above in [facts.context.parent(mention)]
        if type(above) is cst.AugAssign and above.target is mention
    ]
    if any(isinstance(value, cst.Integer) for value in added):
        return True
    starts = any(isinstance(value, cst.BaseNumber) for value in values)
    return starts and all(isinstance(value, cst.BaseNumber) for value in added)


def _gets_number(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` is `state.get("step", 0)`, or gets an entry that is saved as a number."""
    key = string_value(call.args[0].value) if call.args else None
    if len(call.args) > 1 and _is_number(call.args[1].value, facts):
        return True
    return key is not None and _is_key_of_number(key, facts)


def _is_saved_number(node: cst.Subscript, facts: Facts) -> bool:
    """Whether all dictionaries of the script with the key of `node` have a number under it."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    key = string_value(index.value) if isinstance(index, cst.Index) else None
    return key is not None and _is_key_of_number(key, facts)


def _is_key_of_number(key: str, facts: Facts) -> bool:
    elements = [
        element.value
        for element in facts.context.all_of(cst.DictElement)
        if string_value(element.key) == key
    ]
    elements += [
        arg.value
        for call in facts.calls
        if code(call.func) == "dict"
        for arg in [keyword(call, key)]
        if arg is not None
    ]
    return bool(elements) and all(_is_number(value, facts) for value in elements)


def _is_loaded_name(name: cst.Name, facts: Facts, depth: int) -> bool:
    if _is_used_as_module(name, facts) or _is_number(name, facts):
        return False
    parameter = facts.bindings.parameter(name)
    if parameter is not None:
        function, _ = parameter
        passed = facts.bindings.passed(function, name.value)
        only = len(facts.context.bindings(name)) == 1  # `x = x.to(device)` in the function
        entry = facts.entries.get(facts.context.position(function.name).line)
        elsewhere = entry is not None and entry.is_loaded(function, name.value)
        return only and (elsewhere or any(is_loaded(v, facts, depth + 1) for v in passed))
    return any(
        _is_loaded_binding(name, assignment, facts, depth)
        for assignment in facts.bindings.reaching(name)
    )


def _is_loaded_binding(name: cst.Name, assignment: Assignment, facts: Facts, depth: int) -> bool:
    """Whether `assignment` binds `name` to a part of a checkpoint."""
    parts = [assignment.value]
    if assignment.how is How.PART and (index := _index(name, facts)) is not None:
        if index in _loaded_positions(assignment.value, facts):
            return True
        parts = _parts(assignment.value, index, facts)
    return any(is_loaded(part, facts, depth + 1) for part in parts)


def _is_loaded_part(node: cst.Subscript, facts: Facts) -> bool:
    """Whether `node` is `load(path)[1]`, or `pair[1]` of it, for a function `load` of another file."""
    index = node.slice[0].slice if len(node.slice) == 1 else None
    if not isinstance(index, cst.Index) or not isinstance(index.value, cst.Integer):
        return False
    value = node.value
    if isinstance(value, cst.Name):
        assignment = facts.bindings.nearest(value)
        if assignment is None or assignment.how is not How.VALUE or assignment.value is None:
            return False
        value = assignment.value
    return index.value.evaluated_value in _loaded_positions(value, facts)


def _loaded_positions(value: cst.CSTNode | None, facts: Facts) -> frozenset[int]:
    """Return the positions of checkpoint parts in a tuple that a function of another file returns."""
    if not isinstance(value, cst.Call):
        return frozenset()
    return facts.context.calls.loading_parts.get(facts.context.place(value), frozenset())


def _index(name: cst.Name, facts: Facts) -> int | None:
    """Return the position of `name` in `a, b = …`."""
    for binding in facts.context.bindings(name)[::-1]:
        element = facts.context.parent(binding.node)
        target = facts.context.parent(element)
        if isinstance(target, cst.Tuple | cst.List):
            return next(i for i, other in enumerate(target.elements) if other is element)
    return None


def _parts(
    value: cst.BaseExpression | None, index: int, facts: Facts
) -> list[cst.BaseExpression | None]:
    """Return the values at `index` of a tuple, or of the tuples that a function of the script returns."""
    values = [value]
    if isinstance(value, cst.Call) and (here := facts.context.called(value)):
        values = [part.value for function in here for part in facts.below(function, cst.Return)]
    return [
        value.elements[index].value
        if isinstance(value, cst.Tuple | cst.List) and index < len(value.elements)
        else value
        for value in values
    ]
