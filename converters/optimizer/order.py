"""Assignment of parameters to the positions of an optimizer's state."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from converters.checkpoint.prefixes import clean
from converters.errors import DuplicateKeyError, OptimizerError
from converters.mapping import Outcome, Plan
from converters.optimizer.candidates import REGISTRATION, SORTED, Candidates
from converters.optimizer.torch_state import TorchOptimizer

Shape = tuple[int, ...]

_MOST_STATES = 500
_SHOWN = 8


def read_order(text: str) -> str | list[str]:
    """Parse `--optimizer-order`: "registration", "sorted", or the names in a file.

    The file has one name per line, or is JSON: a list of names, or one list of names per group.

    Raises:
        OptimizerError: the file is missing or holds no names.
    """
    if text in (REGISTRATION, SORTED):
        return text
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise OptimizerError(
            f"the order of the optimizer's parameters cannot be read from {text}: {reason}",
            "pass registration, sorted, or a file with one name per line",
        ) from None
    names = _names_in(path, content)
    if not names:
        raise OptimizerError(f"{text} holds no names", "write a parameter's name on each line")
    return names


def _names_in(path: Path, content: str) -> list[str]:
    if not content.lstrip().startswith("["):
        lines = (line.partition("#")[0].strip() for line in content.splitlines())
        return [line for line in lines if line]
    try:
        listed = json.loads(content)
    except ValueError as error:
        raise OptimizerError(f"{path} is not JSON: {error}", "write a list of names") from None
    names = [name for item in listed for name in (item if isinstance(item, list) else [item])]
    if not all(isinstance(name, str) for name in names):
        raise OptimizerError(
            f"{path} holds something that is not a name",
            "write a list of names, or one for each group",
        )
    return names


def positions_by_key(
    optimizer: TorchOptimizer,
    shapes: Mapping[str, Shape],
    known: Candidates,
    order: Sequence[str] | str | None = None,
) -> dict[str, int]:
    """Return key → position in the optimizer's state.

    Args:
        optimizer: the state.
        shapes: the torch shape of every parameter.
        known: the known facts about the order (`converters.optimizer.candidates`).
        order: the user's order: the names, group by group, or "registration" or "sorted" for the
            order of each group.

    Raises:
        OptimizerError: no order fits the shapes of the moments, or several orders fit that differ
            in more than parameters with equal states.
    """
    if order is None:
        order = optimizer.parameter_names
    if order is not None and not isinstance(order, str):
        return _by_names(optimizer, shapes, known, order)
    if isinstance(order, str):
        orders = known.named(order)
        if not orders:
            raise _unordered(optimizer)
    else:
        orders = known.orders(shapes, len(optimizer.groups))
    fitting: list[tuple[str, dict[str, int]]] = []
    misfits: list[str] = []
    for candidate in orders:
        ways, reasons = _ways(optimizer, candidate.keys, shapes)
        misfits = misfits or reasons
        fitting += [(candidate.name, way) for way in ways]
        if len(ways) > 1:
            break  # ambiguous in itself: further orders decide nothing
    if not fitting:
        raise _refusal(optimizer, *_listed(misfits))
    first = fitting[0][1]
    if order is None and len(optimizer.groups) > 1:
        fitting += _group_by_group(
            optimizer, first, [candidate.keys for candidate in orders], shapes
        )
    others = [(name, way) for name, way in fitting if not _same(optimizer, first, way)]
    decided = known.registered or order is not None
    if not decided and not _decided_by_shapes(optimizer, shapes, first):
        raise _unordered(optimizer)
    if others:
        raise _several(optimizer, fitting, others[0], order)
    return first


def _by_names(
    optimizer: TorchOptimizer, shapes: Mapping[str, Shape], known: Candidates, names: Sequence[str]
) -> dict[str, int]:
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        raise _refusal(optimizer, *_listed([f"{name} is named twice" for name in repeated]))
    try:
        cleaned = clean(names, [*shapes, *known.aliases]).names
    except DuplicateKeyError as error:
        raise _refusal(optimizer, error.what) from None
    keys = [known.aliases.get(cleaned[name], cleaned[name]) for name in names]
    repeated = [name for name in dict.fromkeys(keys) if keys.count(name) > 1]
    misfits = [f"{name} is named twice, by names that it shares" for name in repeated]
    misfits = misfits or _misfits(optimizer, keys, shapes)
    if misfits:
        raise _refusal(optimizer, *_listed(misfits))
    return dict(zip(keys, optimizer.positions, strict=True))


def _ways(
    optimizer: TorchOptimizer, order: Sequence[str], shapes: Mapping[str, Shape]
) -> tuple[list[dict[str, int]], list[str]]:
    """Return the positions that an order allows, and the reasons if there are none."""
    if len(optimizer.groups) == 1:
        misfits = _misfits(optimizer, order, shapes)
        return ([] if misfits else [dict(zip(order, optimizer.positions, strict=True))]), misfits
    ways = _partitions(optimizer, order, shapes)
    sizes = ", ".join(str(len(group["params"])) for group in optimizer.groups)
    reason = f"its groups of {sizes} parameters do not fit the model's {len(order)}"
    return ways, [] if ways else [reason]


def _group_by_group(
    optimizer: TorchOptimizer,
    way: Mapping[str, int],
    orders: Sequence[Sequence[str]],
    shapes: Mapping[str, Shape],
) -> list[tuple[str, dict[str, int]]]:
    """Return the assignments in which a single group has another order than the others."""
    ways = []
    for number, group in enumerate(optimizer.groups):
        positions = list(group["params"])
        members = {key for key, position in way.items() if position in positions}
        within = {tuple(key for key in order if key in members) for order in orders}
        for keys in sorted(within):
            pairs = list(zip(keys, positions, strict=False))
            fits = len(keys) == len(positions) and all(
                (shape := moment_shape(optimizer, position)) is None or _fits(shape, shapes[key])
                for key, position in pairs
            )
            other = {**way, **dict(pairs)}
            if fits and not _same(optimizer, way, other):
                ways.append((f"another one in group {number}", other))
                break
    return ways


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
    """Return the shape of a parameter according to its moments; None without any, -1 for an unknown
    side."""
    entries = optimizer.state.get(position, {})
    for name in ("exp_avg", "exp_avg_sq", "momentum_buffer", "variance"):
        if entries.get(name) is not None:
            return tuple(entries[name].shape)
    row, column = entries.get("row_var"), entries.get("col_var")
    if row is not None:
        return (*row.shape[:-1], -1 if column is None else column.shape[-1])
    row, column = entries.get("exp_avg_sq_row"), entries.get("exp_avg_sq_col")
    if row is not None:
        return (*row.shape, -1 if column is None else column.shape[-1])
    return None


def _fits(moment: Shape, shape: Shape) -> bool:
    return len(moment) == len(shape) and all(
        side in (-1, other) for side, other in zip(moment, shape, strict=True)
    )


def _partitions(
    optimizer: TorchOptimizer, order: Sequence[str], shapes: Mapping[str, Shape]
) -> list[dict[str, int]]:
    """Return up to two different ways to divide the parameters among the groups, each in the order."""
    groups = [list(group["params"]) for group in optimizer.groups]
    if sum(map(len, groups)) != len(order) or not set(order) <= set(shapes):
        return []
    # Fill level of each group → the ways to reach it, at most two.
    ways: dict[tuple[int, ...], list[tuple[Any, ...]]] = {(0,) * len(groups): [()]}
    for key in order:
        following: dict[tuple[int, ...], list[tuple[Any, ...]]] = {}
        for filled, paths in ways.items():
            for index, group in enumerate(groups):
                if filled[index] == len(group):
                    continue
                position = group[filled[index]]
                shape = moment_shape(optimizer, position)
                if shape is not None and not _fits(shape, shapes[key]):
                    continue
                then = (*filled[:index], filled[index] + 1, *filled[index + 1 :])
                kept = following.setdefault(then, [])
                for path in paths:
                    if len(kept) < 2 and not any(
                        _same_path(optimizer, (path, position), other) for other in kept
                    ):
                        kept.append((path, position))
        if len(following) > _MOST_STATES:
            raise _refusal(
                optimizer,
                f"its {len(groups)} groups fit the model in more ways than can be tried",
            )
        ways = following
    ended = ways.get(tuple(map(len, groups)), [])
    return [dict(zip(order, _positions(path), strict=True)) for path in ended]


def _positions(path: tuple[Any, ...]) -> list[int]:
    chosen: list[int] = []
    while path:
        path, position = path
        chosen.append(position)
    return chosen[::-1]


def _same_path(optimizer: TorchOptimizer, first: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    while first is not other:
        if not _indistinguishable(optimizer, first[1], other[1]):
            return False
        first, other = first[0], other[0]
    return True


def _same(optimizer: TorchOptimizer, first: Mapping[str, int], other: Mapping[str, int]) -> bool:
    """Whether two assignments give every parameter the same state."""
    return first.keys() == other.keys() and all(
        _indistinguishable(optimizer, position, other[key]) for key, position in first.items()
    )


def _indistinguishable(optimizer: TorchOptimizer, position: int, other: int) -> bool:
    if position == other:
        return True
    first, second = optimizer.group_of(position), optimizer.group_of(other)
    if first != second and _options(optimizer, first) != _options(optimizer, second):
        return False
    state, rival = optimizer.state.get(position, {}), optimizer.state.get(other, {})
    return state.keys() == rival.keys() and all(
        _equal(value, rival[name]) for name, value in state.items()
    )


def _options(optimizer: TorchOptimizer, group: int) -> dict[str, Any]:
    options = optimizer.groups[group]
    return {k: repr(v) for k, v in options.items() if k not in ("params", "param_names")}


def _equal(first: Any, other: Any) -> bool:
    if not hasattr(first, "shape") or not hasattr(other, "shape"):
        return bool(type(first) is type(other) and first == other)
    return bool(
        first.shape == other.shape and first.dtype == other.dtype and (first == other).all()
    )


def _decided_by_shapes(
    optimizer: TorchOptimizer, shapes: Mapping[str, Shape], way: Mapping[str, int]
) -> bool:
    """Whether each position's shape belongs to a single parameter, or to parameters with equal states."""
    for position in optimizer.positions:
        shape = moment_shape(optimizer, position)
        rivals = [p for key, p in way.items() if shape is None or _fits(shape, shapes[key])]
        if not all(_indistinguishable(optimizer, position, rival) for rival in rivals):
            return False
    return True


