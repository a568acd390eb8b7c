"""Limit on compilations that names the input whose shape changed.

with shims.guard(max_compiles=4):
    for batch in loader:
        step(batch)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

import torch

from shims._shared import tree
from shims.errors import ShimError

_P = ParamSpec("_P")
_R = TypeVar("_R")

# For each leaf of a module's arguments: its path, and the properties that a graph may depend on.
_Inputs = dict[str, str]

_SHOWN = 5


class RecompilationError(ShimError):
    """The loop compiled more often than `shims.guard` allows; each compilation takes seconds to minutes.

    Remedy: give the input named by the message few shapes (`shims.pad_collate`, `BucketSampler`,
    `drop_last=True`). If no input changed, a Python number that differs from step to step is part
    of the graph: make it a tensor on the device. The first one or two steps always compile.
    """


class RecompilationWarning(UserWarning):
    """Warning that `shims.guard(action="warn")` gives instead of raising RecompilationError."""


@dataclass(frozen=True)
class Change:
    """Input of a module that differs from the previous call in a way not seen before.

    Args:
        module: the class of the module.
        input: the argument, with the path in it: `batch['ids']`.
        old: dtype and shape, or the Python value, in the previous call.
        new: the same in this call; "nothing" if the argument is missing.
        where: file:line of the user's call.
    """

    module: str
    input: str
    old: str
    new: str
    where: str

    def __str__(self) -> str:
        return f"input {self.input} of {self.module}: {self.old} → {self.new} at {self.where}"


@dataclass(frozen=True)
class _Compiled:
    """Compilations between two checks, and the input changes before them."""

    times: int
    changes: tuple[Change, ...]
    where: str


def guard(max_compiles: int, *, action: Literal["raise", "warn"] = "raise") -> Guard:
    """Limit how often a block or function may compile, and report which input made it compile.

    Use it as a context manager around a training loop, or as a decorator of a function. While it is
    entered, it records the inputs of each module that the program calls itself (not of inner
    modules).

    With inputs on XLA it counts the compilations of torch_xla in this process, at each such call
    and at the end. Elsewhere nothing compiles. It then counts the distinct input signatures
    (shapes, dtypes, None, bools and strings among the arguments, train or eval) of the module with
    the most. XLA would compile at least this often, so a loop can be checked on a GPU machine. Only
    XLA shows compilations caused by code outside modules and by Python numbers in the graph.

    Args:
        max_compiles: allowed compilations. The first step counts, and with most optimizers the
            second does too, because the first creates their state.
        action: "raise" a RecompilationError, or "warn" once with a RecompilationWarning.

    Returns:
        A `Guard`, whose `compiles` and `changes` can be read during the block and after it.

    Raises:
        ValueError: max_compiles is negative, or action is unknown.
    """
    return Guard(max_compiles, action)


class Guard(contextlib.AbstractContextManager["Guard"]):
    """Context manager and decorator returned by `guard`; see there."""

    def __init__(self, max_compiles: int, action: str = "raise") -> None:
        if max_compiles < 0 or action not in ("raise", "warn"):
            raise ValueError(
                f"guard(max_compiles={max_compiles}, action={action!r}): give a number of at "
                'least 0, and "raise" or "warn"'
            )
        self.max_compiles = max_compiles
        self.action = action
        self._calls = _CallWatch(self._module_called)
        self._reset()

    def _reset(self) -> None:
        self._on_xla = False
        self._warned = False
        self._seen: dict[int, tuple[torch.nn.Module, set[tuple[tuple[str, str], ...]]]] = {}
        self._last: dict[int, _Inputs] = {}
        self._fresh: list[Change] = []
        self._changes: list[Change] = []
        self._compiled: list[_Compiled] = []
        self._where = "the start"
        self._metrics = _metrics()

    @property
    def compiles(self) -> int:
        """Number of compilations so far; without XLA, the distinct signatures of the module with the most."""
        if self._on_xla:
            return sum(compiled.times for compiled in self._compiled)
        return max((len(signatures) for _, signatures in self._seen.values()), default=0)

    @property
    def changes(self) -> tuple[Change, ...]:
        """Inputs that came in a form not seen before, after the first call of their module."""
        return tuple(self._changes)

    def __enter__(self) -> Guard:
        self._reset()
        self._calls.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._calls.stop()
        self._check_compilations()
        # An exception in progress is more important.
        if kind is None:
            self._judge()

    def __call__(self, function: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return the function with every call guarded separately."""

        @functools.wraps(function)
        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with Guard(self.max_compiles, self.action):
                return function(*args, **kwargs)

        return guarded

    def _module_called(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        # Compilations until now were caused by earlier calls.
        self._check_compilations()
        self._judge()
        self._where = _user_line()
        inputs, tensors = _inputs(module, args, kwargs)
        self._on_xla = self._on_xla or any(tensor.device.type == "xla" for tensor in tensors)
        # The module is kept alive, because a freed id may be reused by another module.
        _, signatures = self._seen.setdefault(id(module), (module, set()))
        # Numbers usually do not affect a graph: they are reported but are not part of the
        # signature.
        signature = tuple(
            (path, form) for path, form in inputs.items() if not form.startswith("number ")
        )
        before = self._last.get(id(module))
        new = signature not in signatures
        signatures.add(signature)
        self._last[id(module)] = inputs
        if before is None:
            return
        for path in inputs | before:
            old, now = before.get(path, "nothing"), inputs.get(path, "nothing")
            if old != now and (new or now.startswith("number ")):
                change = Change(type(module).__name__, path, old, now, self._where)
                self._fresh.append(change)
                if new:
                    self._changes.append(change)

    def _check_compilations(self) -> None:
        """Attribute new compilations to the input changes before them."""
        now = _metrics()
        times = now.compiles - self._metrics.compiles
        if times > 0:
            self._compiled.append(_Compiled(times, tuple(self._fresh), self._where))
        # A step that ended without compiling clears its changes.
        if times > 0 or now.steps != self._metrics.steps or not self._on_xla:
            self._fresh.clear()
        self._metrics = now

    def _judge(self) -> None:
        if self.compiles <= self.max_compiles:
            return
        error = RecompilationError(self._what(), self._remedy())
        if self.action == "raise":
            raise error
        if not self._warned:
            self._warned = True
            warnings.warn(str(error), RecompilationWarning, stacklevel=_user_depth())

    def _blamed(self) -> list[Change]:
        changes = self._changes
        if self._on_xla:
            changes = [change for compiled in self._compiled for change in compiled.changes]
        shaped = [change for change in changes if "number " not in change.old + change.new]
        # A number is blamed only if nothing else changed: it usually does not affect a graph.
        return shaped or changes

    def _what(self) -> str:
        blamed = self._blamed()
        unit = "compilations" if self._on_xla else "distinct input signatures"
        what = f"{self.compiles} {unit}, {self.max_compiles} allowed"
        if blamed:
            listed = [str(change) for change in dict.fromkeys(blamed)]
            more = [f"and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
            return f"{what}: " + "; ".join(listed[:_SHOWN] + more)
        places = ", ".join(dict.fromkeys(compiled.where for compiled in self._compiled[-_SHOWN:]))
        return f"{what}: no input of a module changed shape (compiled after {places})"

    def _remedy(self) -> str:
        blamed = self._blamed()
        if not blamed:
            return (
                "look for a Python number that differs from step to step in the graph (make it a "
                "tensor), a tensor made with another shape or dtype outside modules, or .item() in "
                "the step"
            )
        if all(change.new.startswith("number ") for change in blamed):
            return "no input changed shape: give the number as a tensor on the device"
        return "pad to few shapes (shims.pad_collate, shims.BucketSampler) or use drop_last=True"


@dataclass(frozen=True)
class _Metrics:
    compiles: int
    steps: int


def _metrics() -> _Metrics:
    """Return torch_xla's counts for this process; zeros if torch_xla is not in use."""
    c_layer = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    if c_layer is None:
        return _Metrics(0, 0)
    compiled = c_layer._xla_metric_data("CompileTime")
    return _Metrics(compiled[0] if compiled else 0, c_layer._xla_counter_value("MarkStep") or 0)


def _inputs(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[_Inputs, list[torch.Tensor]]:
    """Return the properties that a graph may depend on, by argument path, and the argument tensors."""
    inputs: _Inputs = {"train/eval mode": "train" if module.training else "eval"}
    tensors: list[torch.Tensor] = []
    names = _parameter_names(type(module).forward, len(args))
    for name, argument in [*zip(names, args, strict=True), *kwargs.items()]:
        for path, leaf in tree.leaves(argument, name):
            if isinstance(leaf, torch.Tensor):
                tensors.append(leaf)
            inputs[path] = _form(leaf)
    return inputs, tensors


def _form(leaf: object) -> str:
    if isinstance(leaf, torch.Tensor):
        return f"{str(leaf.dtype).removeprefix('torch.')}{list(leaf.shape)}"
    if leaf is None or isinstance(leaf, bool | str):
        return repr(leaf)
    if isinstance(leaf, int | float | complex):
        return f"number {leaf!r}"
    return type(leaf).__name__


@functools.lru_cache(maxsize=256)
def _parameter_names(forward: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Return names for `count` positional arguments of a `forward`; positions for unnamed ones."""
    names: list[str] = []
    with contextlib.suppress(ValueError, TypeError):  # a forward without a signature
        for parameter in list(inspect.signature(forward).parameters.values())[1:]:
            if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                break
            names.append(parameter.name)
    names = names[:count]
    return (*names, *(f"argument {position}" for position in range(len(names), count)))


class _CallWatch:
    """Callback before each module that the program calls itself, but not before inner modules."""

    def __init__(self, called: Callable[..., None]) -> None:
        self._called = called
        self._handles: list[Any] = []
        self._inside = threading.local()

    def start(self) -> None:
        hooks = torch.nn.modules.module
        self._inside.depth = 0
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before),
            # Also called if forward raises, so that the depth stays correct.
            hooks.register_module_forward_hook(self._after, always_call=True),
        ]

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _before(self, module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        # Only in the thread that entered the guard: loader threads run their own modules.
        depth = getattr(self._inside, "depth", None)
        if depth is None:
            return
        self._inside.depth = depth + 1
        if depth == 0:
            self._called(module, args, _keywords(module))

    def _after(self, module: torch.nn.Module, args: object, output: object) -> None:
        depth = getattr(self._inside, "depth", None)
        if depth:
            self._inside.depth = depth - 1


def _keywords(module: torch.nn.Module) -> dict[str, Any]:
    # A hook for all modules does not receive keyword arguments. The frame of torch's caller holds
    # them; every torch version with these hooks has a frame of this name.
    frame = sys._getframe(2)
    for _ in range(3):
        if frame.f_code.co_name in ("_call_impl", "inner") and "kwargs" in frame.f_locals:
            kwargs = frame.f_locals["kwargs"]
            return dict(kwargs) if isinstance(kwargs, dict) else {}
        if frame.f_back is None:
            break
        frame = frame.f_back
    return {}


_OURS = (str(Path(__file__).parent), str(Path(torch.__file__).parent))


def _user_depth() -> int:
    """Return how many frames above the caller the user's code is, for `warnings`."""
    depth = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
        depth += 1
    return depth


def _user_line() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
