"""Torch's weights in an existing Flax model: matched, then proven, by running both."""

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
from migrate.parity.fitting.sources import EXACT, TorchSources
from migrate.parity.fitting.stirred import stirred
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.fitting import AssembledArray, FittingResult, ModelDifference
from migrate.parity.ground.settings import TRUTH, SideSettings
from migrate.parity.inputs.set import InputSet
from migrate.parity.sides import protocol
from migrate.parity.sides.references import narrower
from migrate.parity.sides.side import ComparedSide

Array = np.ndarray[Any, Any]
# Number of inputs for the proof.
_INPUTS = 2
EVIDENCE = "fitted to the target by running both"


def fit(
    torch: ComparedSide,
    flax: ComparedSide,
    inputs: InputSet,
    settings: SideSettings,
    work: Path,
    mapping: Path,
    *,
    drop: Sequence[str] = (),
    example: Sequence[tuple[int, ...]] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Fit:
    """Find the place of each torch weight in the Flax model, and write a mapping file.

    Both run with torch's weights plus noise. Weights at their initial values (a scale of ones, a gate of
    zeros) would not show whether they are in the right place. Torch's own weights are restored.

    Args:
        torch, flax: the sides.
        inputs: inputs that both models take.
        settings: settings of the Flax side.
        work: a folder for the files that are passed.
        mapping: the file to write.
        drop: regular expressions of torch's keys that the Flax model has no use for.
        example: the shapes of the inputs, if they are images.
        progress: called with the step that begins.

    Raises:
        MisfitError: weights without a place on either side; all are listed.
        RefusedKeysError: layers of torch that have no Flax counterpart.
        ParityError: a model cannot run, or its outputs differ between runs.
    """
    require_model(flax)
    work.mkdir(parents=True, exist_ok=True)
    api: Api = "nnx" if flax.kind == "nnx" else "linen"
    own, state, rules = (
        work / name for name in ("own.safetensors", "state.safetensors", "usual.yaml")
    )
    torch.ask(protocol.SaveWeights(own))
    computed = work / "computed.safetensors"
    without = not torch.ask(protocol.SaveComputed(computed))
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
        findings = flax.ask(
            protocol.FindWeights(exact, inputs, truth, state, rules, None if without else computed)
        )
        done = _arranged(plan, findings, TorchSources(Dump(truth), plan, _unread), drop)
        save_mapping(done.plan, mapping, api, overwrite=True)
        progress("running both with the weights fitted")
        fitted = work / "fitted.safetensors"
        tables = _computed(findings, computed)
        convert(state, output=fitted, overwrite=True, mapping=mapping, extra=tables)
        flax.ask(protocol.LoadWeights(fitted))
        mine = work / "flax-outputs"
        wide = bool(findings.assembled) or _only_rounding(findings)
        how = dataclasses.replace(exact, wide=wide)
        flax.ask(protocol.Capture(how, inputs, mine, layers=False, numbers=numbers))
        idle = flax.ask(protocol.Idle(exact, inputs, findings.unsure)) if findings.unsure else ()
    finally:
        torch.ask(protocol.LoadWeights(own))
    said = (*notes, *done.notes, *_said_of(tables))
    verdict = _verdict(done, findings, Dump(plain), Dump(mine), idle, numbers, said)
    return dataclasses.replace(verdict, computed=tables)


def require_model(flax: ComparedSide) -> None:
    """Require a JAX model.

    Raises:
        ParityError: it is another object.
    """
    if flax.kind not in ("linen", "nnx", "jax"):
        raise ParityError(
            "the target is a torch module, not a Flax model",
            "name a linen or nnx module, or a function of (params, *inputs) with --target-apply",
        )


def _capture_truth(torch: ComparedSide, inputs: InputSet, truth: Path) -> None:
    """Record torch's layers in float64.

    Raises:
        ParityError: the model does not run, or not in float64.
    """
    torch.ask(protocol.Capture(TRUTH, inputs, truth, numbers=(0,)))
    if said := narrower(Dump(truth).notes):
        raise ParityError(
            f"{said}: the model does not run in float64, which the comparison needs",
            "let the factory return a model that computes in the dtype of its inputs",
        )


def _plan(own: Path, rules: Path) -> Plan:
    """Plan with the usual place of every key.

    Raises:
        RefusedKeysError: torch computes a weight from several tensors, which no mapping can express.
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
    """Groups of keys that share a tensor."""
    groups: dict[Any, list[str]] = defaultdict(list)
    for row in plan.rows:
        if row.targets:
            groups[row.targets].append(row.key)
    return [keys for keys in groups.values() if len(keys) > 1]


def _buffers(plan: Plan) -> set[str]:
    """Keys that a model may compute itself: tables of positions, masks."""
    return {row.key for row in plan.rows if row.kind == BUFFER_KIND}


def _tables(arrays: Mapping[str, Array], drop: Sequence[str]) -> set[str]:
    """Keys that the user left out and the target may compute itself: positions, which noise would change.

    A constant array is no table: noise shows whether the target really does not use it.
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


def _computed(findings: FittingResult, file: Path) -> dict[str, Array]:
    """Arrays of the target that both models compute: path → torch's value."""
    if not findings.computed:
        return {}
    arrays = _arrays(file)
    return {array.name: arrays[array.key] for array in findings.computed}


def _said_of(tables: Mapping[str, Array]) -> list[str]:
    """Note on the arrays of the target that both models compute."""
    if not tables:
        return []
    first = next(iter(tables))
    return [
        f"{many(len(tables), 'array')} of the target (first: {first}): torch does not save them; both models "
        "compute the same values"
    ]


def _unread(key: str) -> Array:
    raise AssertionError(key)


def _outputs(dump: Dump, number: int) -> dict[str, Array]:
    return {ref.path: dump.tensor(ref) for ref in dump.outputs[number]}


def _require_same(layers: Path, plain: Path) -> None:
    """Require that the torch model returns the same outputs twice.

    Raises:
        ParityError: the outputs differ.
    """
    again = compare_outputs(_outputs(Dump(layers), 0), _outputs(Dump(plain), 0))
    if again.apart is None or again.apart > EXACT:
        raise ParityError(
            "the torch model returns different values for the same input in evaluation mode",
            "seed its random numbers, or remove them from the forward pass",
        )


def _arranged(
    plan: Plan, findings: FittingResult, sources: TorchSources, drop: Sequence[str]
) -> Fitted:
    """Arrange the plan for the arrays of the Flax model.

    Raises:
        MisfitError: a weight has no place, on either side.
    """
    dropped = {
        row.key: pattern
        for row in plan.rows
        for pattern in drop
        if row.outcome in (Outcome.MAPPED, Outcome.TIED) and re.search(pattern, row.key)
    }
    sizes = {
        text: path
        for text in findings.unplaced
        if (path := text.partition(" ")[0]) in sources.leaves and path in findings.unused
    }
    lacking = [
        f"extra: no layer of the target is {path}, made of {', '.join(keys)}"
        for path in findings.unused
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
        f"missing: no layer of torch's is {text}" for text in findings.unplaced if text not in sizes
    ]
    problems += [f"{name} runs inside of vmap, where no layer is seen" for name in findings.unseen]
    problems += lacking
    infos = {row.key: TensorInfo(row.shape or (), row.dtype or "") for row in plan.rows}
    if problems:
        normed = [
            f"{path}.weight is made of several tensors by torch's {group.normed}"
            for path, group in make_groups(infos).items()
            if group.normed
        ]
        if len(sizes) < len(problems):  # with other sizes no outputs can agree
            problems += [
                f"the models part: {difference}"
                for difference in findings.differences
                if not difference.rounding
            ][:3]
        raise MisfitError(
            f"{many(len(sizes), 'weight')} of the two models differ in size"
            if len(sizes) == len(problems)
            else f"{findings.layers} layers of the target match torch layers; the others have no match",
            [*normed, *problems],
            "have the model's factory take them off (torch.nn.utils.parametrize.remove_parametrizations, "
            "torch.nn.utils.remove_weight_norm), and give a checkpoint of that model"
            if normed
            else "make the models alike"
            + ", or drop keys that the target has no use for (--drop)"
            * (len(sizes) < len(problems)),
        )
    placed = {
        array.name: TargetArray(
            tuple(piece.source for piece in array.pieces),
            StackedLayout(parse_layout(array.pieces[0].layout), array.axis),
        )
        for array in findings.arrays
    }
    leaves = dict(sources.leaves)
    for assembled in findings.assembled:
        placed[assembled.name] = TargetArray((f"{assembled.name}#made",), StackedLayout(UNCHANGED))
        leaves[f"{assembled.name}#made"] = _leaf(assembled, infos)
    leaves = _by_owners(plan, placed, leaves)
    shapes = {
        name: TensorInfo(
            tuple(
                _shape(
                    [leaves[source].info.shape for source in array.sources],
                    array.way,
                )
            ),
            leaves[array.sources[0]].info.dtype,
        )
        for name, array in placed.items()
    }
    return arranged(plan, placed, leaves, shapes, dropped, EVIDENCE)


def _by_owners(
    plan: Plan, placed: Mapping[str, TargetArray], leaves: Mapping[str, PlannedLeaf]
) -> dict[str, PlannedLeaf]:
    """Rename keys of shared tensors to the tensor's first name, where that has no place itself."""
    have = {
        piece.key
        for array in placed.values()
        for at in array.sources
        for piece in leaves[at].pieces
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
                dataclasses.replace(piece, key=renamed.get(piece.key, piece.key))
                for piece in leaf.pieces
            ),
        )
        for path, leaf in leaves.items()
    }


