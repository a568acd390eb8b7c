"""Torch's weights in a Flax model that exists: found by running both, and proven by running both again."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from converters.back.safetensors_output import write_leaves
from converters.checkpoint import open_checkpoint
from converters.checkpoint.pytree import PytreeLeaf
from converters.checkpoint.reader import TensorInfo
from converters.conversion import convert
from converters.errors import MisfitError, RefusedKeysError
from converters.inference.groups import make_groups
from converters.layers.layout import UNCHANGED
from converters.layers.text import parse_join, parse_layout, parse_part
from converters.mapping import Outcome, Plan
from converters.mapping.file import save_mapping
from converters.mapping.leaves import Piece, PlannedLeaf
from converters.mapping.module_tree import BUFFER_KIND
from converters.mapping.paths import Api
from converters.planning import planned
from converters.request import PlanOptions
from converters.target.arrange import Fitted, StackedLayout, TargetArray, arranged
from migrate.counts import many
from migrate.parity.dump.dump import Dump
from migrate.parity.fitting.outputs import compare_outputs
from migrate.parity.fitting.results import Fit
from migrate.parity.fitting.sources import EXACT, Sources
from migrate.parity.fitting.stirred import stirred
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.fitting import Difference, Found, Made
from migrate.parity.ground.settings import TRUTH, Settings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides import protocol
from migrate.parity.sides.references import narrower
from migrate.parity.sides.side import Side

Array = np.ndarray[Any, Any]
# So many inputs prove it.
_INPUTS = 2
EVIDENCE = "fitted to the target by running both"


def fit(
    torch: Side,
    flax: Side,
    inputs: InputSet,
    settings: Settings,
    work: Path,
    mapping: Path,
    *,
    drop: Sequence[str] = (),
    example: Sequence[tuple[int, ...]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Find which weight of torch's belongs where in the Flax model, and write it as a mapping file.

    Both run with torch's weights and noise on them: what a model keeps at its first values (a scale of
    ones, a gate of zeros) would hide whether it is in the right place. Torch gets its own back.

    Args:
        torch, flax: the sides.
        inputs: that both take.
        settings: how the Flax side is given them.
        work: a folder for what is passed.
        mapping: the file to write.
        drop: regular expressions of torch's keys that the Flax model has no use for.
        example: the shapes of the inputs, if they are images.
        progress: told what is being done.

    Raises:
        MisfitError: what has no place on either side; all of it.
        RefusedKeysError: layers of torch that nobody knows in Flax.
        ParityError: a model cannot run, or gives something else each time.
    """
    require_model(flax)
    work.mkdir(parents=True, exist_ok=True)
    api: Api = "nnx" if flax.kind == "nnx" else "linen"
    own, state, rules = (
        work / name for name in ("own.safetensors", "state.safetensors", "usual.yaml")
    )
    torch.ask(protocol.SaveWeights(own))
    usual = protocol.Convert(api, own, work / "usual.safetensors", None, None, rules, (), example)
    notes = torch.ask(usual)
    plan = _plan(own, rules)
    arrays = _arrays(own)
    fixed = _buffers(plan) | _tables(arrays, drop)
    write_leaves(state, _leaves(stirred(arrays, _tied(plan), fixed)), {}, overwrite=True)
    numbers = tuple(range(min(_INPUTS, inputs.count)))
    try:
        torch.ask(protocol.LoadWeights(state))
        progress("running the torch model in float64")
        truth, plain = work / "torch-layers", work / "torch-outputs"
        _capture_truth(torch, inputs, truth)
        torch.ask(protocol.Capture(TRUTH, inputs, plain, layers=False, numbers=numbers))
        _require_same(truth, plain)
        progress("following the Flax model, layer by layer")
        exact = dataclasses.replace(settings, dtype="float64", device="cpu", compiled=False)
        found = flax.ask(protocol.FindWeights(exact, inputs, truth, state, rules))
        done = _arranged(plan, found, Sources(Dump(truth), plan, _unread), drop)
        save_mapping(done.plan, mapping, api, overwrite=True)
        progress("running both with the weights fitted")
        fitted = work / "fitted.safetensors"
        convert(state, output=fitted, overwrite=True, mapping=mapping)
        flax.ask(protocol.LoadWeights(fitted))
        mine = work / "flax-outputs"
        wide = bool(found.made) or _only_rounding(found)
        how = dataclasses.replace(exact, wide=wide)
        flax.ask(protocol.Capture(how, inputs, mine, layers=False, numbers=numbers))
        idle = flax.ask(protocol.Idle(exact, inputs, found.unsure)) if found.unsure else ()
    finally:
        torch.ask(protocol.LoadWeights(own))
    return _verdict(done, found, Dump(plain), Dump(mine), idle, numbers, (*notes, *done.notes))


def require_model(flax: Side) -> None:
    """Refuse what is no model of JAX's.

    Raises:
        ParityError: it is none.
    """
    if flax.kind not in ("linen", "nnx", "jax"):
        raise ParityError(
            "the target is a torch module, not a Flax model",
            "name a linen or nnx module, or a function of (params, *inputs) with --target-apply",
        )


