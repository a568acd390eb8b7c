"""Batch sizes that the host draws at random, in a `collate_fn` or in a dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING

import libcst as cst

from migrate.model.objects.collating import GIVEN_AS
from migrate.reading.steps.drawn import drawn_of, is_dataset
from migrate.syntax.tree import code, keyword, last_part, nodes, nodes_of

if TYPE_CHECKING:
    from migrate.reading.facts import Facts

# Calls that change the size of their argument, with the names of their parameters.
INTERPOLATES = ("input", "size", "scale_factor")
RESIZES = ("img", "size")
MADE = ("size",)
SIZES = ("size", "dsize", "scale_factor")
_TRANSFORMS = ("torchvision.transforms.", "torchvision.transforms.v2.")
SIZING = {
    "torch.nn.functional.interpolate": INTERPOLATES,
    "torch.nn.functional.upsample": INTERPOLATES,
    "cv2.resize": ("src", "dsize"),
    **{f"{home}functional.resize": RESIZES for home in _TRANSFORMS},
    **{f"{home}Resize": MADE for home in _TRANSFORMS},
}
# Calls whose result has a size of its own, whatever size the argument had.
CUTS = ("Resize", "resize", "Crop", "crop", "interpolate", "upsample", "pad", "Pad", "pooling")
# Calls that keep the size of their argument.
KEEPS = frozenset(
    {
        *("to", "float", "half", "astype", "to_dtype", "div", "div_", "sub", "normalize"),
        *("contiguous", "ascontiguousarray", "clone", "copy", "permute", "transpose", "unsqueeze"),
        *("stack", "cat", "append", "len"),
        *("tensor", "as_tensor", "from_numpy", "array", "asarray", "to_tensor", "ToTensor"),
    }
)
LISTED = cst.Tuple | cst.List | cst.BinaryOperation
DEEPEST = 4


def drawn_size(call: cst.Call | cst.Subscript, facts: Facts) -> cst.BaseExpression | None:
    """Return the draw that decides the batch size at `call`; None if none does, or another size follows."""
    if isinstance(call, cst.Subscript) and _is_in_dataset(call, facts):
        return _own_cut(call, facts)
    sizes = _sizes(call, facts)
    drawn = next((size for size in sizes if _is_drawn(size, facts)), None)
    if drawn is None or not decides_size(call, facts):
        return None
    return _draw(drawn, facts, DEEPEST)


def is_first_use(call: cst.Call | cst.Subscript, draw: cst.BaseExpression, facts: Facts) -> bool:
    """Whether `call` is the first in the file to size a batch by this draw."""
    others = facts.context.all_of(cst.Call, cst.Subscript)
    return next((other for other in others if drawn_size(other, facts) is draw), None) is call


def decides_size(call: cst.Call | cst.Subscript, facts: Facts) -> bool:
    """Whether `call` decides the final size of a batch that the loader returns."""
    if not _sizes(call, facts):
        return False
    collates = is_collating(call, facts)
    of_data = isinstance(call, cst.Call) and _is_in_dataset(call, facts)
    return (collates or of_data) and not _is_sized_again(call, facts, not collates)


def chooses_size(branch: cst.If | cst.IfExp, facts: Facts) -> bool:
    """Whether a branch of `branch` sizes a batch, or binds a name that does so below."""
    sides: list[cst.CSTNode] = [
        branch.body,
        *([branch.orelse] if branch.orelse is not None else []),
    ]
    calls = [call for side in sides for call in facts.below(side, cst.Call)]
    if any(decides_size(call, facts) for call in calls):
        return True
    names = {
        target.target.value
        for side in sides
        for target in nodes_of(side, cst.AssignTarget)
        if isinstance(target.target, cst.Name)
    }
    function = facts.context.function_around(branch)
    return bool(names) and any(
        name.value in names
        for call in (nodes_of(function.body, cst.Call) if function is not None else ())
        for size in _sizes(call, facts)
        for name in facts.below(size, cst.Name)
        if decides_size(call, facts)
    )


def _own_cut(cut: cst.Subscript, facts: Facts) -> cst.BaseExpression | None:
    """Return the attribute of a dataset that decides how much `cut` takes, if replicas draw it apart.

    `image[:, i : i + 8]` takes as much wherever it begins.
    """
    if len(cut.slice) < 2 or not facts.context.calls.drawn_attributes:
        return None
    for element in cut.slice:
        if isinstance(element.slice, cst.Slice):
            ends = [_own_draws(end, facts) for end in (element.slice.lower, element.slice.upper)]
            for name in ends[0].keys() ^ ends[1].keys():
                return (ends[0] | ends[1])[name]
    return None


def _own_draws(
    end: cst.BaseExpression | None, facts: Facts, depth: int = 2 * DEEPEST
) -> dict[str, cst.Attribute]:
    """Return the attributes of the object with random numbers from which `end` is computed."""
    attributes: dict[str, cst.Attribute] = {}
    for node in nodes(end) if end is not None and depth else ():
        if isinstance(node, cst.Name):
            for assignment in facts.bindings.given(node):
                attributes |= _own_draws(assignment.value, facts, depth - 1)
        elif isinstance(node, cst.Attribute) and code(node.value) == "self":
            around = facts.context.class_around(node)
            name = node.attr.value
            if around is not None and (
                (around.name.value, name) in facts.context.calls.drawn_attributes
            ):
                attributes[name] = node
    return attributes


def is_collating(node: cst.CSTNode, facts: Facts) -> bool:
    """Whether `node` is in a function that makes batches (a `collate_fn`), or in one that it runs."""
    for above in facts.context.ancestors(node):
        if isinstance(above, cst.Lambda):
            arg = facts.context.parent(above)
            if (
                isinstance(arg, cst.Arg)
                and arg.keyword is not None
                and arg.keyword.value in GIVEN_AS
            ):
                return True
        if isinstance(above, cst.FunctionDef):
            return facts.context.position(above.name).line in facts.context.calls.gathering
    return False


def _is_in_dataset(node: cst.CSTNode, facts: Facts) -> bool:
    function = facts.context.function_around(node)
    around = facts.context.class_around(node)
    if function is None or around is None or not is_dataset(around, facts):
        return False
    return function.name.value in ("__getitem__", "__getitems__", "__iter__", "__next__")


def _sizes(call: cst.Call | cst.Subscript, facts: Facts) -> list[cst.BaseExpression]:
    """Return the sizes that `call` sets, or the ends of a cut; empty if it sets no size."""
    if isinstance(call, cst.Subscript):
        cuts = [e.slice for e in call.slice if isinstance(e.slice, cst.Slice)]
        ends = [
            cut.lower or cut.upper for cut in cuts if (cut.lower is None) != (cut.upper is None)
        ]
        of_array = len(call.slice) > 1 or facts.values.is_tensor(call.value)
        return [end for end in ends if end is not None and of_array]
    parameters = SIZING.get(facts.names.of(call.func) or "")
    if parameters is not None:
        named = [arg.value for word in SIZES if (arg := keyword(call, word)) is not None]
        plain = [arg.value for arg in call.args if arg.keyword is None and not arg.star]
        return named + [v for word, v in zip(parameters, plain, strict=False) if word in SIZES]
    own = isinstance(call.func, cst.Attribute) and call.func.attr.value == "resize"
    if own and call.args and not facts.context.called(call):
        return [call.args[0].value]  # of an image of Pillow
    return []


def _is_drawn(size: cst.BaseExpression, facts: Facts, seen: frozenset[int] = frozenset()) -> bool:
    """Whether `size` is drawn; `seen` holds the values followed so far (`size = size + (1,)`)."""
    if id(size) in seen:
        return False
    seen |= {id(size)}
    if isinstance(size, cst.BinaryOperation):  # (side,) * 2
        return any(_is_drawn(part, facts, seen) for part in (size.left, size.right))
    if isinstance(size, cst.NamedExpr):
        return _is_drawn(size.value, facts, seen)
    if isinstance(size, cst.Tuple | cst.List):
        return any(_is_drawn(element.value, facts, seen) for element in size.elements)
    if isinstance(size, cst.Name):
        for assignment in facts.bindings.given(size):
            whole = assignment.loop is None and assignment.index is None
            if (
                whole
                and isinstance(assignment.value, LISTED)
                and _is_drawn(assignment.value, facts, seen)
            ):
                return True
    drawn = drawn_of(facts)
    return drawn.is_drawn(size) or drawn.gives_drawn(size)


def _draw(size: cst.BaseExpression, facts: Facts, depth: int) -> cst.BaseExpression:
    """Return the expression of the file that draws `size`, or `size` itself if that is not plain to see."""
    values: list[cst.BaseExpression | None] = []
    if isinstance(size, cst.Name):
        values = [assignment.value for assignment in facts.bindings.given(size)]
        parameter = facts.bindings.parameter(size)
        if parameter is not None and not values:
            values += facts.bindings.passed(parameter[0], size.value)
    elif isinstance(size, cst.Attribute):
        values = [value for _, value in facts.context.attributes.get(size.attr.value, ())]
    elif isinstance(size, cst.Tuple | cst.List):
        values = [element.value for element in size.elements]
    elif isinstance(size, cst.NamedExpr):
        values = [size.value]
    elif isinstance(size, cst.BinaryOperation):
        values = [size.left, size.right]
    for value in values if depth else ():
        if value is not None and _is_drawn(value, facts):
            return _draw(value, facts, depth - 1)
    return size


def _is_sized_again(value: cst.CSTNode, facts: Facts, strict: bool, depth: int = DEEPEST) -> bool:
    """Whether `value` is cut or padded to another size before it is returned.

    Args:
        value: the expression that sets the size, or a name of it.
        facts: the script.
        strict: whether an unknown call counts: a transform of a dataset may crop.
        depth: maximum number of names to follow.
    """
    below = value
    for above in facts.context.ancestors(value):
        match above:
            case cst.Call() if below is not above.func:
                unknown = strict and last_part(above.func) not in KEEPS
                if _sizes_anew(above, facts) or unknown:
                    return True
            case cst.List() | cst.Tuple():  # Compose([Resize(size), CenterCrop(224)])
                at = [part is below for part in above.elements]
                after = [e.value for e in above.elements[at.index(True) + 1 :]] if any(at) else []
                if any(isinstance(e, cst.Call) and _sizes_anew(e, facts) for e in after):
                    return True
            case cst.Assign():
                targets = [target.target for target in above.targets]
                return any(_is_cut(target, above, facts, strict, depth) for target in targets)
            case cst.Return() if depth:
                function = facts.context.function_around(above)
                callers = list(facts.bindings.callers(function)) if function is not None else []
                return any(_is_sized_again(c, facts, strict, depth - 1) for c, _ in callers)
            case cst.BaseSmallStatement() | cst.BaseCompoundStatement() | cst.Lambda():
                return False
            case _:
                pass
        below = above
    return False


def _is_cut(
    target: cst.BaseExpression, assign: cst.Assign, facts: Facts, strict: bool, depth: int
) -> bool:
    """Whether the value assigned to `target` is cut: `canvas[:h, :w] = …` is a part of another tensor."""
    if isinstance(target, cst.Subscript):
        return any(True for element in target.slice for _ in nodes_of(element, cst.Slice))
    if not isinstance(target, cst.Name) or not depth:
        return False
    script = facts.context
    line, around = script.position(assign).line, script.function_around(assign)
    later = (
        mention
        for mention in script.mentions(target)
        if script.position(mention).line > line
        and script.function_around(mention) is around
        and not isinstance(script.parent(mention), cst.AssignTarget)
    )
    return any(_is_sized_again(mention, facts, strict, depth - 1) for mention in later)


def _sizes_anew(call: cst.Call, facts: Facts) -> bool:
    """Whether `call` sets a size that is not drawn."""
    if not last_part(call.func).endswith(CUTS) and not code(call.func).endswith(CUTS):
        return False
    return not any(_is_drawn(size, facts) for size in _sizes(call, facts))
