"""What Python's `random` and numpy draw in training, where it becomes a tensor (SpecAugment's masks).

A recording has no such draw. The tensors that are made of them become inputs: `host_draws` finds them, and
`replayed` feeds others in their place.
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

# The operator of a recording that stands for such a tensor: (sizes, name, dtype).
DRAWN = "tpu_migrate.drawn_by_host.default"
_RUNS = 4  # in which what is drawn differs, but for one case in many
_NOT_TENSORS = "it draws random numbers by Python or numpy that are no tensors of one shape"
_DRAWING = (np.random.mtrand._rand, random._inst)
# What may stand between the original and a mode that sees what it calls.
_WATCHING = f"{Path(__file__).parents[1] / 'migrate'}/"
_STATES = ("seed", "setstate", "getstate", "set_state", "get_state", "get_bit_generator")


# File and line of the original, and how many tensors this line has made before in the pass.
DrawLocation = tuple[str, int, int]
Make = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class HostDraw:
    """A tensor that is made of what Python or numpy drew.

    Attributes:
        name: of the variable that it is in the original.
        place: where the original makes the tensor.
        value: that of one pass.
    """

    name: str
    place: DrawLocation
    value: torch.Tensor


@dataclass(frozen=True)
class HostDraws:
    """All of them, in one pass.

    Attributes:
        draws: the tensors.
        functions: what was called for them, each with its results in that pass.
    """

    draws: tuple[HostDraw, ...] = ()
    functions: tuple[_DrawingFunction, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variables."""
        return tuple(one.name for one in self.draws)


def host_draws(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> HostDraws:
    """Find what is drawn by Python or numpy in a pass of a model as it is now; the states of both change.

    Raises:
        DrawError: not all of it becomes tensors of one shape in each pass.
    """
    drawing = _Drawing()
    if not _Pass(module, inputs, 0, drawing).drew:
        return HostDraws()
    drawing.results.clear()  # those of functions that were not known to draw when they began
    first = _Pass(module, inputs, 0, drawing)
    functions = drawing.found()
    drawn: dict[DrawLocation, None] = {}
    for seed in range(1, _RUNS):
        other = _Pass(module, inputs, seed, drawing)
        if other.made.keys() != first.made.keys():
            raise DrawError(_NOT_TENSORS)
        for place, one in first.made.items():
            its = other.made[place]
            if one.shape != its.shape or one.dtype != its.dtype:
                raise DrawError(f"{_NOT_TENSORS} ({Path(place[0]).name}:{place[1]})")
            if not torch.equal(one, its):
                drawn[place] = None
    values = {place: one for place, one in first.made.items() if place in drawn}
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
    return HostDraws(tuple(HostDraw(name, *one) for name, one in draws), functions)


def host_states() -> Any:
    """The states of Python's and numpy's generators."""
    return random.getstate(), str(np.random.get_state())


@contextmanager
def replayed(module: torch.nn.Module, values: Mapping[DrawLocation, torch.Tensor]) -> Iterator[None]:
    """Give a model these tensors in place of those that it makes of numbers of Python and numpy.

    Raises:
        DrawError: the model was not seen to make one of them.
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
    """Have a recording of a model show the operator `DRAWN` for each of the tensors.

    What draws gives what it gave before, and computes nothing: sizes that are free stay free.
    """
    if not drawn.draws:
        yield
        return
    sizes = _Sizes()
    names = {one.place: one for one in drawn.draws}

    def operator(place: DrawLocation, make: Make) -> torch.Tensor:
        one = names.get(place)
        if one is None:
            return make()
        _VALUES[one.name] = one.value
        found: torch.Tensor = torch.ops.tpu_migrate.drawn_by_host(
            sizes.of(one.value.shape), one.name, one.value.dtype
        )
        return found

    mode = _Creations(operator)
    with ExitStack() as stack:
        for function in drawn.functions:
            stack.enter_context(function.giving_the_same(module, sizes))
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


# Tensors that are made of what is no tensor.


class _Creations(TorchFunctionMode):
    """Tensors that are made of numbers of Python and numpy: each may be replaced.

    Args:
        replace: given the place of a tensor and what makes it, gives a tensor.
    """

    def __init__(self, replace: Callable[[DrawLocation, Make], torch.Tensor]) -> None:
        super().__init__()
        self._replace = replace
        self._count: Counter[tuple[str, int]] = Counter()
        self._inner: Any = None

    def restart(self) -> None:
        """Begin another pass."""
        self._count.clear()

    def __enter__(self) -> Any:
        self._inner = torch.from_numpy
        # No function mode sees it.
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
    """One pass, with all that draws begun anew by a seed.

    Attributes:
        made: the tensors that were made of numbers of Python and numpy.
        outputs: the leaves of what it gives.
        drew: whether Python or numpy drew anything.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        inputs: Mapping[str, torch.Tensor],
        seed: int,
        drawing: _Drawing,
    ) -> None:
        self.made: dict[DrawLocation, torch.Tensor] = {}
        random.seed(seed)
        np.random.seed(seed)
        before = host_states()

        def note(place: DrawLocation, make: Make) -> torch.Tensor:
            made = make()
            self.made[place] = made.detach().clone()
            return made

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
    """Whether two passes gave the same tensors, bit for bit."""
    return len(outputs) == len(expected) and all(map(_equal, outputs, expected))


