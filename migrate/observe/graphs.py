"""Differences between two graphs that made the second graph compile."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import shims

# A node: `%7 = f32[5,8]{1,0} xla::device_data(%1), start=0, location=forward@linear.py:134, xla_shape=…`
_NODE = re.compile(r"^%\d+ = (?P<shape>\S+) (?P<op>[\w:.]+)\((?P<operands>[^)]*)\)(?P<rest>.*)$")
_HALF = re.compile(r"^%\d+ = b?f16\[")
_LOCATION = re.compile(r"location=(?P<function>[^@,]*)@(?P<place>[^,]+:\d+)")
_PLACE = re.compile(rf", {_LOCATION.pattern}")
# A place in a sentence on what differs: `net.py:12`.
_PLACE_IN_TEXT = re.compile(r"[\w.-]+\.py:\d+")
_ATTRIBUTE = re.compile(r"(\w+)=(\([^)]*\)|\{[^}]*\}|[^,]+)")
# Said elsewhere: by the shape, by the place, by torch_xla for itself.
_NOT_ATTRIBUTES = frozenset({"location", "xla_shape", "ROOT", "dynamic_dims", "device"})
INPUT = "xla::device_data"
CONSTANT = "prim::Constant"
# Operations whose position is not in the text of a graph.
_SLICES = frozenset({"xla::select", "xla::unselect", "xla::generic_slice", "xla::update_slice"})
# Casts around sums of bfloat16 (`shims._simulated`), which a TPU does not need.
_SIMULATED_SUMS = "half_sums.py"
# Begins the difference that only batches of other shapes make.
INPUT_SHAPE = "the shape of an input"
NODE_SHAPE = "the shape of"
# So many differences are told; a changed batch size alone changes most nodes of a graph.
_TOLD = 4


@dataclass(frozen=True)
class GraphNode:
    """An operation of a graph.

    Attributes:
        op: such as `aten::relu`, or `xla::device_data` for an input.
        shape: such as `f32[8,16]`.
        place: `functional.py:3458`, where torch_xla knows it; else "". A line of the simulation itself, which
            wraps methods of tensors, is no place of the script: "".
        attributes: such as `(("start", "3"),)`.
        function: the function with that line.
    """

    op: str
    shape: str
    place: str
    attributes: tuple[tuple[str, str], ...]
    function: str = ""

    @property
    def own_place(self) -> str:
        """The line of the script; "" for a line of torch, which tells its user nothing."""
        return "" if _is_torchs(self.function, self.place) else self.place


def in_16_bits(nodes: Iterable[str]) -> bool:
    """Whether a graph computes a value in 16 bits, by its lines."""
    return any(map(_HALF.match, nodes))


def parse_node(text: str) -> GraphNode | None:
    """Return the node that a line of a graph describes; None if it describes none."""
    match = _NODE.match(text)
    if match is None:
        return None
    place = _LOCATION.search(match["rest"])
    attributes = tuple(
        (name, value.strip())
        for name, value in _ATTRIBUTE.findall(match["rest"])
        if name not in _NOT_ATTRIBUTES
    )
    shape = match["shape"].partition("{")[0]
    known = place is not None and not _is_wrapper(place["function"], place["place"])
    if place is None or not known:
        return GraphNode(match["op"], shape, "", attributes)
    return GraphNode(match["op"], shape, place["place"], attributes, place["function"])


def _is_wrapper(function: str, place: str) -> bool:
    """Whether a location, of which torch_xla keeps no folder, is in a function of the simulated replicas."""
    file, _, line = place.rpartition(":")
    return file != _SIMULATED_SUMS and int(line) in _wrappers().get((file, function), ())


def _is_torchs(function: str, place: str) -> bool:
    """Whether a location, of which torch_xla keeps no folder, is in a function of torch."""
    file, _, line = place.rpartition(":")
    return bool(file) and any(
        int(line) in _functions(path).get(function, range(0))
        for path in _files_of_torch().get(file, ())
    )


@cache
def _files_of_torch() -> dict[str, list[Path]]:
    """Return the files of torch's layers, functions, optimizers and replicas, and of torch_xla, by name."""
    parts = {"torch": ("nn", "optim", "distributed", "_decomp"), "torch_xla": (".",)}
    files: dict[str, list[Path]] = {}
    for package, folders in parts.items():
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        for folder in folders:
            for path in (Path(spec.origin).parent / folder).rglob("*.py"):
                files.setdefault(path.name, []).append(path)
    return files


@cache
def _functions(path: Path) -> dict[str, set[int]]:
    """Return the lines of the functions in a file, by the names of the functions."""
    lines: dict[str, set[int]] = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            own = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            lines.setdefault(node.name, set()).update(own)
    return lines


@cache
def _wrappers() -> dict[tuple[str, str], set[int]]:
    """Return the lines of the functions of the simulated replicas, by the names of file and function."""
    folder = Path(shims.__file__).parent / "_simulated"
    wrappers: dict[tuple[str, str], set[int]] = {}
    for path in folder.rglob("*.py"):
        for function, lines in _functions(path).items():
            wrappers.setdefault((path.name, function), set()).update(lines)
    return wrappers


