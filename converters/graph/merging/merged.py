"""The recordings of both modes as one graph: that of training, whose dropouts `deterministic` turns
off.

Both modes merge only if the training graph without dropouts equals the evaluation graph, operator
by operator. Draws that evaluation has too are drawn in both modes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch

from converters.graph.draws import ATTENTION, Modes, dropout_rate, is_dropout, is_recurrent
from converters.graph.ir import Call, Graph, Op, Ref, calls
from converters.graph.merging.dropouts import with_dropouts
from converters.graph.merging.left_out import LeftOutError, with_layers_left_out
from converters.graph.merging.options import OptionError, with_outputs_of_both
from converters.graph.merging.same_values import SameValues
from converters.graph.recording.detours import CHECK, FINITE
from converters.graph.recording.drawn import draws as draws_numbers
from converters.graph.recording.group import group
from converters.graph.recording.masks import broadcast_masks
from converters.graph.recording.modes import compare_modes, training
from converters.graph.recording.trace import GraphError, Trace, trace
from converters.graph.writing.patterns import pruned
from converters.host_draws import HostDraws
from converters.single_draws import Decisions, DrawError

# Line of a draw: path and number of the module's call, operator, location in the original.
_Line: TypeAlias = tuple[str, int, str, str]


@dataclass(frozen=True)
class Both:
    """A recording of both modes, its graph, and the training behavior.

    Attributes:
        recorded: the recording.
        graph: its graph.
        modes: differences of training.
        evaluation: the recording of evaluation alone, if training differs.
        drawn: inputs that the original draws in training by Python or numpy.
    """

    recorded: Trace
    graph: Graph
    modes: Modes = field(default_factory=Modes)
    evaluation: tuple[Trace, Graph] | None = None
    drawn: HostDraws = field(default_factory=HostDraws)


class _ApartError(Exception):
    """The modes differ in more than dropouts."""


def evaluation_alone(both: Both, reason: str) -> Both:
    """The recording without training, which the port cannot have."""
    recorded, graph = both.evaluation or (both.recorded, both.graph)
    return Both(recorded, graph, Modes(refused=reason))


def both_modes(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    recorded: Trace,
    graph: Graph,
    masks: Collection[str] = (),
) -> Both:
    """Merge the recording of evaluation with the differences of training.

    Args:
        module: the model.
        inputs: its inputs.
        recorded: its recording in evaluation.
        graph: graph of that recording.
        masks: as in `trace`.
    """
    try:
        modes = compare_modes(module, inputs)
        recorded = replace(recorded, notes=(*recorded.notes, *modes.notes))
        if modes.changes:
            raise _ApartError(f"the original changes {modes.changes} in training")
        if not modes.otherwise:
            return Both(recorded, graph)
        same = recorded.same_dtype
        decisions = Decisions()
        drawn = modes.drawn
        with training(module, inputs, decisions, drawn) as statistics, broadcast_masks():
            trained = trace(module, inputs, as_it_is=True, masks=masks, same_dtype=same)
        if trained.decomposed and not recorded.decomposed:
            with broadcast_masks():
                recorded = trace(module, inputs, decomposed=True, masks=masks, same_dtype=same)
            graph = group(recorded)
        modules = dict(module.named_modules(remove_duplicate=False))
        grouped = group(trained)
        lines = _require_same_draws(grouped, graph)
        trained_graph = with_dropouts(grouped, modules, _drawn(grouped, lines))
        names = {name for name, _ in trained_graph.inputs}
        hosts = tuple(name for name in drawn.names if name in names)
        alike = _has_same_outputs(trained_graph, graph)
        if alike and not hosts:  # with them the graphs are merged once they are simple
            _demand_same(_without_dropouts(trained_graph), graph)
        if decisions.rates:

            def without(turn: int) -> Graph:
                how: dict[str, Any] = {"decomposed": trained.decomposed, "same_dtype": same}
                with training(module, inputs, Decisions(turn), drawn), broadcast_masks():
                    lacking = trace(module, inputs, as_it_is=True, masks=masks, **how)
                fewer = group(lacking)
                return _bare(with_dropouts(fewer, modules, _drawn(fewer, lines)))

            trained_graph = with_layers_left_out(_bare(trained_graph), decisions.rates, without)
        if not alike and not hosts:
            trained_graph = with_outputs_of_both(trained_graph, graph)
    except (DrawError, LeftOutError, OptionError, _ApartError, GraphError) as error:
        what = error.what if isinstance(error, GraphError) else str(error)
        return Both(recorded, graph, Modes(refused=what))
    except Exception as error:  # whatever the original raises in training
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return Both(recorded, graph, Modes(refused=f"it does not run in training ({what})"))
    more = [note for note in trained.notes if note.startswith((CHECK, FINITE))]
    trained = replace(trained, notes=tuple(dict.fromkeys((*recorded.notes, *more))))
    known = Modes(frozenset(statistics), hosts)
    return Both(trained, trained_graph, known, (recorded, graph), modes.drawn)


def _has_same_outputs(first: Graph, second: Graph) -> bool:
    """Whether two graphs give outputs of the same names, or unnamed outputs."""
    named = isinstance(first.outputs, Mapping) and isinstance(second.outputs, Mapping)
    return not named or first.outputs.keys() == second.outputs.keys()


def _require_same_draws(trained: Graph, evaluated: Graph) -> frozenset[_Line]:
    """Lines that draw in evaluation, each as often as in training: `deterministic` leaves them alone.

    Raises:
        _ApartError: on one of these lines, some draws depend on the mode and others do not; or an
            attention drops in evaluation.
    """
    ours, theirs = _draws_by_line(trained), _draws_by_line(evaluated)
    for line, items in theirs.items():
        if len(ours[line]) != len(items) or any(map(dropout_rate, items)):
            raise _ApartError(f"it draws other random numbers in evaluation{_at(items[0])}")
    return frozenset(theirs)


def _draws_by_line(graph: Graph) -> dict[_Line, list[Op]]:
    """Operators that draw, by module call, operator and source line."""
    draws: dict[_Line, list[Op]] = defaultdict(list)
    for outer in calls(pruned(graph.root, graph.outputs)):
        for item in outer.body:
            if isinstance(item, Op) and (
                draws_numbers(item.target, item.arguments) or dropout_rate(item)
            ):
                draws[outer.path, outer.number, item.target, _at(item)].append(item)
    return draws


def _drawn(graph: Graph, lines: Collection[_Line]) -> frozenset[int]:
    """Results of the draws on some lines."""
    draws = _draws_by_line(graph)
    return frozenset(out for line in lines for item in draws[line] for out in item.outs)


def _bare(graph: Graph) -> Graph:
    """The graph without items that nothing reads."""
    return replace(graph, root=pruned(graph.root, graph.outputs))


def _without_dropouts(graph: Graph) -> Graph:
    """The graph as in evaluation: its dropouts removed."""
    same: dict[int, Any] = {}

    def value(old: Any) -> Any:
        if isinstance(old, Ref):
            return value(same[old.id]) if old.id in same else old
        if isinstance(old, tuple | list):
            return tuple(map(value, old))
        return {key: value(each) for key, each in old.items()} if isinstance(old, dict) else old

    def call(outer: Call) -> Call:
        body: list[Any] = []
        arguments = tuple(replace(each, value=value(each.value)) for each in outer.arguments)
        for item in outer.body:
            if isinstance(item, Call):
                body.append(call(item))
            elif is_dropout(item):
                same[item.outs[0]] = item.arguments[0]
            elif isinstance(item, Op):
                named = value(dict(item.named))
                body.append(replace(item, arguments=value(item.arguments), named=named))
        taken = tuple(replace(each, inside=value(Ref(each.inside)).id) for each in outer.taken)
        return replace(outer, arguments=arguments, body=tuple(body), taken=taken)

    root = call(graph.root)
    return replace(graph, root=root, outputs=value(graph.outputs))


def _demand_same(first: Graph, second: Graph) -> None:
    """Raise where the graphs differ."""
    _Same(first, second).run()


class _Same(SameValues):
    def run(self) -> None:
        for (name, number), (other_name, other) in zip(
            self.first.inputs, self.second.inputs, strict=True
        ):
            self.known[number] = other
            if name != other_name:
                raise _ApartError("it takes other inputs in training")
        first, second = (pruned(graph.root, graph.outputs) for graph in (self.first, self.second))
        self._call(first, second)
        if not self.is_same(self.first.outputs, self.second.outputs):
            raise _ApartError("it gives other outputs in training")

    def _call(self, call: Call, other: Call) -> None:
        if (call.path, call.number) != (other.path, other.number):
            raise _ApartError(
                f"it calls {call.path or other.path} otherwise in training{_at(call)}"
            )
        if [argument.label for argument in call.arguments] != [
            argument.label for argument in other.arguments
        ]:
            raise _ApartError(f"{call.path} takes other tensors in training{_at(call)}")
        for mine, theirs in zip(call.arguments, other.arguments, strict=True):
            if not self.is_same(mine.value, theirs.value):
                raise _ApartError(f"{call.path} takes other tensors in training{_at(call)}")
            self.known[mine.inside] = theirs.inside
        for item, against in zip(call.body, other.body, strict=False):
            self._item(item, against)
        if len(call.body) != len(other.body):
            longer = max(call.body, other.body, key=len)
            item = longer[min(len(call.body), len(other.body))]
            raise _ApartError(f"training and evaluation differ{_at(item)}")
        if [taken.label for taken in call.taken] != [taken.label for taken in other.taken]:
            raise _ApartError(f"{call.path} gives other tensors in training{_at(call)}")
        for result, expected in zip(call.taken, other.taken, strict=True):
            if self.known.get(result.inside) != expected.inside:
                raise _ApartError(f"{call.path} gives other tensors in training{_at(call)}")
            self.known[result.outside] = expected.outside

    def _item(self, item: Any, other: Any) -> None:
        if isinstance(item, Call) and isinstance(other, Call):
            self._call(item, other)
            return
        if not isinstance(item, Op) or not isinstance(other, Op) or item.target != other.target:
            raise _ApartError(f"training and evaluation differ{_at(item)}")
        if not self.is_same(_plain(item), _plain(other)) or len(item.outs) != len(other.outs):
            raise _ApartError(f"training and evaluation differ{_at(item)}")
        self.known |= dict(zip(item.outs, other.outs, strict=True))


def _plain(item: Op) -> tuple[Any, dict[str, Any]]:
    """The arguments of an operator, without those that set a mode."""
    named, arguments = dict(item.named), item.arguments
    if item.target == ATTENTION:
        named.pop("dropout_p", None)
        arguments = (*arguments[:4], *arguments[5:])
        names = ("attn_mask", "is_causal")
        named |= dict(zip(names, arguments[3:], strict=False))
        named = {"attn_mask": None, "is_causal": False, **named}
        arguments = arguments[:3]
    if is_recurrent(item):
        arguments = (*arguments[:5], *arguments[7:])
    return arguments, named


def _at(item: Any) -> str:
    """The source location of an item in the original: " (net.py:12)"."""
    frames = item.frames
    return f" ({frames[-1].file.rpartition('/')[2]}:{frames[-1].line})" if frames else ""
