"""Random draws of Python's `random` and numpy in training that become tensors (SpecAugment's masks).

A recording does not contain such draws. The tensors made of them become inputs: `host_draws` finds
them, and `replayed` supplies other values.
"""

from __future__ import annotations

import ast
import functools
import linecache
import random
import sys
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from converters.original_lines import OURS, frame_of_original
from converters.single_draws import DrawError, draws_compared, is_decision
from converters.slow_paths import slow_paths

# Operator that represents such a tensor in a recording: (sizes, name, dtype).
DRAWN = "tpu_migrate.drawn_by_host.default"
_RUNS = 4  # number of passes, in which drawn values differ almost surely
_NOT_TENSORS = "it draws random numbers by Python or numpy that are no tensors of one shape"
_DRAWING = (np.random.mtrand._rand, random._inst)
# Paths of files that may lie between the original and a mode that observes its calls.
_WATCHING = f"{Path(__file__).parents[1] / 'migrate'}/"
_STATES = ("seed", "setstate", "getstate", "set_state", "get_state", "get_bit_generator")


# File and line of the original, and the number of tensors that this line has made before in the
# pass.
DrawLocation = tuple[str, int, int]
Make = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class HostDraw:
    """Tensor made of numbers drawn by Python or numpy.

    Attributes:
        name: the variable's name in the original.
        place: the location where the original makes the tensor.
        value: its value in one pass.
    """

    name: str
    place: DrawLocation
    value: torch.Tensor


