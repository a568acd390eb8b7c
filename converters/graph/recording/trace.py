"""Recording of a torch model by `torch.export`, with the calls of its modules marked.

The graph of `torch.export` is flat. Its metadata has the module of each node, but not the inputs
and outputs of each call. So every such tensor passes through an operator of ours that only carries
a label (`tpu_migrate::mark`), by which `converters.graph.recording.group` finds the calls.
"""

from __future__ import annotations

import io
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils import _pytree as pytree

from converters.errors import ConversionError
from converters.graph.recording.detours import (
    CHECK,
    FiniteValues,
    SizedDraws,
    batched_experts,
    checks_pass,
    distributions_unchecked,
    eager_attention,
    kept_as_numbers,
    masks_by_index,
    memory_followed,
    modules_stay,
    numbers_kept,
    precision_stays,
    solvers_stay,
    unaware,
    values_known,
)
from converters.graph.recording.gradients import gradients_followed, inference_is_no_grad
from converters.graph.recording.guards import Bound, bounds, free_sides, tied
from converters.graph.recording.nodes import (
    drawn_anew,
    frames_of,
    made_of_others,
    numbers_read,
    without_changes,
    without_checks,
)
from converters.graph.recording.one_rank import collective_notes
from converters.graph.recording.own_gradients import own_gradients_noted
from converters.graph.recording.precision import (
    ExactNumbers,
    MixedProducts,
    NarrowSeen,
    grouped_products_recorded,
    in_compute_dtype,
    narrowed,
    saved_floats,
)
from converters.graph.recording.reading import read_inputs
from converters.graph.recording.returned import returned
from converters.graph.recording.rows.checked import ROWS, every_row, rows_chosen
from converters.graph.recording.state import attributes_stay, weights_stay
from converters.graph.recording.ties import Ties
from converters.slow_paths import slow_paths

MARK = "tpu_migrate.mark.default"
# Attribute of a module whose call runs another method than forward: the name of that method.
METHOD = "_method_that_runs"
# Buffers that are numbers: (path, name) → value and dtype.
_Kept = Mapping[tuple[str, str], tuple[int, torch.dtype]]


class GraphError(ConversionError):
    """A model cannot be ported.

    The message names the obstacle, with the line of the torch source where there is one.
    """


@dataclass(frozen=True)
class Trace:
    """A recorded model.

    Attributes:
        program: the graph, functional, its layers' operators whole.
        module: the recorded model.
        inputs: names of its inputs, in the order of the graph's.
        outputs: its outputs: a pytree whose leaves are positions among the graph's outputs.
        kinds: path of a module → the module, for those that were called.
        notes: the detours that were taken.
        fixed: inputs whose values the recording holds, which are not inputs of the graph.
        known: whether sizes depend on values that are known.
        bounds: conditions on free sizes under which the recording holds.
        narrow: names of the parameters and buffers that were recorded in `precision.COMPUTE`, which
            stands for whatever the model computes in.
        same_dtype: why dtypes are not followed; "" if they are.
        decomposed: whether torch decomposed it once more, to remove changes in place.
        own_gradients: functions whose own gradient is not recorded.
        returned: the structure of its result, with named tuples and dataclasses (see `recording.returned`).
    """

    program: torch.export.ExportedProgram
    module: torch.nn.Module
    inputs: tuple[str, ...]
    outputs: Any
    kinds: Mapping[str, torch.nn.Module]
    notes: tuple[str, ...] = ()
    fixed: Mapping[str, torch.Tensor] = field(default_factory=dict)
    known: bool = False
    bounds: tuple[Bound, ...] = ()
    narrow: frozenset[str] = frozenset()
    same_dtype: str = ""
    decomposed: bool = False
    own_gradients: tuple[str, ...] = ()
    returned: Any = None


@torch.library.custom_op("tpu_migrate::mark", mutates_args=())
def _mark(x: torch.Tensor, label: str) -> torch.Tensor:
    return x.clone()


@_mark.register_fake
def _(x: torch.Tensor, label: str) -> torch.Tensor:
    return torch.empty_like(x)