def _leaf(assembled: AssembledArray, infos: Mapping[str, TensorInfo]) -> PlannedLeaf:
    """Planned array that was matched element by element."""
    pieces = tuple(
        Piece(
            portion.key,
            parse_layout(portion.layout),
            parse_part(portion.part) if portion.part else None,
        )
        for portion in assembled.pieces
    )
    join = parse_join(assembled.join)
    shape = join.shape([piece.shape(infos[piece.key].shape) for piece in pieces])
    return PlannedLeaf(assembled.name, TensorInfo(shape, infos[pieces[0].key].dtype), pieces, join)


def _shape(shapes: Sequence[tuple[int, ...]], way: StackedLayout) -> tuple[int, ...]:
    laid = way.layout.shape(shapes[0])
    return laid if way.axis is None else (*laid[: way.axis], len(shapes), *laid[way.axis :])


def _verdict(
    done: Fitted,
    findings: FittingResult,
    truth: Dump,
    mine: Dump,
    idle: Sequence[str],
    numbers: Sequence[int],
    notes: Sequence[str],
) -> Fit:
    apart: float | None = 0.0
    alone: tuple[str, ...] = ()
    for number in numbers:
        compared = compare_outputs(_outputs(truth, number), _outputs(mine, number))
        alone = compared.alone
        apart = None if apart is None or compared.apart is None else max(apart, compared.apart)
    differences, said = findings.differences, []
    if _only_rounding(findings) and apart is not None and apart <= EXACT:
        said.append(
            f"the target computes in float32 in places (first: {differences[0]}): float64 there, too"
        )
        differences = ()
    if not differences and (apart is None or apart > EXACT):
        differences = (ModelDifference("", "", "", "", False, np.inf if apart is None else apart),)
    said += [f"{text} is not compared: the other model gives nothing like it" for text in alone]
    if findings.untried:
        said.append("several layers look alike, and not all of their orders were tried")
    if truth.facts.notes:
        said += truth.facts.notes
    return Fit(
        done.plan,
        differences,
        apart,
        len(numbers),
        findings.layers,
        findings.passes,
        bool(differences) and _only_rounding(findings),
        _whole_layers(idle, findings.unsure),
        (*notes, *said),
        tuple(filter(None, (findings.heads, _folded(done.plan)))),
    )


def _folded(plan: Plan) -> str:
    """Weights of the target that contain a number from torch's code, or the reverse; "": none."""
    its = [
        (leaf.path, piece.layout)
        for leaf in plan.leaves
        for piece in leaf.pieces[:1]
        if piece.layout.computes
    ]
    more = f" and {len(its) - 1} more" if len(its) > 1 else ""
    return f"a number folded into {its[0][0]} ({its[0][1]}){more}" if its else ""


def _only_rounding(findings: FittingResult) -> bool:
    """Whether float32 rounding explains all differences, because the model computes in float32 in places."""
    rounding = all(difference.rounding for difference in findings.differences)
    return bool(findings.differences) and findings.single and rounding


def _whole_layers(idle: Sequence[str], unsure: Sequence[str]) -> tuple[str, ...]:
    """Arrays whose whole layer has no influence (a key's bias never has any)."""
    moving = {name.rpartition("/")[0] for name in unsure if name not in idle}
    return tuple(name for name in idle if name.rpartition("/")[0] not in moving)
