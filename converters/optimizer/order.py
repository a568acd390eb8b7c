"""Which parameter each position of an optimizer's state is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from converters.errors import OptimizerError
from converters.mapping import Outcome, Plan
from converters.optimizer.torch_state import TorchOptimizer

Shape = tuple[int, ...]


def parameter_orders(plan: Plan, model: Any = None) -> list[list[str]]:
    """The orders in which the parameters may have been given to the optimizer, the likeliest first.

    A module's own (`named_parameters`, ties once), and of it those that need a gradient; without a
    module that of the state dict, which is the same but for what it does not tell.
    """
    if model is not None:
        mapped = {row.key for row in plan.mapped}
        names: dict[int, list[str]] = {}  # a shared parameter has several
        parameters: dict[int, Any] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
            parameters[id(parameter)] = parameter
        named = [
            (next((name for name in its if name in mapped), its[0]), parameters[identity])
            for identity, its in names.items()
        ]
        orders = [
            [name for name, _ in named],
            [name for name, parameter in named if parameter.requires_grad],
        ]
        return orders if orders[0] != orders[1] else orders[:1]
    return [
        [
            row.key
            for row in plan.mapped
            if row.kind != "buffer"
            and not any(path.startswith(("batch_stats/", "buffers/")) for path in row.paths)
            and row.key.rpartition(".")[2] not in ("running_mean", "running_var")
        ]
    ]


def positions_by_key(
    optimizer: TorchOptimizer,
    shapes: Mapping[str, Shape],
    orders: Sequence[Sequence[str]],
    given: Sequence[str] | None = None,
) -> dict[str, int]:
    """Key → position in the optimizer's state.

    Args:
        optimizer: the state.
        shapes: torch shape of every parameter.
        orders: in which the parameters may have been given (`parameter_orders`).
        given: the order by the user's own word, group by group.

    Raises:
        OptimizerError: none fits the shapes of the moments, or groups fit in several ways.
    """
    names = [name for group in optimizer.groups for name in group.get("param_names", ())]
    positions = optimizer.positions
    if given is None and len(names) == len(positions):
        given = names  # torch 2.6 and later, where named_parameters() was given
    if given is not None:
        misfits = _misfits(optimizer, given, shapes)
        if misfits:
            raise _refusal(optimizer, misfits)
        return dict(zip(given, positions, strict=True))
    misfits = []
    for order in orders:
        if len(optimizer.groups) == 1:
            found = _misfits(optimizer, order, shapes)
            if not found:
                return dict(zip(order, positions, strict=True))
        else:
            ways = _partitions(optimizer, order, shapes)
            if len(ways) == 1:
                return ways[0]
            found = [_ambiguity(optimizer, order, len(ways))]
        misfits = misfits or found
    raise _refusal(optimizer, misfits)


def _misfits(
    optimizer: TorchOptimizer, order: Sequence[str], shapes: Mapping[str, Shape]
) -> list[str]:
    positions = optimizer.positions
    lines = []
    if len(order) != len(positions):
        lines.append(f"the optimizer has {len(positions)} parameters, the model {len(order)}")
    for key, position in zip(order, positions, strict=False):
        shape = moment_shape(optimizer, position)
        if key not in shapes:
            lines.append(f"{key} is no parameter that is converted")
        elif shape is not None and not _fits(shape, shapes[key]):
            lines.append(f"position {position} has moments of {shape}, {key} is {shapes[key]}")
    return lines


def moment_shape(optimizer: TorchOptimizer, position: int) -> Shape | None:
    """The shape that a parameter's moments say it has; None where they do not."""
    for name, value in optimizer.state.get(position, {}).items():
        if name in ("exp_avg", "exp_avg_sq", "momentum_buffer", "variance") and value is not None:
            return tuple(value.shape)
        if name == "row_var" and value is not None:
            return (*value.shape[:-1], -1)
        if name == "exp_avg_sq_row":
            return (*value.shape, -1)
    return None


def _fits(moment: Shape, shape: Shape) -> bool:
    return len(moment) == len(shape) and all(
        one in (-1, other) for one, other in zip(moment, shape, strict=True)
    )


def _partitions(
    optimizer: TorchOptimizer, order: Sequence[str], shapes: Mapping[str, Shape]
) -> list[dict[str, int]]:
    """The ways, two at most, to share the parameters among the groups, each group in the order."""
    groups = [list(group["params"]) for group in optimizer.groups]
    if sum(map(len, groups)) != len(order) or not set(order) <= set(shapes):
        return []
    # How far each group is filled → the ways to have come there, two at most.
    ways: dict[tuple[int, ...], list[tuple[Any, ...]]] = {(0,) * len(groups): [()]}
    for key in order:
        following: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}
        for filled, made in ways.items():
            for index, group in enumerate(groups):
                if filled[index] == len(group):
                    continue
                shape = moment_shape(optimizer, group[filled[index]])
                if shape is not None and not _fits(shape, shapes[key]):
                    continue
                then = (*filled[:index], filled[index] + 1, *filled[index + 1 :])
                extended = [(way, index) for way in made]
                following[then] = (following.get(then, []) + extended)[:2]
        ways = following
    ended = ways.get(tuple(map(len, groups)), [])
    return [_positions(way, order, groups) for way in ended]


def _positions(
    way: tuple[Any, ...], order: Sequence[str], groups: Sequence[Sequence[int]]
) -> dict[str, int]:
    chosen: list[int] = []
    while way:
        way, index = way
        chosen.append(index)
    rest = [iter(group) for group in groups]
    return {key: next(rest[index]) for key, index in zip(order, reversed(chosen), strict=True)}


def _ambiguity(optimizer: TorchOptimizer, order: Sequence[str], ways: int) -> str:
    sizes = ", ".join(str(len(group["params"])) for group in optimizer.groups)
    if ways:
        return f"its groups of {sizes} parameters fit the model in several ways"
    return f"its groups of {sizes} parameters do not fit the model's {len(order)}"


def _refusal(optimizer: TorchOptimizer, misfits: Sequence[str]) -> OptimizerError:
    shown = ", ".join(misfits[:8])
    more = f" and {len(misfits) - 8} more" if len(misfits) > 8 else ""
    return OptimizerError(
        f"{optimizer.source}: which parameter each position is, is not known: {shown}{more}",
        "give the names in the order in which the script gave them to the optimizer, group by "
        "group (frozen ones that it left out are left out)",
    )


def parameter_shapes(plan: Plan) -> dict[str, Shape]:
    """The torch shape of every tensor that is converted."""
    return {
        row.key: row.shape
        for row in plan.rows
        if row.outcome is Outcome.MAPPED and row.shape is not None
    }