def trace(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    *,
    as_it_is: bool = False,
    decomposed: bool = False,
    masks: Collection[str] = (),
    same_dtype: str = "",
) -> Trace:
    """Record a model's operators with inputs of these shapes, with sides left free where the model
    allows it.

    Args:
        module: the model; it is put into `eval()`.
        inputs: its inputs.
        as_it_is: whether the model keeps its mode, which may be training.
        decomposed: whether to decompose it once more (see `Trace`), even if it changes nothing in place.
        masks: inputs that are not images, however many axes they have: all their axes are left free.
        same_dtype: why dtypes are not followed, if that is known (see `Trace`).

    Raises:
        GraphError: the model does not take the inputs, or cannot be recorded.
    """
    if not as_it_is:
        module.eval()
    called = _probe(module, inputs)
    called.masks = masks
    if called.narrow or same_dtype:
        wide = _recorded(module, inputs, called, decomposed, as_it_is)
        return replace(wide, same_dtype=same_dtype or _OWN_DTYPE)
    try:
        with in_compute_dtype(module), ExactNumbers(), MixedProducts():
            recorded = _recorded(module, narrowed(inputs), called, decomposed, as_it_is)
    except GraphError as error:
        called.read = ()
        wide = _recorded(module, inputs, called, decomposed, as_it_is)
        return replace(wide, same_dtype=f"{_NO_NARROW} ({error.what})")
    fixed = {name: inputs[name] for name in recorded.fixed}
    return replace(recorded, fixed=fixed, narrow=frozenset(saved_floats(module)))


def _recorded(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    called: _EagerRun,
    decomposed: bool,
    in_training: bool,
) -> Trace:
    """Record a model in the dtype of its weights and inputs."""
    failures: list[tuple[_Way, str]] = []
    by_value: list[str] = []  # reasons that are about values
    hopeless: set[_Way] = set()
    otherwise = False  # whether there was a reason other than values
    recorded: Trace | None = None  # with sizes that depend on values, which JAX lacks
    ways = _ways(module)
    if module in _BY_ROWS:
        way, failed = _BY_ROWS[module]
        ways = [way, *(other_way for other_way in ways if other_way != way)]
        failures.append(failed)
        by_value.append(failed[1])
        called.read = read_inputs(module, inputs) if way.fixed else ()
    for note, free in _TRIES:
        for way in ways:
            if way in hopeless or (way.for_values and not by_value):
                continue
            if way.unaware and way.for_values and not otherwise:
                continue
            fixed = called.read if way.fixed else ()
            reported: dict[str, None] = {}
            rows: dict[str, None] = {}
            try:
                with (
                    eager_attention(module, way.eager),
                    batched_experts(module, way.batched),
                    unaware(way.unaware),
                    values_known(way.fixed),
                    checks_pass(way.checks, reported),
                    every_row(module, inputs, way.rows, rows),
                ):
                    kept = numbers_kept(module) if way.fixed else {}
                    how = decomposed, in_training
                    program, outputs, apart = _export(
                        module, inputs, fixed, kept, free, called, *how
                    )
            except Exception as error:  # whatever torch.export raises
                said = _placed(error)
                if (way, said) in failures:
                    hopeless.add(way)  # freeing fewer sides does not help it
                failures.append((way, said))
                if _values_decide(error) or "rests on values" in said:
                    if not by_value:
                        called.read = read_inputs(module, inputs)
                    by_value.append(said)
                    if not way.fixed:  # with fewer sides free, more is known
                        hopeless.add(way)
                elif not way.for_values:
                    otherwise = True
                continue
            taken = [
                note,
                _EAGER if way.eager else "",
                _UNAWARE if way.unaware else "",
                _BATCHED if way.batched else "",
                f"fixed: {', '.join(fixed)}" if fixed else "",
            ]
            said = ", ".join(filter(None, taken))
            notes = [f"{said} ({failures[0][1]})"] if said else []
            notes += [f"{CHECK}: {line}" for line in reported]
            notes += [f"{ROWS}: {', '.join(rows)}"] if rows else []
            notes += called.finite
            notes += called.ties
            notes += collective_notes(program.graph)
            trial = Trace(
                program,
                module,
                tuple(inputs),
                outputs,
                called.kinds,
                tuple(notes),
                {name: inputs[name] for name in fixed},
                way.fixed,
                called.bounds,
                decomposed=apart,
                own_gradients=tuple(called.own_gradients),
                returned=called.returned,
            )
            if not (chosen := rows_chosen(program.graph)):
                if way.rows:
                    _BY_ROWS[module] = way, failures[0]
                return trial
            if recorded is None:
                recorded, called.read = trial, read_inputs(module, inputs)
                by_value.append(chosen)
                failures.append((way, chosen))
            hopeless.add(way)
        if recorded is not None:
            return recorded  # its operators show what is missing
    why = by_value[0] if by_value else failures[0][1]
    raise GraphError(f"torch.export cannot record the model: {why}", _HOW)