def _several(
    optimizer: TorchOptimizer,
    fitting: Sequence[tuple[str, Mapping[str, int]]],
    other: tuple[str, Mapping[str, int]],
    order: str | None,
) -> OptimizerError:
    """Return the error that names the fitting orders, and a parameter on which they disagree."""
    way = fitting[0][1]
    key = next(
        key
        for key, at in way.items()
        if not _indistinguishable(optimizer, at, other[1].get(key, -1))
    )
    rival = next((name for name, at in other[1].items() if at == way[key]), "another")
    different: list[tuple[str, Mapping[str, int]]] = []
    for label, assigned in fitting:
        if not any(_same(optimizer, assigned, kept) for _, kept in different):
            different.append((label, assigned))
    names = list(dict.fromkeys(label for label, _ in different))
    shown = ", ".join(f'"{label}"' for label in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    reason = f"these orders fit the shapes: {shown}{more}"
    if len(names) < len(different):
        sizes = ", ".join(str(len(group["params"])) for group in optimizer.groups)
        reason += f"; its groups of {sizes} parameters fit the model in several ways"
    example = f"position {way[key]} is {key} or {rival}"
    return _refusal(optimizer, reason, example=example, decided=order)


def _unordered(optimizer: TorchOptimizer) -> OptimizerError:
    return _refusal(
        optimizer,
        "the checkpoint does not keep the order in which its module registers parameters, and several "
        "have the same shape",
        "name the module, --model pkg.module:factory, or ",
    )


def _listed(misfits: Sequence[str]) -> tuple[str]:
    more = f" and {len(misfits) - _SHOWN} more" if len(misfits) > _SHOWN else ""
    return (f"{', '.join(misfits[:_SHOWN])}{more}",)


def _refusal(
    optimizer: TorchOptimizer,
    reason: str,
    before: str = "",
    *,
    example: str = "",
    decided: str | None = None,
) -> OptimizerError:
    words = "" if decided else ", registration or sorted"
    example = f"; {example}" if example else ""
    return OptimizerError(
        f"{optimizer.source}: the order of the parameters is unknown: {reason}{example}",
        f"{before}give the names in the order in which the script gave them to the optimizer, group by "
        f"group (without frozen ones that it left out): --optimizer-order FILE{words}",
    )


def parameter_shapes(plan: Plan) -> dict[str, Shape]:
    """Return the torch shape of every tensor that is converted."""
    return {
        row.key: row.shape
        for row in plan.rows
        if row.outcome is Outcome.MAPPED and row.shape is not None
    }