def _capture_truth(torch: Side, inputs: InputSet, truth: Path) -> None:
    """Record torch's layers in float64.

    Raises:
        ParityError: it does not run, or not in float64.
    """
    torch.ask(protocol.Capture(TRUTH, inputs, truth, numbers=(0,)))
    if said := narrower(Dump(truth).notes):
        raise ParityError(
            f"{said}: the model does not run in float64, which the comparison needs",
            "let the factory return a model that computes in the dtype of its inputs",
        )


def _plan(own: Path, rules: Path) -> Plan:
    """Every key with its usual place.

    Raises:
        RefusedKeysError: what torch computes from several tensors has none that a mapping can say.
    """
    plan = planned(own, PlanOptions(mapping=rules)).plan
    if plan.refused:
        raise RefusedKeysError(
            plan.checkpoint,
            len(plan.rows),
            plan.refused,
            "remove weight_norm and similar hooks from the model (torch.nn.utils.remove_weight_norm)",
        )
    return plan


def _tied(plan: Plan) -> list[list[str]]:
    """Keys of one tensor, group by group."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for row in plan.rows:
        if row.targets:
            groups[row.targets].append(row.key)
    return [keys for keys in groups.values() if len(keys) > 1]


def _buffers(plan: Plan) -> set[str]:
    """What a model may compute itself: tables of positions, masks."""
    return {row.key for row in plan.rows if row.kind == BUFFER_KIND}


def _tables(arrays: Mapping[str, Array], drop: Sequence[str]) -> set[str]:
    """What the user left out and the target may compute itself: positions, which noise would change.

    What is constant is no table: noise shows whether the target really has no use for it.
    """
    return {
        key
        for key, array in arrays.items()
        if any(re.search(pattern, key) for pattern in drop)
        and array.size
        and (array != array.flat[0]).any()
    }


def _arrays(file: Path) -> dict[str, Array]:
    stored = open_checkpoint(file)
    return {key: stored.read(key) for key in stored.infos}


def _leaves(arrays: Mapping[str, Array]) -> list[PytreeLeaf]:
    return [
        PytreeLeaf(
            key, TensorInfo(array.shape, array.dtype.name), functools.partial(np.asarray, array)
        )
        for key, array in arrays.items()
    ]


def _unread(key: str) -> Array:
    raise AssertionError(key)


def _outputs(dump: Dump, number: int) -> dict[str, Array]:
    return {ref.path: dump.tensor(ref) for ref in dump.outputs[number]}


def _require_same(layers: Path, plain: Path) -> None:
    """The torch model gives the same twice.

    Raises:
        ParityError: it does not.
    """
    again = compare_outputs(_outputs(Dump(layers), 0), _outputs(Dump(plain), 0))
    if again.apart is None or again.apart > EXACT:
        raise ParityError(
            "the torch model returns different values for the same input in evaluation mode",
            "seed its random numbers, or remove them from the forward pass",
        )


def _arranged(plan: Plan, found: Found, sources: Sources, drop: Sequence[str]) -> Fitted:
    """The plan with the arrays of the Flax model.

    Raises:
        MisfitError: something has no place, on either side.
    """
    dropped = {
        row.key: pattern
        for row in plan.rows
        for pattern in drop
        if row.outcome in (Outcome.MAPPED, Outcome.TIED) and re.search(pattern, row.key)
    }
    sizes = {
        text: path
        for text in found.unplaced
        if (path := text.partition(" ")[0]) in sources.leaves and path in found.unused
    }
    lacking = [
        f"extra: no layer of the target is {path}, made of {', '.join(keys)}"
        for path in found.unused
        if (keys := [p.key for p in sources.leaves[path].pieces if p.key not in dropped])
        and "tied:" not in path
        and path not in sizes.values()
    ]
    problems = [
        f"size: {text}, torch's {', '.join(p.key for p in leaf.pieces)} {leaf.info.shape}"
        for text, path in sizes.items()
        for leaf in [sources.leaves[path]]
    ]
    problems += [
        f"missing: no layer of torch's is {text}" for text in found.unplaced if text not in sizes
    ]
    problems += [f"{name} runs inside of vmap, where no layer is seen" for name in found.unseen]
    problems += lacking
    infos = {row.key: TensorInfo(row.shape or (), row.dtype or "") for row in plan.rows}
    if problems:
        normed = [
            f"{path}.weight is made of several tensors by torch's {group.normed}"
            for path, group in make_groups(infos).items()
            if group.normed
        ]
        if len(sizes) < len(problems):  # of other sizes no outputs can agree
            problems += [f"the models part {one}" for one in map(str, found.differences[:3])]
        raise MisfitError(
            f"{many(len(sizes), 'weight')} of the two models differ in size"
            if len(sizes) == len(problems)
            else f"{found.layers} layers of the target match torch layers; the others have no match",
            [*normed, *problems],
            "have the model's factory take them off (torch.nn.utils.parametrize.remove_parametrizations, "
            "torch.nn.utils.remove_weight_norm), and give a checkpoint of that model"
            if normed
            else "make the models alike"
            + ", or drop keys that the target has no use for (--drop)"
            * (len(sizes) < len(problems)),
        )
    placed = {
        one.name: TargetArray(
            tuple(piece.source for piece in one.pieces),
            StackedLayout(parse_layout(one.pieces[0].layout), one.axis),
        )
        for one in found.arrays
    }
    leaves = dict(sources.leaves)
    for made in found.made:
        placed[made.name] = TargetArray((f"{made.name}#made",), StackedLayout(UNCHANGED))
        leaves[f"{made.name}#made"] = _leaf(made, infos)
    leaves = _by_owners(plan, placed, leaves)
    shapes = {
        name: TensorInfo(
            tuple(
                _shape(
                    [leaves[source].info.shape for source in one.sources],
                    one.way,
                )
            ),
            leaves[one.sources[0]].info.dtype,
        )
        for name, one in placed.items()
    }
    return arranged(plan, placed, leaves, shapes, dropped, EVIDENCE)


def _by_owners(
    plan: Plan, placed: Mapping[str, TargetArray], leaves: Mapping[str, PlannedLeaf]
) -> dict[str, PlannedLeaf]:
    """The arrays, those of a shared tensor by the first of its names where that has no place itself."""
    have = {
        piece.key for one in placed.values() for at in one.sources for piece in leaves[at].pieces
    }
    first = {row.targets: row.key for row in plan.mapped}
    renamed: dict[str, str] = {}
    for row in plan.of(Outcome.TIED):
        owner = first[row.targets]
        if row.key in have and owner not in have and owner not in renamed.values():
            renamed[row.key] = owner
    return {
        path: dataclasses.replace(
            leaf,
            pieces=tuple(
                dataclasses.replace(one, key=renamed.get(one.key, one.key)) for one in leaf.pieces
            ),
        )
        for path, leaf in leaves.items()
    }


def _leaf(made: Made, infos: Mapping[str, TensorInfo]) -> PlannedLeaf:
    """An array that was found element by element."""
    pieces = tuple(
        Piece(one.key, parse_layout(one.layout), parse_part(one.part) if one.part else None)
        for one in made.pieces
    )
    join = parse_join(made.join)
    shape = join.shape([piece.shape(infos[piece.key].shape) for piece in pieces])
    return PlannedLeaf(made.name, TensorInfo(shape, infos[pieces[0].key].dtype), pieces, join)


def _shape(shapes: Sequence[tuple[int, ...]], way: StackedLayout) -> tuple[int, ...]:
    laid = way.layout.shape(shapes[0])
    return laid if way.axis is None else (*laid[: way.axis], len(shapes), *laid[way.axis :])


def _verdict(
    done: Fitted,
    found: Found,
    truth: Dump,
    mine: Dump,
    idle: Sequence[str],
    numbers: Sequence[int],
    notes: Sequence[str],
) -> Fit:
    apart: float | None = 0.0
    alone: tuple[str, ...] = ()
    for number in numbers:
        one = compare_outputs(_outputs(truth, number), _outputs(mine, number))
        alone = one.alone
        apart = None if apart is None or one.apart is None else max(apart, one.apart)
    differences, said = found.differences, []
    if _only_rounding(found) and apart is not None and apart <= EXACT:
        said.append(
            f"the target computes in float32 in places (first: {differences[0]}): float64 there, too"
        )
        differences = ()
    if not differences and (apart is None or apart > EXACT):
        differences = (Difference("", "", "", "", False, np.inf if apart is None else apart),)
    said += [f"{text} is not compared: the other model gives nothing like it" for text in alone]
    if found.untried:
        said.append("several layers look alike, and not all of their orders were tried")
    if truth.facts.notes:
        said += truth.facts.notes
    return Fit(
        done.plan,
        differences,
        apart,
        len(numbers),
        found.layers,
        found.passes,
        bool(differences) and _only_rounding(found),
        _whole_layers(idle, found.unsure),
        (*notes, *said),
        tuple(filter(None, (found.heads, _folded(done.plan)))),
    )


def _folded(plan: Plan) -> str:
    """Into which weights a number is folded that torch has in its code, or the other way round; "": none."""
    its = [
        (leaf.path, piece.layout)
        for leaf in plan.leaves
        for piece in leaf.pieces[:1]
        if piece.layout.computes
    ]
    more = f" and {len(its) - 1} more" if len(its) > 1 else ""
    return f"a number folded into {its[0][0]} ({its[0][1]}){more}" if its else ""


def _only_rounding(found: Found) -> bool:
    """Whether all that differs is what float32 rounds, in which the model computes in places."""
    rounding = all(one.rounding for one in found.differences)
    return bool(found.differences) and found.single and rounding


def _whole_layers(idle: Sequence[str], unsure: Sequence[str]) -> tuple[str, ...]:
    """Those of which no array of the same layer has an influence (a key's bias never has one)."""
    moving = {name.rpartition("/")[0] for name in unsure if name not in idle}
    return tuple(name for name in idle if name.rpartition("/")[0] not in moving)