@dataclass(frozen=True)
class _Way:
    """A way to record.

    Attributes:
        eager: attention in plain operators.
        unaware: the model is told that it is not exported.
        batched: experts as one product.
        fixed: known inputs held to their values.
        checks: checks of values left out.
        rows: all rows in place of those that a mask chooses.
    """

    eager: bool = False
    unaware: bool = False
    batched: bool = False
    fixed: bool = False
    checks: bool = False
    rows: bool = False

    @property
    def for_values(self) -> bool:
        """Whether this way is for models in which values decide."""
        return self.batched or self.fixed or self.checks or self.rows


# The way that recorded a model whose masks choose rows, and why another way did not. Others are
# tried after it.
_BY_ROWS: WeakKeyDictionary[torch.nn.Module, tuple[_Way, tuple[_Way, str]]] = WeakKeyDictionary()


def _ways(module: torch.nn.Module) -> list[_Way]:
    """The ways to try, the best first."""
    plain = [_Way()]
    if hasattr(module, "set_attn_implementation"):
        plain.append(_Way(eager=True))
    plain.append(_Way(unaware=True))
    batched = [_Way(batched=True)] if hasattr(module, "set_experts_implementation") else []
    fixed = [replace(way, fixed=True) for way in plain]
    return [
        *plain,
        *batched,
        *fixed,
        *(replace(way, checks=True) for way in fixed),
        *(replace(way, rows=True) for way in plain),
        *(replace(way, rows=True) for way in fixed),
    ]


def _values_decide(error: BaseException) -> bool:
    """Whether torch.export failed because a size or a branch depends on values."""
    if isinstance(error, ReadError):
        return True
    text = f"{type(error).__name__} {error}"
    return any(
        word in text
        for word in ("DataDependent", "data-dependent", "unbacked", "rests on values", ".numpy()")
    )


# The axes that are left free, and the note if they are fewer than possible.
_TRIES = (
    ("", lambda rank: range(rank) if rank < 4 else range(1)),
    ("only the batch is free", lambda rank: range(min(rank, 1))),
    ("recorded for these input shapes only", lambda rank: range(0)),
)
_EAGER = "recorded with eager attention"
_BATCHED = "recorded with its experts as one batched product"
_UNAWARE = "recorded as it runs when it is not exported"
_OWN_DTYPE = "the original computes in 16 bits by itself"
_NO_NARROW = "the original cannot be recorded in bfloat16"
_HOW = "see docs/port.md, 'Models that do not export'"


@dataclass
class _EagerRun:
    """Findings of the eager run."""

    kinds: dict[str, torch.nn.Module] = field(default_factory=dict)
    # Calls that change one of their arguments in place: a mark would give them a copy to change.
    changed: set[str] = field(default_factory=set)
    # Notes on its choices among equal values.
    ties: list[str] = field(default_factory=list)
    # Lines that ask whether values are finite where they are not; notes on the other such lines.
    odd: dict[str, None] = field(default_factory=dict)
    finite: tuple[str, ...] = ()
    # Functions with their own gradient.
    own_gradients: dict[str, None] = field(default_factory=dict)
    # Integer inputs that are read, known when export failed on values.
    read: tuple[str, ...] = ()
    # Conditions on free sizes, known when it is recorded.
    bounds: tuple[Bound, ...] = ()
    # The structure of its result.
    returned: Any = None
    # Whether it computes in 16 bits by itself.
    narrow: bool = False
    # Inputs whose axes are all left free.
    masks: Collection[str] = ()


