"""A model recorded with the inputs that a caller may leave out, and without them."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree

from converters.graph.ir import Call, Free, Graph, Op
from converters.graph.merging.merged import Both, both_modes
from converters.graph.merging.options import OptionError, merged, outcome, restricted
from converters.graph.recording.group import group
from converters.graph.recording.guards import Bound
from converters.graph.recording.masks import broadcast_masks
from converters.graph.recording.trace import GraphError, Trace, plain, trace
from converters.graph.writing.patterns import plain as simplified
from converters.slow_paths import slow_paths

Inputs = Mapping[str, torch.Tensor]
# Inputs of transformers' text models besides token ids: name → the input whose shape it has.
_BESIDE_TOKENS = {
    "attention_mask": "input_ids",
    "decoder_attention_mask": "decoder_input_ids",
    "position_ids": "input_ids",
}
_POSITIONS = ("position_ids",)


# Recordings without optional inputs, by the inputs that are left and by whether they were decomposed.
# Attempts with fewer of the optional inputs have them in common.
_Bare = dict[tuple[tuple[str, ...], bool], Trace]


@dataclass(frozen=True)
class Options:
    """The inputs of a model that a caller may leave out.

    Attributes:
        names: the inputs, in the order of the model's arguments.
        bare: the recording without any of them.
        bounds: conditions on free sizes under which both recordings hold.
        needs: input → another input that it requires.
        refused: inputs of transformers' text models that the port does not take, each with the reason.
    """

    names: tuple[str, ...] = ()
    bare: Graph | None = None
    bounds: tuple[Bound, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """Recordings of a model in both modes, and its optional inputs."""

    both: Both
    options: Options = Options()


def recorded(module: torch.nn.Module, inputs: Inputs, same_dtype: str = "") -> Recorded:
    """Record a model with these inputs, and with those that a text model takes besides its tokens.

    Args:
        module: the model.
        inputs: its inputs.
        same_dtype: as in `trace`.

    Raises:
        GraphError: the model cannot be recorded with the inputs.
    """
    module.eval()
    optional = _optional(module, inputs)
    added = _beside_tokens(module, inputs)
    refused: dict[str, str] = {}
    bare: _Bare = {}
    while optional or added:
        every = {**inputs, **added}
        names = tuple(name for name in _arguments(module) if name in {*optional, *added})
        try:
            return _both(module, every, names, refused, same_dtype, bare)
        except (OptionError, GraphError) as error:
            why = error.what if isinstance(error, GraphError) else str(error)
        given_up = next((name for name in _POSITIONS if name in added and len(names) > 1), "")
        left = [given_up] if given_up else list(added) or optional
        refused |= dict.fromkeys(left, why)
        added = {name: tensor for name, tensor in added.items() if name not in left}
        optional = [name for name in optional if name not in left]
    both = recorded_as_given(module, inputs, same_dtype, bare.get((tuple(inputs), False)))
    return Recorded(both, Options(refused=refused))


def recorded_as_given(
    module: torch.nn.Module, inputs: Inputs, same_dtype: str, recording: Trace | None = None
) -> Both:
    """Record a model with exactly these inputs, in both modes.

    Args:
        module: the model.
        inputs: its inputs.
        same_dtype: as in `trace`.
        recording: its recording in evaluation with these inputs, if there is one.

    Raises:
        GraphError: the model cannot be recorded.
    """
    if recording is None:
        with broadcast_masks():
            recording = trace(module, inputs, same_dtype=same_dtype)
    return both_modes(module, inputs, recording, group(recording))


def _both(
    module: torch.nn.Module,
    every: Inputs,
    names: Sequence[str],
    refused: Mapping[str, str],
    same_dtype: str,
    known: _Bare,
) -> Recorded:
    """Record a model with all of its inputs, and without the optional inputs.

    Raises:
        OptionError: the recordings cannot be one source.
        GraphError: one of the recordings fails.
    """

    def without_options(decomposed: bool = False) -> Trace:
        key = tuple(name for name in every if name not in names), decomposed
        if key not in known:
            known[key] = _without(
                module, every, names, same_dtype=same_dtype, decomposed=decomposed
            )
        return known[key]

    bare = without_options()
    full = _without(module, every, (), names, same_dtype)
    if full.decomposed and not bare.decomposed:
        bare = without_options(decomposed=True)
    elif bare.decomposed and not full.decomposed:
        full = _without(module, every, (), names, same_dtype, decomposed=True)
    if full.fixed or full.same_dtype != bare.same_dtype or full.notes != bare.notes:
        raise OptionError("the model is recorded in another way with it")
    graph = group(full)
    graph = with_sides(graph, _sides(graph, names))
    whole = _simplified(module, full, graph)
    small = _simplified(module, bare, group(bare))
    both_graphs = merged(whole, small)
    needs: dict[str, str] = {}
    if len(names) > 1:
        needs = _needs(module, every, names, both_graphs, same_dtype, full.decomposed)
    for some in (names, ()):
        wanted = whole if some else small
        if outcome(restricted(both_graphs, some)) != outcome(wanted):
            raise OptionError("the recordings are not the same where they should be")
    both = both_modes(module, every, full, graph, _masks(every, names))
    both = replace(both, graph=with_sides(both.graph, _sides(both.graph, names)))
    bounds = tuple(dict.fromkeys((*bare.bounds, *_bounds(full, names))))
    return Recorded(both, Options(tuple(names), small, bounds, needs, dict(refused)))


def _masks(every: Inputs, names: Sequence[str]) -> list[str]:
    """Optional inputs of the rank of images: an input that a model can do without is a mask."""
    return [name for name in names if every[name].dim() > 3]


def _without(
    module: torch.nn.Module,
    every: Inputs,
    names: Sequence[str],
    kept: Sequence[str] = (),
    same_dtype: str = "",
    decomposed: bool = False,
) -> Trace:
    kept_inputs = {name: tensor for name, tensor in every.items() if name not in names}
    with broadcast_masks():
        return trace(
            module,
            kept_inputs,
            decomposed=decomposed,
            masks=_masks(kept_inputs, kept),
            same_dtype=same_dtype,
        )


def _simplified(module: torch.nn.Module, recording: Trace, graph: Graph) -> Graph:
    """The simplified graph of a recording."""
    modules = dict(module.named_modules(remove_duplicate=False))
    return simplified(graph, modules, tensors(recording) | dict(graph.constants))


def tensors(recording: Trace) -> dict[str, Any]:
    """The parameters, buffers and constants of a recording, by the model's names."""
    program = recording.program
    values: dict[str, Any] = {}
    for key, value in (*program.state_dict.items(), *program.constants.items()):
        values[key.removeprefix("model.")] = value
    return values