def without_places(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of a graph without the lines of source that made them, which change no program.

    An input has the line that last kept the tensor: it may have been computed with something else there.
    """
    return tuple(_PLACE.sub("", node) for node in nodes)


def with_places(change: str, shown: Callable[[str], str]) -> str:
    """Return a sentence of `differences` in which `shown` names the places: "net_xla.py:12"."""
    return _PLACE_IN_TEXT.sub(lambda place: shown(place[0]), change)


def differences(before: Sequence[str], after: Sequence[str]) -> tuple[str, ...]:
    """Return what the graph `after` has and `before` has not, the likely cause first.

    Args:
        before, after: nodes, one a line.

    Returns:
        At least one sentence: changed shapes of inputs, else changed attributes, else operations that
        came or went, else that only a constant's value can differ, which the dump does not show.
    """
    old, new = _of_the_script(before), _of_the_script(after)
    for changes in (_of_inputs(old, new), _of_nodes(old, new), _of_operations(old, new)):
        said = list(dict.fromkeys(changes))
        if said:
            more = [f"and {len(said) - _TOLD} more"] if len(said) > _TOLD else []
            return (*said[:_TOLD], *more)
    constants = [node for node in new if node.op == CONSTANT and node.own_place]
    # An index is a whole number.
    whole = [node for node in constants if node.shape in ("s64[]", "s32[]")]
    slices = [node for node in new if node.op in _SLICES]
    hidden = [*whole, *slices] or constants
    places = list(dict.fromkeys(node.own_place for node in hidden if node.own_place))
    what = "the value of a constant" + (", or the position of a slice" if slices else "")
    where = f", at {' or '.join(places[:_TOLD])}" if places else ""
    return (f"{what} (a Python number that became part of the graph{where})",)


def nearest(graphs: Sequence[Sequence[str]], nodes: Sequence[str]) -> Sequence[str]:
    """Return the graph with the most operations in common with `nodes`; of equal ones the last.

    Args:
        graphs: at least one graph, by its nodes.
        nodes: nodes of another graph.
    """
    wanted = _operations(nodes)

    def distance(graph: Sequence[str]) -> int:
        operations = _operations(graph)
        return ((operations - wanted) + (wanted - operations)).total()

    return min(reversed(graphs), key=distance)


def _operations(nodes: Sequence[str]) -> Counter[tuple[str, str]]:
    return Counter((node.op, node.place) for node in _of_the_script(nodes))


def _of_the_script(nodes: Sequence[str]) -> list[GraphNode]:
    """Nodes without those that only the simulation adds."""
    parsed = [node for node in map(parse_node, nodes) if node]
    return [n for n in parsed if n.op == INPUT or n.place.partition(":")[0] != _SIMULATED_SUMS]


def _at(node: GraphNode) -> str:
    return f" ({node.own_place})" if node.own_place else ""


def _of_inputs(old: Sequence[GraphNode], new: Sequence[GraphNode]) -> Iterator[str]:
    """Shapes of inputs, where both graphs have as many, of the same types and numbers of axes.

    A loop that is unrolled over an axis (a GRU) changes their number too: see `_only_of_one`.
    """
    before = [node for node in old if node.op == INPUT]
    after = [node for node in new if node.op == INPUT]
    if list(map(_kind_of_input, before)) != list(map(_kind_of_input, after)):
        for shape, node in _only_of_one(before, after):
            yield f"{INPUT_SHAPE}: {shape} → {node.shape}{_at(node)}"
        return
    for node, other in zip(before, after, strict=True):
        if node.shape != other.shape:
            yield f"{INPUT_SHAPE}: {node.shape} → {other.shape}{_at(other)}"


def _only_of_one(
    before: Sequence[GraphNode], after: Sequence[GraphNode]
) -> Iterator[tuple[str, GraphNode]]:
    """Yield shape → input of the other graph, if each graph has one input with a shape that the other lacks.

    The two have the same type, several axes, and differ in the size of one axis.
    """
    shapes = {node.shape for node in before}, {node.shape for node in after}
    here = [node for node in before if node.shape not in shapes[1]]
    there = [node for node in after if node.shape not in shapes[0]]
    if len(here) != 1 or len(there) != 1 or _kind_of_input(here[0]) != _kind_of_input(there[0]):
        return
    sizes = [node.shape.partition("[")[2].rstrip("]").split(",") for node in (here[0], there[0])]
    if len(sizes[0]) > 1 and sum(map(str.__ne__, *sizes)) == 1:
        yield here[0].shape, there[0]


def _kind_of_input(node: GraphNode) -> tuple[str, int]:
    """Type and number of axes: `("f32", 2)`. Inputs that differ in them are not the same input."""
    dtype, _, sizes = node.shape.partition("[")
    return dtype, 0 if sizes == "]" else sizes.count(",") + 1


def _of_nodes(old: Sequence[GraphNode], new: Sequence[GraphNode]) -> Iterator[str]:
    """Attributes and shapes, where both graphs have the same operations."""
    if [node.op for node in old] != [node.op for node in new]:
        return
    for node, other in zip(old, new, strict=True):
        for (name, value), (_, changed) in zip(node.attributes, other.attributes, strict=False):
            if value != changed:
                yield f"{name} of {other.op}: {value} → {changed}{_at(other)}"
        if node.shape != other.shape and node.attributes == other.attributes:
            yield f"{NODE_SHAPE} {other.op}: {node.shape} → {other.shape}{_at(other)}"


def _of_operations(old: Sequence[GraphNode], new: Sequence[GraphNode]) -> Iterator[str]:
    """Operations that came or went, by name and place."""
    before = Counter((node.op, node.own_place) for node in old)
    after = Counter((node.op, node.own_place) for node in new)
    for sign, counts in (("more", after - before), ("fewer", before - after)):
        for (op, place), count in counts.most_common():
            name = "inputs" if op == INPUT else op
            yield f"{count} {sign}: {name}{f' ({place})' if place else ''}"
