"""The shape of a batch that follows from the sizes of its samples: `[len(images)] + largest_of(images)`."""

from __future__ import annotations

import libcst as cst

from migrate.reading.facts import Facts
from migrate.syntax.tree import code, keyword, nodes_of

FILLED = frozenset(
    {
        "torch.nn.functional.pad",
        "torch.zeros",
        "torch.ones",
        "torch.full",
        "torch.empty",
        "numpy.zeros",
        "numpy.ones",
        "numpy.full",
        "numpy.empty",
    }
)
DEPTH = 4  # so many names are followed, one to another


def largest_sizes(call: cst.Call, facts: Facts) -> cst.Call | None:
    """Return the call of a function that compares the sizes of samples and gives `call` its shape."""
    size = keyword(call, "size") or keyword(call, "shape")
    shape = [arg.value for arg in call.args if arg.keyword is None]
    if size is not None:
        shape.append(size.value)
    for part in shape:
        sizes = sizes_in(part, facts)
        if sizes is not None:
            return sizes
    return None


def sizes_in(value: cst.BaseExpression, facts: Facts) -> cst.Call | None:
    """Return the call that compares the sizes of samples and that `value` follows from."""
    return _sizes(value, facts, DEPTH)


def first_of(sizes: cst.Call, function: cst.FunctionDef, facts: Facts) -> cst.Call | None:
    """Return the first call in `function` that makes something of these sizes."""
    for call in facts.below(function.body, cst.Call):
        is_filled = (facts.names.of(call.func) or "") in FILLED
        inside = is_filled and facts.context.function_around(call) is function
        if inside and largest_sizes(call, facts) is sizes:
            return call
    return None


def is_left_as_lists(call: cst.Call, function: cst.FunctionDef, facts: Facts) -> bool:
    """Whether `call` is the `zip(*batch)` that a function returns, with one of its lists replaced at most."""
    zipped = [arg for arg in call.args if arg.keyword is None]  # not `strict=True`
    star = zipped[0] if code(call.func) == "zip" and len(zipped) == 1 else None
    parameters = {parameter.name.value for parameter in function.params.params}
    if star is None or star.star != "*" or code(star.value) not in parameters:
        return False
    above = facts.context.parent(_outer(call, facts))
    if isinstance(above, cst.Return):
        return True
    targets = above.targets if isinstance(above, cst.Assign) else ()
    names = {code(target.target) for target in targets if isinstance(target.target, cst.Name)}
    replaced = {
        code(target.target)
        for target in nodes_of(function.body, cst.AssignTarget)
        if isinstance(target.target, cst.Subscript) and code(target.target.value) in names
    }
    return len(replaced) < 2 and any(
        code(_inner(result.value)) in names
        for result in facts.below(function.body, cst.Return)
        if result.value is not None
    )


def _outer(call: cst.Call, facts: Facts) -> cst.CSTNode:
    """Return the outermost `list(…)` or `tuple(…)` around a call."""
    whole: cst.CSTNode = call
    arg = facts.context.parent(whole)
    while isinstance(arg, cst.Arg):
        around = facts.context.parent(arg)
        if not isinstance(around, cst.Call) or code(around.func) not in ("list", "tuple"):
            break
        whole, arg = around, facts.context.parent(around)
    return whole


def _inner(value: cst.BaseExpression) -> cst.BaseExpression:
    if isinstance(value, cst.Call) and code(value.func) in ("list", "tuple") and value.args:
        return value.args[0].value
    return value


def _sizes(value: cst.BaseExpression, facts: Facts, depth: int) -> cst.Call | None:
    for call in facts.below(value, cst.Call):
        if _compares_sizes(call, facts):
            return call
    for name in nodes_of(value, cst.Name) if depth else ():
        above = facts.context.parent(name)
        if isinstance(above, cst.Attribute):
            continue  # `x.dtype`
        for assignment in facts.bindings.given(name):
            if assignment.value is not None and assignment.loop is None:
                sizes = _sizes(assignment.value, facts, depth - 1)
                if sizes is not None:
                    return sizes
    return None


def _compares_sizes(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` takes the largest of some shapes, itself or by a function of the project."""
    arguments = [arg.value for arg in call.args]
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("max", "amax"):
        return any(_has_shapes(value, facts) for value in (call.func.value, *arguments))
    if not any(_has_shapes(value, facts) for value in arguments):
        return False
    functions = facts.context.called(call)
    return any(
        code(inner.func) in ("max", "torch.max", "np.max", "np.maximum", "torch.maximum")
        or (isinstance(inner.func, cst.Attribute) and inner.func.attr.value in ("max", "amax"))
        for function in functions
        for inner in facts.below(function.body, cst.Call)
    )


def _has_shapes(value: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `value` holds a shape of each sample: `[list(image.shape) for image in images]`."""
    values = [value]
    if isinstance(value, cst.Name):
        values = [
            assignment.value
            for assignment in facts.bindings.given(value)
            if assignment.value is not None
        ]
        values += [addition.value for addition in facts.bindings.put_into(value)]
        listed = True
    else:
        listed = isinstance(value, cst.ListComp | cst.GeneratorExp | cst.List | cst.Call)
    return listed and any(
        isinstance(node, cst.Attribute)
        and node.attr.value == "shape"
        and not isinstance(facts.context.parent(node), cst.Subscript)
        for value in values
        for node in facts.below(value, cst.Attribute)
    )