def _needs(
    module: torch.nn.Module,
    every: Inputs,
    names: Sequence[str],
    both: Graph,
    same_dtype: str,
    decomposed: bool,
) -> dict[str, str]:
    """The inputs that are valid only together with another input.

    Raises:
        OptionError: an input alone computes something that the merged graph lacks.
    """
    needs: dict[str, str] = {}
    for name in names:
        try:
            others = [other for other in names if other != name]
            recording = _without(module, every, others, [name], same_dtype, decomposed)
        except GraphError:
            recording = None
        alone = None
        if recording is not None:
            graph = group(recording)
            graph = with_sides(graph, _sides(graph, [name]))
            alone = outcome(_simplified(module, recording, graph))
        if alone == outcome(restricted(both, [name])):
            continue
        masks = [mask for mask in names if mask not in _POSITIONS and mask != name]
        if name not in _POSITIONS or not masks:
            raise OptionError(
                f"with {name} alone the model does what it does not do with all of them"
            )
        needs[name] = masks[0]
    return needs


# Free sides: an optional input has the sides of the other inputs.


def _sides(graph: Graph, names: Sequence[str]) -> dict[sympy.Expr, sympy.Expr]:
    """Free sides of optional inputs → sides of the same axis of an input that is always there."""
    sides: dict[sympy.Expr, sympy.Expr] = {}
    always = [graph.facts[number].shape for name, number in graph.inputs if name not in names]
    for name, number in graph.inputs:
        if name not in names:
            continue
        for axis, side in enumerate(graph.facts[number].shape):
            if not isinstance(side, Free) or any(side in shape for shape in always):
                continue
            for shape in always:
                other = shape[axis] if axis < len(shape) else None
                if isinstance(other, Free) and other.hint == side.hint:
                    sides.setdefault(side.expression, other.expression)
    return sides