@dataclass(frozen=True)
class HostDraws:
    """Draws of one pass.

    Attributes:
        draws: the tensors.
        functions: the functions called for them, each with its results in that pass.
    """

    draws: tuple[HostDraw, ...] = ()
    functions: tuple[_DrawingFunction, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the variables."""
        return tuple(draw.name for draw in self.draws)


def host_draws(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> HostDraws:
    """Find the draws of Python or numpy in a pass of a model; the random states of both change.

    Raises:
        DrawError: some draws do not become tensors of one shape in each pass.
    """
    drawing = _DrawRecorder()
    if not _Pass(module, inputs, 0, drawing).drew:
        return HostDraws()
    drawing.results.clear()  # results of functions that were not yet known to draw when they began
    first = _Pass(module, inputs, 0, drawing)
    functions = drawing.functions()
    drawn: dict[DrawLocation, None] = {}
    for seed in range(1, _RUNS):
        other = _Pass(module, inputs, seed, drawing)
        if other.tensors.keys() != first.tensors.keys():
            raise DrawError(_NOT_TENSORS)
        for place, tensor in first.tensors.items():
            repeated = other.tensors[place]
            if tensor.shape != repeated.shape or tensor.dtype != repeated.dtype:
                raise DrawError(f"{_NOT_TENSORS} ({Path(place[0]).name}:{place[1]})")
            if not torch.equal(tensor, repeated):
                drawn[place] = None
    values = {place: tensor for place, tensor in first.tensors.items() if place in drawn}
    with replayed(module, values):
        again = _Pass(module, inputs, _RUNS, drawing)
    if not drawn or not all_equal(first.outputs, again.outputs):
        raise DrawError(_NOT_TENSORS)
    names: list[str] = []
    for place in values:
        plain = _variable(place)
        number = 1 + (plain in inputs)
        while (name := f"{plain}_{number}" if number > 1 else plain) in names:
            number += 1
        names.append(name)
    draws = zip(names, values.items(), strict=True)
    return HostDraws(tuple(HostDraw(name, *item) for name, item in draws), functions)


def host_states() -> Any:
    """Return the states of Python's and numpy's generators."""
    return random.getstate(), str(np.random.get_state())


@contextmanager
def replayed(
    module: torch.nn.Module, values: Mapping[DrawLocation, torch.Tensor]
) -> Iterator[None]:
    """Replace the tensors that a model makes of drawn numbers by these values.

    Raises:
        DrawError: the model did not make one of the tensors.
    """
    used: set[DrawLocation] = set()

    def replace(place: DrawLocation, make: Make) -> torch.Tensor:
        if place not in values:
            return make()
        used.add(place)
        return values[place]

    mode = _Creations(replace)
    with _each_pass(module, mode.restart), mode:
        yield
    for file, line, _ in values.keys() - used:
        raise DrawError(f"what {Path(file).name}:{line} draws was not replaced")


@contextmanager
def recorded_draws(module: torch.nn.Module, drawn: HostDraws) -> Iterator[None]:
    """Make a recording of a model show the operator `DRAWN` for each of the tensors.

    Functions that draw return their previous results without computing: free sizes stay free.
    """
    if not drawn.draws:
        yield
        return
    sizes = _Sizes()
    names = {draw.place: draw for draw in drawn.draws}

    def operator(place: DrawLocation, make: Make) -> torch.Tensor:
        draw = names.get(place)
        if draw is None:
            return make()
        _VALUES[draw.name] = draw.value
        tensor: torch.Tensor = torch.ops.tpu_migrate.drawn_by_host(
            sizes.of(draw.value.shape), draw.name, draw.value.dtype
        )
        return tensor

    mode = _Creations(operator)
    with ExitStack() as stack:
        for function in drawn.functions:
            stack.enter_context(function.replaying_results(module, sizes))
        stack.enter_context(_each_pass(module, mode.restart))
        stack.enter_context(mode)
        yield


_VALUES: dict[str, torch.Tensor] = {}


@torch.library.custom_op("tpu_migrate::drawn_by_host", mutates_args=())
def _drawn_by_host(sizes: Sequence[int], name: str, dtype: torch.dtype) -> torch.Tensor:
    return _VALUES[name].clone()


@_drawn_by_host.register_fake
def _(sizes: Sequence[int], name: str, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype)


@contextmanager
def _each_pass(module: torch.nn.Module, begin: Callable[[], None]) -> Iterator[None]:
    begin()
    hook = module.register_forward_pre_hook(lambda *_: begin(), prepend=True)
    try:
        yield
    finally:
        hook.remove()


# Functions that make tensors of other values.


class _Creations(TorchFunctionMode):
    """Mode that observes tensors made of numbers of Python and numpy, each of which may be replaced.

    Args:
        replace: returns a tensor for the location of a tensor and the function that makes it.
    """

    def __init__(self, replace: Callable[[DrawLocation, Make], torch.Tensor]) -> None:
        super().__init__()
        self._replace = replace
        self._count: Counter[tuple[str, int]] = Counter()
        self._inner: Any = None

    def restart(self) -> None:
        """Start another pass."""
        self._count.clear()

    def __enter__(self) -> Any:
        self._inner = torch.from_numpy
        # No function mode observes it.
        torch.from_numpy = lambda array: self._placed(lambda: self._inner(array))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        torch.from_numpy = self._inner
        super().__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def make() -> Any:
            return func(*args, **(kwargs or {}))

        of_tensor = bool(args) and isinstance(args[0], torch.Tensor)
        if func in (torch.tensor, torch.as_tensor) and not of_tensor:
            return self._placed(make)
        return make()

    def _placed(self, make: Make) -> torch.Tensor:
        frame = frame_of_original(_WATCHING)
        line = (frame.filename, frame.lineno or 0) if frame is not None else ("", 0)
        self._count[line] += 1
        return self._replace((*line, self._count[line] - 1), make)


class _Pass:
    """Pass of the model with all random states reset by a seed.

    Attributes:
        tensors: the tensors made of numbers of Python and numpy.
        outputs: the leaves of the model's output.
        drew: whether Python or numpy drew anything.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Mapping[str, torch.Tensor],
        seed: int,
        drawing: _DrawRecorder,
    ) -> None:
        self.tensors: dict[DrawLocation, torch.Tensor] = {}
        random.seed(seed)
        np.random.seed(seed)
        before = host_states()

        def note(place: DrawLocation, make: Make) -> torch.Tensor:
            tensor = make()
            self.tensors[place] = tensor.detach().clone()
            return tensor

        with (
            slow_paths(),
            torch.no_grad(),
            warnings.catch_warnings(),
            torch.random.fork_rng(devices=[]),
            draws_compared(),
            drawing.noted(),
            _Creations(note),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            self.outputs = pytree.tree_leaves(module(**inputs))
        self.drew = host_states() != before


def all_equal(outputs: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether two passes returned the same tensors, bit for bit."""
    return len(outputs) == len(expected) and all(map(_equal, outputs, expected))


def _equal(first: Any, other: Any) -> bool:
    if not isinstance(first, torch.Tensor):
        return True
    return first.shape == other.shape and torch.allclose(first, other, 0, 0, equal_nan=True)


def _variable(place: DrawLocation) -> str:
    """Return the variable of the original for a tensor; "drawn" without one."""
    file, line, _ = place
    spans = [(end - start, name) for start, end, name in _variables(file) if start <= line <= end]
    return min(spans)[1] if spans else "drawn"


@functools.cache
def _variables(file: str) -> list[tuple[int, int, str]]:
    """Return the statements of a file that make tensors: first and last line, and the variable."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    assigned: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if len(targets) == 1 and isinstance(targets[0], ast.Name):
            value = node.value  # type: ignore[attr-defined]
            while value is not None and not _makes(value):
                chained = isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)
                value = value.func.value if chained else None
            if value is not None:
                assigned[value] = targets[0].id
    statements = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _makes(node):
            first = (*node.args, None)[0]
            name = first.id if isinstance(first, ast.Name) else assigned.get(node, "drawn")
            statements.append((node.lineno, node.end_lineno or node.lineno, name))
    return statements


def _makes(node: ast.AST) -> bool:
    """Whether an expression calls a function that makes a tensor of numbers."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return (name or getattr(node.func, "id", "")) in ("tensor", "as_tensor", "from_numpy")


# Functions that draw, and the function of the original that calls them.


@dataclass(frozen=True)
class _DrawingFunction:
    """Function that draws, held by a name.

    Attributes:
        holders: the namespaces that contain it, each with the name.
        results: its results in a pass; `_DECISION` for single numbers that decide whether a layer runs.
    """

    holders: tuple[tuple[dict[str, Any], str], ...]
    results: tuple[Any, ...]

    @contextmanager
    def replaying_results(self, module: torch.nn.Module, sizes: _Sizes) -> Iterator[None]:
        """Make the function return its recorded results again, from the first in each pass of a model."""
        calls = [0]
        inner = self.holders[0][0][self.holders[0][1]]

        def recorded_result(*args: Any, **kwargs: Any) -> Any:
            number, calls[0] = calls[0], calls[0] + 1
            result = self.results[number % len(self.results)]
            if result is _DECISION:
                return inner(*args, **kwargs)
            sizes.note((args, kwargs))
            return pytree.tree_map(
                lambda value: value.copy() if _is_array(value) else value, result
            )

        with (
            _each_pass(module, lambda: calls.__setitem__(0, 0)),
            _holding(self.holders, recorded_result),
        ):
            yield


_DECISION = object()


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


@contextmanager
def _holding(holders: Sequence[tuple[dict[str, Any], str]], function: Any) -> Iterator[None]:
    before = [space[name] for space, name in holders]
    for space, name in holders:
        space[name] = function
    try:
        yield
    finally:
        for (space, name), value in zip(holders, before, strict=True):
            space[name] = value


@dataclass
class _DrawRecorder:
    """Recorder of the functions that draw in a pass: called by a method of a module, directly or
    indirectly.

    A first pass of the model finds these functions, and the next one their results.
    """

    holders: dict[Any, tuple[tuple[dict[str, Any], str], ...]] = field(default_factory=dict)
    results: dict[Any, list[Any]] = field(default_factory=dict)

    def functions(self) -> tuple[_DrawingFunction, ...]:
        return tuple(
            _DrawingFunction(self.holders[key], tuple(results))
            for key, results in self.results.items()
        )

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Record draws of the functions of numpy and Python."""
        with ExitStack() as stack:
            for space in (vars(np.random), vars(random)):
                for name, function in list(space.items()):
                    if _draws(name, function):
                        noting = self._noting(function, space, name)
                        stack.enter_context(_holding([(space, name)], noting))
            stack.enter_context(self._returns())
            yield

    @contextmanager
    def _returns(self) -> Iterator[None]:
        """Record the results of functions that draw."""

        def seen(frame: types.FrameType, event: str, value: Any) -> None:
            if event == "return" and frame.f_code in self.holders:
                self.results.setdefault(frame.f_code, []).append(value)

        before = sys.getprofile()
        sys.setprofile(seen)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _noting(self, function: Any, space: dict[str, Any], name: str) -> Any:
        def called(*args: Any, **kwargs: Any) -> Any:
            outermost = _outermost_function(sys._getframe(1))
            if outermost is not None:
                code, holders = outermost
                self.holders.setdefault(code, holders)
                return function(*args, **kwargs)
            result = function(*args, **kwargs)
            self.holders.setdefault((id(space), name), ((space, name),))
            kept = _DECISION if is_decision(result) else result
            self.results.setdefault((id(space), name), []).append(kept)
            return result

        called.__self__ = function.__self__  # type: ignore[attr-defined]
        return called


def _draws(name: str, function: Any) -> bool:
    if name.startswith("_") or name in _STATES:
        return False
    owner = getattr(function, "__self__", None)
    return any(owner is drawing for drawing in _DRAWING)


def _outermost_function(
    frame: types.FrameType | None,
) -> tuple[Any, tuple[tuple[dict[str, Any], str], ...]] | None:
    """Return the outermost function below a module's method that contains the draw, and its holders.

    The result is None if the method draws itself, or if no name holds the function.
    """
    inside: types.FrameType | None = None
    while frame is not None:
        code = frame.f_code
        first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        if isinstance(first, torch.nn.Module):
            break
        if not code.co_filename.startswith(OURS):
            inside = frame
        frame = frame.f_back
    if inside is None or frame is None:
        return None
    code = inside.f_code
    spaces = {id(namespace): namespace for namespace in (frame.f_globals, inside.f_globals)}
    holders = tuple(
        (space, name)
        for space in spaces.values()
        for name, value in list(space.items())
        if getattr(value, "__code__", None) is code
    )
    return (code, holders) if holders else None


class _Sizes:
    """Sizes passed to functions that draw, which a recording may have left free."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()

    def note(self, arguments: Any) -> None:
        """Record the arguments of a function; tensors by their shapes."""
        leaves = pytree.tree_leaves(
            arguments, is_leaf=lambda value: isinstance(value, tuple) and all(map(_is_size, value))
        )
        self._last = tuple(
            tuple(leaf.shape) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves
        )

    def of(self, shape: Sequence[int]) -> list[Any]:
        """Return the shape of a drawn tensor, with the free sizes among the function's arguments."""
        for value in self._last:
            if isinstance(value, tuple) and [_hint(side) for side in value] == list(shape):
                return list(value)
        flat = [
            side
            for value in self._last
            for side in (value if isinstance(value, tuple) else (value,))
            if isinstance(side, torch.SymInt)
        ]
        return [next((size for size in flat if _hint(size) == side), side) for side in shape]


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _hint(value: Any) -> int:
    """Return the value of a size at the time of recording."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else int(value)