def _probe(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> _EagerRun:
    """Run the model once, to see which modules are called and that it takes the inputs.

    It runs again if it replaces modules the first time (BigBird, depending on the input's length).
    """
    before_run = dict(module.named_modules())
    with weights_stay(module):
        called = _probe_once(module, inputs)
    if before_run != dict(module.named_modules()):
        with weights_stay(module):
            called = _probe_once(module, inputs)
    return called


def _probe_once(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> _EagerRun:
    called = _EagerRun()
    versions: dict[str, list[list[tuple[torch.Tensor, int]]]] = {}

    def before(name: str, layer: torch.nn.Module, args: Any, kwargs: Any) -> None:
        called.kinds.setdefault(name, layer)
        tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        versions.setdefault(name, []).append([(x, x._version) for x in tensors])

    def after(name: str) -> None:
        if any(x._version != version for x, version in versions[name].pop()):
            called.changed.add(name)

    with ExitStack() as stack, slow_paths(), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, layer in module.named_modules():
            if not name:
                continue
            for hook in (
                layer.register_forward_pre_hook(
                    lambda m, a, k, name=name: before(name, m, a, k), with_kwargs=True
                ),
                layer.register_forward_hook(lambda m, a, o, name=name: after(name)),
            ):
                stack.callback(hook.remove)
        ties = stack.enter_context(Ties())
        narrow = stack.enter_context(NarrowSeen())
        finite = stack.enter_context(FiniteValues())
        stack.enter_context(inference_is_no_grad())  # tensors of inference have no versions
        stack.enter_context(own_gradients_noted(called.own_gradients))
        try:
            result = module(**inputs)
        except Exception as error:
            raise GraphError(
                f"{type(module).__name__} does not take these inputs ({_first_line(error)})",
                "name what its forward takes: --inputs 'x=float32[2,3,32,32]'",
            ) from error
    called.ties = ties.notes()
    called.returned = returned(result)
    called.narrow = narrow.seen
    called.odd = finite.odd
    return called


def _export(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    fixed: Sequence[str],
    kept: _Kept,
    free: Callable[[int], range],
    called: _EagerRun,
    decomposed: bool,
    in_training: bool,
) -> tuple[torch.export.ExportedProgram, Any, bool]:
    outputs: list[Any] = []
    wrapper = _wrapped(module, inputs, fixed, kept, outputs)
    inputs = {name: tensor for name, tensor in inputs.items() if name not in fixed}
    auto = torch.export.Dim.AUTO
    axes = {name: len(free(2 if name in called.masks else x.dim())) for name, x in inputs.items()}
    axes |= {name: inputs[name].dim() for name in called.masks if axes.get(name) == 2}
    shapes = {name: dict.fromkeys(range(axes[name]), auto) for name in inputs}
    finite = FiniteValues(called.odd)
    with (
        _marked(module, called),
        slow_paths(),
        masks_by_index(),
        modules_stay(),
        attributes_stay(module),
        precision_stays(),
        solvers_stay(),
        distributions_unchecked(),
        grouped_products_recorded(),
        memory_followed(),
        SizedDraws(),
        # The search for the best order of a product of three compares every size, which would fix
        # them.
        torch.backends.opt_einsum.flags(enabled=False),
        _all_frames(),
        gradients_followed(module),
        warnings.catch_warnings(),
        redirect_stderr(io.StringIO()),  # torch.export prints its state there when it fails
        _unlogged(),
        finite,
    ):
        warnings.simplefilter("ignore")
        program = torch.export.export(
            wrapper, (), dict(inputs), dynamic_shapes=shapes, strict=False
        )
        called.bounds = bounds(program, tuple(inputs))
        free_before = free_sides(program, tuple(inputs))
        called.finite = tuple(finite.notes)
        if in_training:
            drawn_anew(program.graph)
        program, apart = _functional(program, decomposed)
        called.bounds += tied(program, tuple(inputs), free_before)
        for node in numbers_read(program.graph):
            frames = frames_of(node)
            raise ReadError(f"{frames[-1] if frames else node}: a number is read from a tensor")
        return program, outputs[-1], apart


class ReadError(RuntimeError):
    """A number that the recording reads, so that the recording depends on values."""


def _functional(
    program: torch.export.ExportedProgram, decomposed: bool
) -> tuple[torch.export.ExportedProgram, bool]:
    """The program without changes in place, and whether torch decomposed it for that.

    A program without such changes need not be recorded a second time, unless `decomposed` is set.
    """
    without_checks(program.graph)
    without_changes(program.graph)
    parts = made_of_others(program.graph)
    if (
        not decomposed
        and not parts
        and not any(_changes(node.target) for node in program.graph.nodes)
    ):
        return program, False
    program = program.run_decompositions(parts)
    while more := {
        target: how for target, how in made_of_others(program.graph).items() if target not in parts
    }:
        parts |= more
        program = program.run_decompositions(more)
    return program, True


def _changes(target: Any) -> bool:
    """Whether an operator changes something in place, or contains other operators."""
    schema = getattr(target, "_schema", None)
    within = isinstance(target, torch._ops.HigherOrderOperator)
    return within or (schema is not None and schema.is_mutable)


class _Wrapper(torch.nn.Module):
    """The model, returning its tensors flat, with their structure in `outputs`."""

    def __init__(
        self, module: torch.nn.Module, fixed: Mapping[str, Any], kept: _Kept, outputs: list[Any]
    ) -> None:
        super().__init__()
        self.model = module
        self._fixed, self._kept = fixed, kept
        self._keep = outputs.append  # export restores changed attributes

    def run(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        fixed = {
            name: torch.tensor(value, dtype=kind) for name, (value, kind) in self._fixed.items()
        }
        with kept_as_numbers(self.model, self._kept):
            outputs = plain(self.model(**inputs, **fixed))
        leaves: list[torch.Tensor] = []

        def place(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            leaves.append(value)
            return OutputLeaf(len(leaves) - 1)

        self._keep(pytree.tree_map(place, outputs))
        return tuple(leaves)


def _wrapped(
    module: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    fixed: Sequence[str],
    kept: _Kept,
    outputs: list[Any],
) -> torch.nn.Module:
    """The wrapper, whose forward has one argument for each input: export leaves no side of
    `**inputs` free.
    """
    free = [name for name in inputs if name not in fixed]
    names = ", ".join(free)
    keywords = ", ".join(f"{name}={name}" for name in free)
    values = {name: (inputs[name].tolist(), inputs[name].dtype) for name in fixed}
    space: dict[str, Any] = {}
    exec(f"def forward(self, {names}): return self.run({keywords})", space)
    return type("_Wrapper", (_Wrapper,), {"forward": space["forward"]})(
        module, values, kept, outputs
    )


@dataclass(frozen=True)
class OutputLeaf:
    """A tensor in the model's result: its position among the graph's outputs."""

    index: int


def plain(value: Any) -> Any:
    """A model's result as tuples, lists and dicts. Dict values that are neither tensors nor None
    are left out.
    """
    if isinstance(value, Mapping) or (hasattr(value, "to_tuple") and hasattr(value, "items")):
        return {str(k): plain(v) for k, v in value.items() if _has_tensors(v)}
    if hasattr(value, "_fields"):
        return tuple(plain(element) for element in value)
    if isinstance(value, list | tuple):
        return tuple(plain(element) for element in value)
    if is_dataclass(value) and not isinstance(value, type):
        held = {field_.name: getattr(value, field_.name) for field_ in fields(value)}
        return plain(held)
    return value


def _has_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensors, value.values()))
    if isinstance(value, list | tuple):
        return any(map(_has_tensors, value))
    return isinstance(value, torch.Tensor)


@contextmanager
def _marked(module: torch.nn.Module, called: _EagerRun) -> Iterator[None]:
    """Label every tensor that enters or leaves a call of a module."""
    numbers: dict[str, int] = {}

    def labeled(kind: str, name: str, number: str, value: Any, above: str = "") -> Any:
        def one(path: Any, leaf: Any) -> Any:
            label = f"{above}{pytree.keystr(path)}"
            if kind == "out" and is_dataclass(leaf) and not isinstance(leaf, type):
                marked = copy(leaf)
                for part in fields(leaf):
                    held = labeled(
                        kind, name, number, getattr(leaf, part.name), f"{label}.{part.name}"
                    )
                    object.__setattr__(marked, part.name, held)
                return marked
            if not isinstance(leaf, torch.Tensor) or isinstance(leaf, torch.nn.Parameter):
                return leaf
            return torch.ops.tpu_migrate.mark(leaf, "|".join((kind, name, number, label)))

        return pytree.tree_map_with_path(one, value)

    def before(name: str, layer: torch.nn.Module, args: Any, kwargs: Any) -> Any:
        numbers[name] = numbers.get(name, -1) + 1
        if name in called.changed:
            return None
        return labeled("in", name, numbered(name, layer), (args, kwargs))

    def numbered(name: str, layer: torch.nn.Module) -> str:
        method = getattr(layer, METHOD, "")
        return f"{numbers[name]}:{method}" if method else str(numbers[name])

    with ExitStack() as stack:
        for name, layer in module.named_modules():
            if not name or name not in called.kinds:
                continue
            for hook in (
                layer.register_forward_pre_hook(
                    lambda m, a, k, name=name: before(name, m, a, k), with_kwargs=True
                ),
                layer.register_forward_hook(
                    lambda m, a, o, name=name: labeled("out", name, numbered(name, m), o)
                ),
            ):
                stack.callback(hook.remove)
        yield


@contextmanager
def _unlogged() -> Iterator[None]:
    """Silence torch's logs: of undecidable conditions, whose exception is reported, and of axes of size 1."""
    names = ("torch.fx.experimental.symbolic_shapes", "torch._export.non_strict_utils")
    loggers = {logger: logger.disabled for logger in map(logging.getLogger, names)}
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, before in loggers.items():
            logger.disabled = before


@contextmanager
def _all_frames() -> Iterator[None]:
    """Keep the frames below a module's forward, which torch drops: they show the functions of the
    original.
    """
    from torch.fx.proxy import TracerBase

    kept = getattr(TracerBase, "_filter_traceback_frames", None)
    if kept is None:
        yield
        return

    def frames(self: Any, user: Any) -> Any:
        inside = (f"{torch.__path__[0]}/", f"{Path(__file__).parent}/")
        return traceback.StackSummary.from_list(
            [frame for frame in user if not frame.filename.startswith(inside)]
        )

    TracerBase._filter_traceback_frames = frames
    try:
        yield
    finally:
        TracerBase._filter_traceback_frames = kept


def _placed(error: BaseException) -> str:
    """The error message, with the line of the model."""
    inside = (f"{torch.__path__[0]}/", f"{Path(__file__).parent}/", "<")
    text = str(error)
    if node := _WHILE.search(text):
        return _of_node(text[: node.start()], node, type(error).__name__, inside)
    said = _first_line(error)
    lines = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(inside)
    ]
    if isinstance(error, ReadError) or not lines:
        return said
    place = f"{'/'.join(Path(lines[-1].filename).parts[-3:])}:{lines[-1].lineno}"
    if not _values_decide(error):
        return f"{place}: {said}"
    expression = re.search(r"data-dependent expression (.*?) \(unhinted", said)
    asked = f" ({expression[1]})" if expression else ""
    return f"{place}: a size or a branch rests on values{asked}: {lines[-1].line}"


# torch's message for a node that fails when the graph runs again, with the lines that it was
# recorded at.
_WHILE = re.compile(
    r"While executing %.*?target=(?:torch\.ops\.)?(?P<op>[\w.]+)\](?P<rest>.*)", re.DOTALL
)
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in .*\n\s*(?P<source>.*)')
# Operators whose result's length depends on values: the number of true or distinct values.
_AS_LONG = ("nonzero", "where.default", "masked_select", "unique", "bincount", "argwhere")


def _of_node(said: str, node: re.Match[str], kind: str, inside: tuple[str, ...]) -> str:
    """The error of a node, with the line of the model, not a line that called the recording."""
    lines = [line for line in _LINE.finditer(node["rest"]) if not line["file"].startswith(inside)]
    place = source = ""
    if lines:
        place = f"{'/'.join(Path(lines[-1]['file']).parts[-3:])}:{lines[-1]['line']}: "
        source = f": {lines[-1]['source'].strip()}"
    op = node["op"].removeprefix("aten.")
    if any(operator in op for operator in _AS_LONG):
        return f"{place}a size rests on values, those of {op.partition('.')[0]}{source}"
    what = " ".join(said.split())[:300]
    return f"{place}{kind}{f': {what}' if what else ''} in {op}{source}"


def _first_line(error: BaseException) -> str:
    # torch's further lines are advice on its own commands.
    text = " ".join(str(error).partition("The error above occurred")[0].split())
    return f"{type(error).__name__}: {text[:300]}"
