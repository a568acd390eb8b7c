"""Images stay as Flax has them, channels last, from one convolution to the next.

torch counts the channels as axis 1. Rather than turning each input and output of a convolution, a tensor
that a layer of Flax gives stays in Flax's order as long as what is done with it allows that; the axes that
operators name are translated. Where an operator needs torch's order, the tensor is turned there.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from converters.graph.draws import is_dropout
from converters.graph.expression import call, code, method
from converters.graph.ir import (
    Apply,
    Call,
    Fact,
    Graph,
    Held,
    Item,
    Op,
    Ref,
    held,
    references,
    uses,
)

if TYPE_CHECKING:
    from torch import Tensor

LAST = "channels last"


@dataclass(frozen=True)
class Flat:
    """Flattened from channels last: a torch tensor would have (C, H, W) where it has (H, W, C).

    Attributes:
        sides: of what was flattened, in torch's order.
    """

    sides: tuple[int, ...]


Layout = str | Flat
Operand = Callable[[Any], Any]
Made = tuple[Layout | None, Callable[[Operand], ast.expr]]

# Element by element: any order will do, if all have the same.
_ELEMENTWISE = {
    "relu",
    "relu_",
    "silu",
    "gelu",
    "sigmoid",
    "tanh",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "elu",
    "selu",
    "celu",
    "mish",
    "softplus",
    "relu6",
    "hardshrink",
    "softsign",
    "neg",
    "exp",
    "abs",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "log",
    "pow",
    "clamp",
    "clamp_min",
    "clamp_max",
    "erf",
    "square",
    "reciprocal",
    "add",
    "sub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "where",
    "_to_copy",
    "to",
    "floor",
    "round",
    "detach",
}
_REDUCTIONS = {"mean", "sum", "amax", "amin"}
# What gives one number for each channel its axes of space, and what takes it apart.
_SPACING = {"unsqueeze", "view", "reshape"}
_SPLITTING = {"chunk", "split", "split_with_sizes"}
# Along one axis, which is their second argument.
_ALONG = {"glu", "softmax", "log_softmax", "cumsum"}


def layouts(
    graph: Graph,
    constants: Mapping[str, Tensor],
    channels_last: Callable[[Call], bool],
    in_function: Callable[[Call, Op], bool],
    class_of: Callable[[str], Any],
) -> dict[int, Layout]:
    """Tensors that stay channels last, and their layout.

    Modules of one class take their arguments in one layout, if they only hand them to such layers: who calls
    one with a tensor in torch's order turns it.

    Args:
        graph: the recorded model.
        constants: its parameters and buffers.
        channels_last: whether a call is that of a layer that Flax has with its channels last.
        in_function: whether an operator of a call is in a function, whose arguments are all in torch's order.
        class_of: class of the module at a path.
    """
    refused: set[tuple[str, int]] = set()
    last: set[tuple[Any, int]] = set()
    users = _users(graph, channels_last)
    handed, flat = _handed(users), _flat_in_space(users, graph.facts)
    while True:
        walk = _LayoutWalk(
            graph.facts,
            constants,
            channels_last,
            in_function,
            refused,
            class_of,
            handed,
            last,
            flat,
        )
        walked = walk.walk(graph.root)
        if walked.conflicts <= refused and walked.last <= last and not walked.unflat:
            return walked.found
        refused |= walked.conflicts
        last |= walked.last
        flat -= walked.unflat


def _users(graph: Graph, channels_last: Callable[[Call], bool]) -> dict[int, list[Any]]:
    """Takers of each tensor: an operator, a layer with its channels last, or the tensor that it is within a
    module that it is handed to; None for results.
    """
    users: dict[int, list[Any]] = defaultdict(list)

    def note(items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, Call) and not channels_last(item):
                for argument in item.arguments:
                    if isinstance(argument.value, Ref):
                        users[argument.value.id].append(argument.inside)
                note(item.body)
                for result in item.taken:
                    users[result.inside].append(None)
                continue
            for number in uses(item):
                users[number].append(item if isinstance(item, Call | Op) else None)
            if isinstance(item, Apply):
                note(item.body)

    note(graph.root.body)
    for number in range(len(graph.methods) + 1):
        for reference in references(graph.entry(number).outputs):
            users[reference.id].append(None)
    return users


def _flat_in_space(users: Mapping[int, Sequence[Any]], facts: Mapping[int, Fact]) -> set[int]:
    """Tensors with one number for each channel, if only operators take them that may keep them so."""
    takers = _ELEMENTWISE | _SPLITTING | {"unsqueeze"}
    return {
        number
        for number, items in users.items()
        if number in facts
        and len(shape := facts[number].shape) > 2
        and all(type(side) is int and side == 1 for side in shape[2:])
        and all(isinstance(item, Op) and _packet(item) in takers for item in items)
    }


def _packet(item: Op) -> str:
    """`add` of `aten.add.Tensor`; "" for other operators."""
    return item.target.split(".")[1] if item.target.startswith("aten.") else ""


def _handed(users: Mapping[int, Sequence[Any]]) -> set[int]:
    """Tensors that are only handed to layers with their channels last, perhaps through calls of modules."""
    known: dict[int, bool] = {}

    def is_handed(number: int) -> bool:
        if number not in known:
            known[number] = False
            takers = users.get(number, ())
            known[number] = bool(takers) and all(
                isinstance(user, Call) or (isinstance(user, int) and is_handed(user))
                for user in takers
            )
        return known[number]

    return {number for number in list(users) if is_handed(number)}


class _LayoutWalk:
    def __init__(
        self,
        facts: Mapping[int, Fact],
        constants: Mapping[str, Tensor],
        channels_last: Callable[[Call], bool],
        in_function: Callable[[Call, Op], bool],
        refused: set[tuple[str, int]],
        class_of: Callable[[str], Any],
        handed: set[int],
        known_last: set[tuple[Any, int]],
        flat: set[int],
    ) -> None:
        self.facts, self.channels_last, self.refused = facts, channels_last, refused
        self.constants = constants
        self.in_function = in_function
        self.found: dict[int, Layout] = {}
        self.orders: dict[tuple[str, int], Layout | None] = {}
        self.conflicts: set[tuple[str, int]] = set()
        self.class_of, self.handed, self.known_last = class_of, handed, known_last
        self.last: set[tuple[Any, int]] = set()
        # Tensors with one number for each channel, and those of them that must stay in torch's order.
        self.flat = flat
        self.unflat: set[int] = set()

    def walk(self, module_call: Call) -> _LayoutWalk:
        for item in module_call.body:
            self._item(item, module_call)
        return self

    def _item(self, item: Item, within: Call) -> None:
        if isinstance(item, Op):
            stayed = stays(item, self.found, self.facts, self.constants)
            refs = [reference.id for reference in references((item.arguments, item.named))]
            flat = [number for number in refs if number in self.flat and number in self.found]
            if _packet(item) in _SPACING | _SPLITTING or (flat and set(refs) <= set(flat)):
                own = bool(flat) or not any(number in self.found for number in refs)
                if own and not self.flat.issuperset(item.outs):
                    self.unflat.update(flat)
                    return
            if stayed and stayed[0] is not None and not self.in_function(within, item):
                if self.flat.issuperset(item.outs):
                    self.found |= dict.fromkeys(item.outs, stayed[0])
                    return
                if not item.single:
                    return
                # A turn of three axes is one to channels last only if a layer takes it so.
                rows = len(self.facts[item.outs[0]].shape) == 3 and not any(
                    reference.id in self.found for reference in references(item.arguments)
                )
                if not rows or item.outs[0] in self.handed:
                    self.found[item.outs[0]] = stayed[0]
                    return
            self.unflat.update(flat)
        elif isinstance(item, Call):
            if self.channels_last(item):
                if len(self.facts[item.outs[0]].shape) > 2:
                    self.found[item.outs[0]] = LAST
                return
            for index, argument in enumerate(item.arguments):
                if isinstance(argument.value, Ref):
                    self._boundary(item.path, index, argument.value.id, argument.inside)
            for inner in item.body:
                self._item(inner, item)
            for index, taken in enumerate(item.taken):
                self._boundary(item.path, -1 - index, taken.inside, taken.outside)

    def _boundary(self, path: str, index: int, source: int, target: int) -> None:
        """Require one order, in all calls of a module, for each tensor that crosses its boundary."""
        state = self.found.get(source)
        place = (path, index)
        if place in self.refused:
            return
        if index >= 0 and target in self.handed and len(self.facts[target].shape) > 2:
            key = (self.class_of(path), index)
            if state == LAST:
                self.last.add(key)
            elif state is None and key in self.known_last:
                state = LAST
        if self.orders.setdefault(place, state) != state:
            self.conflicts.add(place)
        if state is not None:
            self.found[target] = state


def stays(
    item: Op,
    tensor_layouts: Mapping[int, Layout],
    facts: Mapping[int, Fact],
    constants: Mapping[str, Tensor],
) -> Made | None:
    """The form of an operator on channels-last tensors; None if it needs torch's order.

    Returns:
        The order of the result (None: torch's), and its writer, which takes a function from an argument to
        the tensor in its layout.
    """
    refs = list(references((item.arguments, item.named)))
    states = {tensor_layouts.get(ref.id) for ref in refs}
    packet = _packet(item)
    arguments = item.arguments
    first = arguments[0] if arguments else None
    if packet in _SPLITTING and isinstance(first, Ref):
        return _split_apart(item, first, tensor_layouts, facts)
    if not item.single or not isinstance(first, Ref | tuple):
        return None
    rank = len(facts[first.id].shape) if isinstance(first, Ref) else 0
    if packet in ("permute", "transpose") and isinstance(first, Ref):
        return _turned(packet, item, tensor_layouts.get(first.id), rank)
    if packet in _SPACING and isinstance(first, Ref):
        spaced = _spaced(item, first, tensor_layouts.get(first.id), facts)
        if spaced is not None:
            return spaced
    if states <= {None}:
        return None
    if is_dropout(item):
        state = tensor_layouts.get(first.id) if isinstance(first, Ref) else None
        fits = state == LAST or not arguments[2]
        return (state, lambda operand: operand(first).code) if fits else None
    if packet in _ELEMENTWISE:
        return _elementwise(item, tensor_layouts, facts, refs, constants)
    if tensor_layouts.get(getattr(first, "id", -1)) != LAST and packet != "cat":
        return None
    shape = facts[first.id].shape if isinstance(first, Ref) else ()
    if packet in _REDUCTIONS and len(arguments) > 1 and arguments[1]:
        axes = tuple(sorted(moved(axis, rank) for axis in _axes(arguments[1])))
        keep = bool(arguments[2]) if len(arguments) > 2 else False
        if not keep and any(axis % rank == 1 for axis in _axes(arguments[1])):
            return None
        left = rank if keep else rank - len(axes)
        name = {"amax": "max", "amin": "min"}.get(packet, packet)
        named = {"axis": axes, **({"keepdims": True} if keep else {})}
        if item.named.get("dtype") is not None:
            return None
        return (LAST if left > 2 else None), lambda operand: method(operand(first), name, **named)
    if packet in ("adaptive_avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool3d"):
        size = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
        if set(size) != {1}:
            return None
        axes = tuple(range(1, rank - 1))
        return LAST, lambda operand: method(operand(first), "mean", axis=axes, keepdims=True)
    if packet in (
        "max_pool2d",
        "max_pool1d",
        "max_pool3d",
        "avg_pool2d",
        "avg_pool1d",
        "avg_pool3d",
    ):
        return _pooled(packet, item, rank)
    if packet in ("flatten", "view", "reshape") and isinstance(first, Ref):
        return _flattened(item, shape, facts)
    if packet in _ALONG:
        return _along(item, rank)
    if packet == "cat" and isinstance(first, tuple):
        if {
            tensor_layouts.get(element.id) if isinstance(element, Ref) else None
            for element in first
        } != {LAST}:
            return None
        axis = arguments[1] if len(arguments) > 1 else 0
        rank = len(facts[first[0].id].shape)
        return LAST, lambda operand: call(
            "jnp.concatenate", [operand(element) for element in first], axis=moved(axis, rank)
        )
    return None


def _axes(value: Any) -> tuple[int, ...]:
    return tuple(value) if isinstance(value, tuple) else (value,)


def moved(axis: int, rank: int) -> int:
    """Position of one of torch's axes with the channels last."""
    axis %= rank
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


def _turned(packet: str, item: Op, state: Layout | None, rank: int) -> Made | None:
    """A turn that only changes from one order to the other costs nothing."""
    first = item.arguments[0]
    order = list(range(rank))
    if packet == "permute":
        order = [axis % rank for axis in item.arguments[1]]
    else:
        a, b = (axis % rank for axis in item.arguments[1:3])
        order[a], order[b] = order[b], order[a]
    if rank < 3:
        return None
    to_last = [0, *range(2, rank), 1]
    to_first = [0, rank - 1, *range(1, rank - 1)]
    if state == LAST and order == to_last:
        return None if rank < 3 else (None, lambda operand: operand(first).code)
    if state is None and order == to_first:
        return LAST, lambda operand: operand(first).code
    return None


def _spaced(item: Op, first: Ref, state: Layout | None, facts: Mapping[int, Fact]) -> Made | None:
    """Axes of space for one number of each channel: `x[:, None]` for torch's `x[..., None]`."""
    before, after = facts[first.id].shape, facts[item.outs[0]].shape
    count = len(after) - len(before)
    if after != (*before, *[1] * count) or count < 1 or len(after) < 3:
        return None
    if (state is None) != (len(before) == 2) or state not in (None, LAST):
        return None
    index = ", ".join([":", *["None"] * count])
    return LAST, lambda operand: code(f"{{x}}[{index}]", x=operand(first))


def _split_apart(
    item: Op, first: Ref, tensor_layouts: Mapping[int, Layout], facts: Mapping[int, Fact]
) -> Made | None:
    """Parts along the channels, which are last."""
    from converters.graph.ops import lowerings

    rank, lowering = len(facts[first.id].shape), lowerings().get(item.target)
    axis = item.arguments[2] if len(item.arguments) > 2 else item.named.get("dim", 0)
    known = tensor_layouts.get(first.id) == LAST and min(item.outs) >= 0
    if not known or lowering is None or axis % rank != 1:
        return None

    def write(operand: Operand) -> ast.expr:
        outs = tuple(operand(Ref(out)) for out in item.outs)
        return lowering((operand(first), item.arguments[1], rank - 1), {}, outs)

    return LAST, write


def _elementwise(
    item: Op,
    tensor_layouts: Mapping[int, Layout],
    facts: Mapping[int, Fact],
    refs: list[Ref],
    constants: Mapping[str, Tensor],
) -> Made | None:
    from converters.graph.ops import lowerings

    out = facts[item.outs[0]]
    state = next(tensor_layouts[ref.id] for ref in refs if ref.id in tensor_layouts)
    # What is turned itself, as it has one number for each channel: `x * scale[:, :, None, None]`.
    small: set[int] = set()
    for ref in refs:
        rank = len(facts[ref.id].shape)
        if rank == 0:
            continue
        if ref.id not in tensor_layouts and state == LAST and rank == len(out.shape):
            if any(side != 1 for side in facts[ref.id].shape[2:]):
                return None
            small.add(ref.id)
            continue
        if rank != len(out.shape) or (tensor_layouts.get(ref.id) != state):
            return None
    if len({len(facts[ref.id].shape) for ref in refs if facts[ref.id].shape}) != 1:
        return None
    rank = len(out.shape)
    kept = held((item.arguments, item.named))
    if any(not _of_channels(constants[weight.key].shape, state, rank) for weight in kept):
        return None
    lowering = lowerings().get(item.target)
    if lowering is None:
        return None

    def lying(value: Any, operand: Operand) -> Any:
        tensor = operand(value)
        if isinstance(value, Ref) and value.id in small:
            shape = (tensor.shape[0], *tensor.shape[2:], tensor.shape[1])
            return replace(tensor, shape=shape, code=as_flax(tensor.code, None, rank))
        if not isinstance(value, Held) or constants[value.key].dim() < 2:
            return tensor
        return replace(
            tensor, shape=(constants[value.key].numel(),), code=method(tensor, "reshape", -1)
        )

    def write(operand: Operand) -> ast.expr:
        arguments = tuple(lying(argument, operand) for argument in item.arguments)
        named = {key: lying(argument, operand) for key, argument in item.named.items()}
        return lowering(arguments, named, operand(Ref(item.outs[0])))

    return state, write


def _of_channels(shape: Sequence[int], state: Layout, rank: int) -> bool:
    """Whether a parameter has one number, or one for each channel of what is channels last."""
    sides = [side for axis, side in enumerate(shape) if axis - len(shape) != 1 - rank]
    return set(sides) <= {1} and (state == LAST or len(sides) == len(shape) <= 1)


def _along(item: Op, rank: int) -> Made | None:
    from converters.graph.ops import lowerings

    first, *rest = item.arguments
    axis, lowering = moved(rest[0] if rest else -1, rank), lowerings().get(item.target)
    if lowering is None:
        return None
    out = Ref(item.outs[0])
    return LAST, lambda operand: lowering(
        (operand(first), axis, *rest[1:]), item.named, operand(out)
    )


def _pooled(packet: str, item: Op, rank: int) -> Made | None:
    spatial = rank - 2
    settings = list(item.arguments) + [None] * 6

    def sides(value: Any, default: tuple[int, ...]) -> tuple[int, ...]:
        if value in (None, ()):
            return default
        value = value if isinstance(value, tuple) else (value,)
        return value * spatial if len(value) == 1 else value

    if rank < 3:
        return None
    window = sides(settings[1], ())
    strides = sides(settings[2], window)
    padding = sides(settings[3], (0,) * spatial)
    pad = tuple((side, side) for side in padding) if any(padding) else "VALID"
    named: dict[str, Any] = {"strides": strides, "padding": pad}
    if packet.startswith("max"):
        dilation, ceil = sides(settings[4], (1,) * spatial), settings[5]
        if ceil or set(dilation) != {1}:
            return None
        name = "nn.max_pool"
    else:
        ceil, include, divisor = settings[4], settings[5], item.named.get("divisor_override")
        if ceil or divisor is not None or len(item.arguments) > 6:
            return None
        if include is False and any(padding):
            named["count_include_pad"] = False
        name = "nn.avg_pool"
    first = item.arguments[0]
    if "count_include_pad" in named:  # Flax divides by counts in float32
        return LAST, lambda operand: code(
            "{pooled}.astype({x}.dtype)",
            pooled=call(name, operand(first), window, **named),
            x=operand(first),
        )
    return LAST, lambda operand: call(name, operand(first), window, **named)


def _flattened(item: Op, shape: tuple[Any, ...], facts: Mapping[int, Fact]) -> Made | None:
    """Space flattened behind the channels, or both into features."""
    first = item.arguments[0]
    after = facts[item.outs[0]].shape
    rank = len(shape)
    if len(after) == 3 and rank > 3 and after[:2] == shape[:2]:
        return LAST, lambda operand: code(
            "{x}.reshape({x}.shape[0], -1, {x}.shape[-1])", x=operand(first)
        )
    if len(after) == 2 and after[0] == shape[0]:
        sides = shape[1:]
        if not all(isinstance(side, int) for side in sides):
            return None
        is_one = all(side == 1 for side in sides[1:])
        state = None if is_one else Flat(tuple(sides))
        return state, lambda operand: code("{x}.reshape({x}.shape[0], -1)", x=operand(first))
    return None


def as_torch(value: ast.expr, layout: Layout | None, rank: int) -> ast.expr:
    """A tensor in torch's order."""
    if isinstance(layout, Flat):
        return code(
            "jnp.moveaxis({x}.reshape(*{x}.shape[:-1], {*sides}), -1, {axis}).reshape({x}.shape)",
            x=value,
            sides=(*layout.sides[1:], layout.sides[0]),
            axis=-len(layout.sides),
        )
    if layout == LAST:
        return (
            code("{x}.swapaxes(1, 2)", x=value)
            if rank == 3
            else code("jnp.moveaxis({x}, -1, 1)", x=value)
        )
    return value


def as_flax(value: ast.expr, layout: Layout | None, rank: int) -> ast.expr:
    """A tensor with its channels last."""
    if layout == LAST or rank < 3:
        return value
    return (
        code("{x}.swapaxes(1, 2)", x=value)
        if rank == 3
        else code("jnp.moveaxis({x}, 1, -1)", x=value)
    )


def as_flat(value: ast.expr, layout: Layout | None, sides: tuple[int, ...]) -> ast.expr:
    """Features as they are flattened from channels last."""
    if layout == Flat(sides):
        return value
    return code(
        "jnp.moveaxis({x}.reshape(*{x}.shape[:-1], {*sides}), {axis}, -1).reshape({x}.shape)",
        x=value,
        sides=sides,
        axis=-len(sides),
    )