def _equal(one: Any, other: Any) -> bool:
    if not isinstance(one, torch.Tensor):
        return True
    return one.shape == other.shape and torch.allclose(one, other, 0, 0, equal_nan=True)


def _variable(place: DrawLocation) -> str:
    """The variable of the original whose numbers a tensor has; "drawn" where there is none."""
    file, line, _ = place
    spans = [(end - start, name) for start, end, name in _variables(file) if start <= line <= end]
    return min(spans)[1] if spans else "drawn"


@functools.cache
def _variables(file: str) -> list[tuple[int, int, str]]:
    """Where a file makes tensors: first and last line, and the variable that it makes one of or is given."""
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
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _makes(node):
            first = (*node.args, None)[0]
            name = first.id if isinstance(first, ast.Name) else assigned.get(node, "drawn")
            found.append((node.lineno, node.end_lineno or node.lineno, name))
    return found


def _makes(node: ast.AST) -> bool:
    """Whether an expression calls what makes a tensor of numbers."""
    if not isinstance(node, ast.Call):
        return False
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    return (name or getattr(node.func, "id", "")) in ("tensor", "as_tensor", "from_numpy")


# What draws, and the function of the original that calls it.


@dataclass(frozen=True)
class _DrawingFunction:
    """A function that draws, where a name holds it.

    Attributes:
        holders: the modules or namespaces that have it, each with the name.
        results: what it gave in a pass; `_DECISION` for single numbers that decide whether a layer runs.
    """

    holders: tuple[tuple[dict[str, Any], str], ...]
    results: tuple[Any, ...]

    @contextmanager
    def giving_the_same(self, module: torch.nn.Module, sizes: _Sizes) -> Iterator[None]:
        """Have it give the results again, from the first one in each pass of a model."""
        calls = [0]
        inner = self.holders[0][0][self.holders[0][1]]

        def given(*args: Any, **kwargs: Any) -> Any:
            number, calls[0] = calls[0], calls[0] + 1
            result = self.results[number % len(self.results)]
            if result is _DECISION:
                return inner(*args, **kwargs)
            sizes.note((args, kwargs))
            return pytree.tree_map(lambda one: one.copy() if _is_array(one) else one, result)

        with _each_pass(module, lambda: calls.__setitem__(0, 0)), _holding(self.holders, given):
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
        for (space, name), one in zip(holders, before, strict=True):
            space[name] = one


@dataclass
class _Drawing:
    """What draws in a pass: the functions that a method of a module calls, directly or through others.

    A first pass of the model finds these functions, and the next one their results.
    """

    holders: dict[Any, tuple[tuple[dict[str, Any], str], ...]] = field(default_factory=dict)
    results: dict[Any, list[Any]] = field(default_factory=dict)

    def found(self) -> tuple[_DrawingFunction, ...]:
        return tuple(
            _DrawingFunction(self.holders[key], tuple(results)) for key, results in self.results.items()
        )

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note what draws, by the functions of numpy and Python that do."""
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
        """Note what functions that draw return."""

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
            made = function(*args, **kwargs)
            self.holders.setdefault((id(space), name), ((space, name),))
            kept = _DECISION if is_decision(made) else made
            self.results.setdefault((id(space), name), []).append(kept)
            return made

        called.__self__ = function.__self__  # type: ignore[attr-defined]
        return called


def _draws(name: str, function: Any) -> bool:
    if name.startswith("_") or name in _STATES:
        return False
    owner = getattr(function, "__self__", None)
    return any(owner is one for one in _DRAWING)


def _outermost_function(
    frame: types.FrameType | None,
) -> tuple[Any, tuple[tuple[dict[str, Any], str], ...]] | None:
    """The function that a method of a module calls and within which all of this runs, and who holds it.

    None where the method draws by itself, or where no name holds the function.
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
    spaces = {id(one): one for one in (frame.f_globals, inside.f_globals)}
    holders = tuple(
        (space, name)
        for space in spaces.values()
        for name, one in list(space.items())
        if getattr(one, "__code__", None) is code
    )
    return (code, holders) if holders else None


class _Sizes:
    """The sizes that functions which draw were given: a recording may have left them free."""

    def __init__(self) -> None:
        self._last: tuple[Any, ...] = ()

    def note(self, given: Any) -> None:
        """Keep what a function is given; tensors by their shapes."""
        leaves = pytree.tree_leaves(
            given, is_leaf=lambda one: isinstance(one, tuple) and all(map(_is_size, one))
        )
        self._last = tuple(
            tuple(one.shape) if isinstance(one, torch.Tensor) else one for one in leaves
        )

    def of(self, shape: Sequence[int]) -> list[Any]:
        """The shape of what was drawn, with free sizes where the function was given such."""
        for one in self._last:
            if isinstance(one, tuple) and [_hint(side) for side in one] == list(shape):
                return list(one)
        flat = [
            side
            for one in self._last
            for side in (one if isinstance(one, tuple) else (one,))
            if isinstance(side, torch.SymInt)
        ]
        return [next((one for one in flat if _hint(one) == side), side) for side in shape]


def _is_size(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def _hint(value: Any) -> int:
    """What a size was when it was recorded."""
    return int(value.node.hint) if isinstance(value, torch.SymInt) else int(value)