def with_sides(graph: Graph, sides: Mapping[sympy.Expr, sympy.Expr]) -> Graph:
    """The graph with its sizes replaced."""
    if not sides:
        return graph

    def value(old: Any) -> Any:
        if isinstance(old, Free):
            return Free(old.expression.xreplace(dict(sides)), old.hint)
        if isinstance(old, tuple | list):
            return tuple(map(value, old))
        if isinstance(old, Mapping):
            return {name: value(each) for name, each in old.items()}
        return old

    def call(outer: Call) -> Call:
        body: list[Any] = []
        for item in outer.body:
            if isinstance(item, Call):
                body.append(call(item))
            elif isinstance(item, Op):
                body.append(
                    replace(item, arguments=value(item.arguments), named=value(dict(item.named)))
                )
        return replace(outer, body=tuple(body))

    facts = {number: replace(fact, shape=value(fact.shape)) for number, fact in graph.facts.items()}
    return replace(graph, root=call(graph.root), facts=facts, outputs=value(graph.outputs))


def _bounds(recording: Trace, names: Sequence[str]) -> list[Bound]:
    """The bounds of a recording that involve only inputs that are always there."""
    return [
        bound for bound in recording.bounds if not any(side.name in names for side in bound.sides)
    ]


# Which inputs are optional.


def _arguments(module: torch.nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def _defaults(module: torch.nn.Module) -> set[str]:
    """The arguments of a model's forward that are None by default."""
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {parameter.name for parameter in parameters if parameter.default is None}


def _optional(module: torch.nn.Module, inputs: Inputs) -> list[str]:
    """Inputs that default to None and without which the model gives outputs of the same form."""
    usual = _defaults(module) & set(inputs)
    if not usual or len(inputs) < 2:
        return []
    whole = _form(module, inputs)
    optional: list[str] = []
    for name in inputs:
        if name not in usual:
            continue
        left = {other: each for other, each in inputs.items() if other not in {*optional, name}}
        if left and _form(module, left) == whole:
            optional.append(name)
    return optional


def _form(module: torch.nn.Module, inputs: Inputs) -> Any:
    """The form of the model's outputs; None if it does not accept the inputs."""
    outputs = _outputs(module, inputs)
    if outputs is None:
        return None
    leaves, form = pytree.tree_flatten(outputs)
    return str(form), [leaf.shape if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _outputs(module: torch.nn.Module, inputs: Inputs) -> Any:
    """The model's outputs; None if it does not accept the inputs."""
    try:
        with slow_paths(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain(module(**inputs))
    except Exception:  # whatever the original raises
        return None


def _beside_tokens(module: torch.nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Inputs that a text model of transformers takes besides its tokens and that nobody passed,
    with values to record.
    """
    if not hasattr(module, "main_input_name") or not hasattr(module, "config"):
        return {}
    spared = _defaults(module)
    values: dict[str, torch.Tensor] = {}
    for name, beside in _BESIDE_TOKENS.items():
        tokens = inputs.get(beside)
        if name in inputs or name not in spared or tokens is None:
            continue
        if tokens.dim() == 2 and tokens.dtype in (torch.int64, torch.int32):
            values[name] = positions(tokens) if name in _POSITIONS else padding(tokens)
    usual = _outputs(module, inputs) if values else None
    return {
        name: value
        for name, value in values.items()
        if _differ(usual, _outputs(module, {**inputs, name: value}))
    }


def padding(tokens: torch.Tensor) -> torch.Tensor:
    """A mask of tokens: the first row is padded on the left, the second row on the right."""
    mask = torch.ones_like(tokens, dtype=torch.int64)
    count = max(1, tokens.shape[1] // 3)
    mask[0, :count] = 0
    mask[1:2, -count:] = 0
    return mask


def positions(tokens: torch.Tensor) -> torch.Tensor:
    """Positions of tokens that differ from those that a model counts by itself."""
    length = tokens.shape[1]
    row = torch.arange(length)
    return torch.stack([(row - number).clamp(min=0) for number in range(tokens.shape[0])])


def _differ(usual: Any, outputs: Any) -> bool:
    """Whether both are outputs of the same form with different values."""
    if usual is None or outputs is None:
        return False
    pair = pytree.tree_leaves(usual), pytree.tree_leaves(outputs)
    return len(pair[0]) == len(pair[1]) and not all(map(_equal, *pair))


def _equal(first: Any, other: Any) -> bool:
    if not isinstance(first, torch.Tensor) or not isinstance(other, torch.Tensor):
        return first is other
    return first.shape == other.shape and torch.equal(first, other)
