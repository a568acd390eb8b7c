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
# What the text models of transformers take beside token ids: name → the input whose shape it has.
_BESIDE_TOKENS = {
    "attention_mask": "input_ids",
    "decoder_attention_mask": "decoder_input_ids",
    "position_ids": "input_ids",
}
_POSITIONS = ("position_ids",)


@dataclass(frozen=True)
class Options:
    """The inputs of a model that a caller may leave out.

    Attributes:
        names: the inputs, in the order of the model's arguments.
        bare: the recording without any of them.
        bounds: conditions on free sizes under which both recordings hold.
        needs: input → another one without which it is refused.
        refused: inputs of transformers' text models that the port does not take, each with the reason.
    """

    names: tuple[str, ...] = ()
    bare: Graph | None = None
    bounds: tuple[Bound, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recorded:
    """A model's recordings, of both modes, and what a caller may leave out."""

    both: Both
    options: Options = Options()


def recorded(module: torch.nn.Module, inputs: Inputs, same_dtype: str = "") -> Recorded:
    """Record a model with these inputs, and with those that a text model takes beside its tokens.

    Args:
        module: the model.
        inputs: what it is called with.
        same_dtype: as of `trace`.

    Raises:
        GraphError: it cannot be recorded with the inputs.
    """
    module.eval()
    optional = _optional(module, inputs)
    added = _beside_tokens(module, inputs)
    refused: dict[str, str] = {}
    while optional or added:
        every = {**inputs, **added}
        names = tuple(name for name in _arguments(module) if name in {*optional, *added})
        try:
            return _both(module, every, names, refused, same_dtype)
        except (OptionError, GraphError) as error:
            why = error.what if isinstance(error, GraphError) else str(error)
        given_up = next((one for one in _POSITIONS if one in added and len(names) > 1), "")
        left = [given_up] if given_up else list(added) or optional
        refused |= dict.fromkeys(left, why)
        added = {name: one for name, one in added.items() if name not in left}
        optional = [name for name in optional if name not in left]
    return Recorded(recorded_as_given(module, inputs, same_dtype), Options(refused=refused))


def recorded_as_given(module: torch.nn.Module, inputs: Inputs, same_dtype: str) -> Both:
    """Record a model with these inputs and no others, in both modes.

    Raises:
        GraphError: it cannot be recorded.
    """
    with broadcast_masks():
        found = trace(module, inputs, same_dtype=same_dtype)
    return both_modes(module, inputs, found, group(found))


def _both(
    module: torch.nn.Module,
    every: Inputs,
    names: Sequence[str],
    refused: Mapping[str, str],
    same_dtype: str,
) -> Recorded:
    """A model recorded with all of its inputs and without those that may be left out.

    Raises:
        OptionError: the recordings cannot be one source.
        GraphError: it cannot be recorded with all of them, or without.
    """
    bare = _without(module, every, names, same_dtype=same_dtype)
    found = _without(module, every, (), names, same_dtype)
    if found.fixed or found.same_dtype != bare.same_dtype or found.notes != bare.notes:
        raise OptionError("the model is recorded in another way with it")
    graph = group(found)
    graph = with_sides(graph, _sides(graph, names))
    whole = _simplified(module, found, graph)
    small = _simplified(module, bare, group(bare))
    made = merged(whole, small)
    needs: dict[str, str] = {}
    if len(names) > 1:
        needs = _needs(module, every, names, made, same_dtype)
    for some in (names, ()):
        wanted = whole if some else small
        if outcome(restricted(made, some)) != outcome(wanted):
            raise OptionError("the recordings are not the same where they should be")
    both = both_modes(module, every, found, graph, _masks(every, names))
    both = replace(both, graph=with_sides(both.graph, _sides(both.graph, names)))
    bounds = tuple(dict.fromkeys((*bare.bounds, *_bounds(found, names))))
    return Recorded(both, Options(tuple(names), small, bounds, needs, dict(refused)))


def _masks(every: Inputs, names: Sequence[str]) -> list[str]:
    """Inputs that may be left out and have the rank of images: what a model can do without is a mask."""
    return [name for name in names if every[name].dim() > 3]


def _without(
    module: torch.nn.Module,
    every: Inputs,
    names: Sequence[str],
    kept: Sequence[str] = (),
    same_dtype: str = "",
) -> Trace:
    given = {name: one for name, one in every.items() if name not in names}
    with broadcast_masks():
        return trace(module, given, masks=_masks(given, kept), same_dtype=same_dtype)


def _simplified(module: torch.nn.Module, found: Trace, graph: Graph) -> Graph:
    """The graph as one would say it."""
    modules = dict(module.named_modules(remove_duplicate=False))
    return simplified(graph, modules, tensors(found) | dict(graph.constants))


def tensors(found: Trace) -> dict[str, Any]:
    """The parameters, buffers and constants of a recording, by the model's names."""
    program = found.program
    made: dict[str, Any] = {}
    for key, value in (*program.state_dict.items(), *program.constants.items()):
        made[key.removeprefix("model.")] = value
    return made


def _needs(
    module: torch.nn.Module,
    every: Inputs,
    names: Sequence[str],
    made: Graph,
    same_dtype: str,
) -> dict[str, str]:
    """Which of the inputs hold only together with another one.

    Raises:
        OptionError: one of them alone computes something that the merged graph has not.
    """
    needs: dict[str, str] = {}
    for name in names:
        try:
            others = [one for one in names if one != name]
            found = _without(module, every, others, [name], same_dtype)
        except GraphError:
            found = None
        alone = None
        if found is not None:
            graph = group(found)
            graph = with_sides(graph, _sides(graph, [name]))
            alone = outcome(_simplified(module, found, graph))
        if alone == outcome(restricted(made, [name])):
            continue
        masks = [one for one in names if one not in _POSITIONS and one != name]
        if name not in _POSITIONS or not masks:
            raise OptionError(
                f"with {name} alone the model does what it does not do with all of them"
            )
        needs[name] = masks[0]
    return needs


# Sides: an input that may be left out has those of the others.


def _sides(graph: Graph, names: Sequence[str]) -> dict[sympy.Expr, sympy.Expr]:
    """Free sides of inputs that may be left out → those of the same axis of an input that is always there."""
    found: dict[sympy.Expr, sympy.Expr] = {}
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
                    found.setdefault(side.expression, other.expression)
    return found


def with_sides(graph: Graph, sides: Mapping[sympy.Expr, sympy.Expr]) -> Graph:
    """A graph with sizes that are others."""
    if not sides:
        return graph

    def value(one: Any) -> Any:
        if isinstance(one, Free):
            return Free(one.expression.xreplace(dict(sides)), one.hint)
        if isinstance(one, tuple | list):
            return tuple(map(value, one))
        if isinstance(one, Mapping):
            return {name: value(each) for name, each in one.items()}
        return one

    def call(one: Call) -> Call:
        body: list[Any] = []
        for item in one.body:
            if isinstance(item, Call):
                body.append(call(item))
            elif isinstance(item, Op):
                body.append(
                    replace(item, arguments=value(item.arguments), named=value(dict(item.named)))
                )
        return replace(one, body=tuple(body))

    facts = {number: replace(one, shape=value(one.shape)) for number, one in graph.facts.items()}
    return replace(graph, root=call(graph.root), facts=facts, outputs=value(graph.outputs))


def _bounds(found: Trace, names: Sequence[str]) -> list[Bound]:
    """The bounds of a recording that speak of inputs which are always there."""
    return [one for one in found.bounds if not any(side.name in names for side in one.sides)]


# Which inputs may be left out.


def _arguments(module: torch.nn.Module) -> list[str]:
    try:
        return list(inspect.signature(module.forward).parameters)
    except (TypeError, ValueError):
        return []


def _defaults(module: torch.nn.Module) -> set[str]:
    """The arguments of a model's forward that are None by default."""
    try:
        found = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return set()
    return {one.name for one in found if one.default is None}


def _optional(module: torch.nn.Module, inputs: Inputs) -> list[str]:
    """Inputs that are None by default, without which the model gives outputs of the same form."""
    usual = _defaults(module) & set(inputs)
    if not usual or len(inputs) < 2:
        return []
    whole = _form(module, inputs)
    found: list[str] = []
    for name in inputs:
        if name not in usual:
            continue
        left = {one: each for one, each in inputs.items() if one not in {*found, name}}
        if left and _form(module, left) == whole:
            found.append(name)
    return found


def _form(module: torch.nn.Module, inputs: Inputs) -> Any:
    """The form of what a model gives; None where it does not take the inputs."""
    found = _outputs(module, inputs)
    if found is None:
        return None
    leaves, form = pytree.tree_flatten(found)
    return str(form), [one.shape if isinstance(one, torch.Tensor) else one for one in leaves]


def _outputs(module: torch.nn.Module, inputs: Inputs) -> Any:
    """What a model gives; None where it does not take the inputs."""
    try:
        with slow_paths(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return plain(module(**inputs))
    except Exception:  # whatever the original raises
        return None


def _beside_tokens(module: torch.nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    """What a text model of transformers takes beside its tokens, and nobody gave: values to record with."""
    if not hasattr(module, "main_input_name") or not hasattr(module, "config"):
        return {}
    spared = _defaults(module)
    made: dict[str, torch.Tensor] = {}
    for name, beside in _BESIDE_TOKENS.items():
        tokens = inputs.get(beside)
        if name in inputs or name not in spared or tokens is None:
            continue
        if tokens.dim() == 2 and tokens.dtype in (torch.int64, torch.int32):
            made[name] = positions(tokens) if name in _POSITIONS else padding(tokens)
    usual = _outputs(module, inputs) if made else None
    return {
        name: one
        for name, one in made.items()
        if _differ(usual, _outputs(module, {**inputs, name: one}))
    }


def padding(tokens: torch.Tensor) -> torch.Tensor:
    """A mask of tokens: the first row is padded on the left, the second one on the right."""
    mask = torch.ones_like(tokens, dtype=torch.int64)
    count = max(1, tokens.shape[1] // 3)
    mask[0, :count] = 0
    mask[1:2, -count:] = 0
    return mask


def positions(tokens: torch.Tensor) -> torch.Tensor:
    """Positions of tokens, other ones than those that a model counts by itself."""
    length = tokens.shape[1]
    row = torch.arange(length)
    return torch.stack([(row - number).clamp(min=0) for number in range(tokens.shape[0])])


def _differ(usual: Any, found: Any) -> bool:
    """Whether outputs are there, and have one form and other values."""
    if usual is None or found is None:
        return False
    pair = pytree.tree_leaves(usual), pytree.tree_leaves(found)
    return len(pair[0]) == len(pair[1]) and not all(map(_equal, *pair))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return one is other
    return one.shape == other.shape and torch.equal(one, other)
