"""Writes of torch to a model's tensors while its factory runs: draws, constants, copies."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from converters.graph.starts.law import (
    Computed,
    Constant,
    Draw,
    Law,
    Norm,
    Number,
    Orthogonal,
    Other,
    Patched,
    Sequence,
    Unset,
    along,
    applied,
    is_drawn,
    sequence,
)
from converters.graph.starts.origin import number

_INIT = "torch/nn/init.py"
# Code of torch and of libraries between a call in the original and the operator.
_BETWEEN = (_INIT, "transformers/initialization.py", "torch/_tensor.py", "torch/_refs/__init__.py")
_BETWEEN_NAMES = ("torch/utils/_", "torch/overrides.py", "torch/_ops.py", "graph/starts/")
_COPIES = ("clone", "_to_copy", "contiguous", "lift_fresh", "lift_fresh_copy", "detach", "alias")
_EMPTY = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided")
_FILLED = {"zeros": 0.0, "ones": 1.0, "zeros_like": 0.0, "ones_like": 1.0}
_FILLED |= {"new_zeros": 0.0, "new_ones": 1.0}
_DRAWN = {"rand": "uniform", "rand_like": "uniform", "randn": "normal", "randn_like": "normal"}
_RANDOM: tuple[str, ...] = (
    "bernoulli",
    "randint",
    "randperm",
    "multinomial",
    "poisson",
    "exponential",
    "cauchy",
)
_RANDOM += ("geometric", "log_normal", "random", "normal", "dropout", "randint_like", "binomial")
# Functions of torch.nn.init that are identified by their arguments, not by their operators.
_FAR = 6.0  # standard deviations that no draw of float32 reaches
_NAMED = ("kaiming_uniform_", "kaiming_normal_", "xavier_uniform_", "xavier_normal_")


@dataclass(frozen=True)
class Start:
    """Initial value of a tensor of the model.

    Attributes:
        law: law of its values.
        values: the values if they are computed or constant; None if they are drawn.
    """

    law: Law
    values: np.ndarray[Any, Any] | None = None


class Starts(dict[str, Start]):
    """Initial values of a model's parameters and buffers, by their names in the state dict.

    Attributes:
        paths: identity of each watched module of the model → its path.
    """

    def __init__(self, starts: Mapping[str, Start], paths: Mapping[int, str]) -> None:
        super().__init__(starts)
        self.paths = paths


@dataclass
class _State:
    """A storage's law, and slices with other laws."""

    law: Law
    patches: list[tuple[int, int, Law]] = field(default_factory=list)
    # While this reference exists, no other storage gets its number; its memory is freed.
    storage: StorageWeakRef | None = None


class Watch(TorchDispatchMode):
    """Dispatch mode that records what each operator writes."""

    def __init__(self) -> None:
        super().__init__()
        self.states: dict[int, _State] = {}
        self.draws = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operator and record what it wrote."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        try:
            self._note(func, args, kwargs, result)
        except Exception:  # a tensor of another kind, or code that is not as it is elsewhere
            self._forget(func, (*args, *kwargs.values(), result))
        return result

    def _forget(self, func: Any, values: Any) -> None:
        """Drop what is known of an operator's tensors."""
        for tensor in _tensors(values):
            with suppress(Exception):
                law = Other(func._schema.name.partition("::")[2])
                self.states[_key(tensor)] = _State(
                    law, [], StorageWeakRef(tensor.untyped_storage())
                )

    def starts(self, model: torch.nn.Module) -> Starts:
        """Initial value of each parameter and buffer of the model; tensors not seen when made are
        left out.
        """
        starts = {}
        named = [
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        ]
        for name, tensor in named:
            try:
                state = self.states.get(_key(tensor))
            except (NotImplementedError, RuntimeError, ValueError):  # of lazy layers
                continue
            if state is None:
                continue
            # A tensor without elements (no register tokens) may start as anything.
            empty = Constant(Number(0.0, literal=True))
            law = self._law(tensor) if tensor.numel() else empty
            values = None
            if not is_drawn(law) and tensor.device.type == "cpu":
                values = _array(tensor.detach())
            starts[name] = Start(law, values)
        return Starts(starts, {id(module): path for path, module in model.named_modules()})

    # Laws of what operators write.

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> None:
        schema = func._schema
        name = schema.name.partition("::")[2]
        written = [
            args[at]
            for at, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write and at < len(args)
        ]
        if written:
            for tensor in written:
                if isinstance(tensor, torch.Tensor):
                    self._write(tensor, self._made(name.rstrip("_"), args, kwargs, tensor))
            return
        if name == "lift_fresh":  # numbers of Python
            storage = StorageWeakRef(args[0].untyped_storage())
            self.states[_key(args[0])] = _State(Computed(), storage=storage)
            return
        if any(result.alias_info is not None for result in schema.returns):
            return  # a view
        for tensor in out if isinstance(out, list | tuple) else (out,):
            if isinstance(tensor, torch.Tensor):
                law = self._made(name, args, kwargs, tensor)
                self.states[_key(tensor)] = _State(
                    law, storage=StorageWeakRef(tensor.untyped_storage())
                )

    def _write(self, tensor: torch.Tensor, law: Law) -> None:
        key = _key(tensor)
        if _whole(tensor):
            self.states[key] = _State(law, storage=StorageWeakRef(tensor.untyped_storage()))
            return
        state = self.states.setdefault(
            key, _State(Computed(), storage=StorageWeakRef(tensor.untyped_storage()))
        )
        start = tensor.storage_offset()
        if tensor.is_contiguous():
            state.patches.append((start, start + tensor.numel(), law))
        elif is_drawn(state.law) or is_drawn(law) or state.patches:
            state.law = Other("values written into a part of it")
        else:
            state.law = Computed()

    def _law(self, tensor: torch.Tensor) -> Law:
        """The law of a tensor."""
        state = self.states.get(_key(tensor))
        if state is None:
            return Computed()
        if (held := sequence(state.law)) is not None:
            axis = None if state.patches else _axis_of(tensor, held)
            return Computed() if axis is None else along(state.law, axis, tuple(tensor.shape))
        if not _whole(tensor):
            if is_drawn(state.law) and not state.patches:
                return state.law
            return Other("part of a larger tensor") if self._random(state) else Computed()
        if not state.patches:
            return state.law
        if not self._random(state) and not _few_constants(state):
            return Computed()
        wide = max(1, tensor.numel() // tensor.shape[0]) if tensor.dim() else 1
        if not tensor.is_contiguous() or any(
            start % wide or stop % wide for start, stop, _ in state.patches
        ):
            return Other("values written into a part of it")
        patches = [(start // wide, stop // wide, law) for start, stop, law in state.patches]
        return Patched(state.law, tuple(patches))

    def _random(self, state: _State) -> bool:
        return is_drawn(state.law) or any(is_drawn(law) for _, _, law in state.patches)

    def _made(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], target: torch.Tensor
    ) -> Law:
        """The law of an operator's output."""
        frames = _frames()
        named = _in_init(frames, target)
        if named is not None and (law := self._named(named, frames, target)) is not None:
            return law
        caller = next((frame for frame in frames if not _between(frame)), None)
        values = [
            argument
            for argument in args
            if isinstance(argument, int | float) and not isinstance(argument, bool)
        ]
        match name:
            case "uniform":
                low, high = _two(args, kwargs, ("from", "to"), (0.0, 1.0))
                return self._draw("uniform", low, high, caller, frames)
            case "normal" if isinstance(args[0], torch.Tensor) and args[0] is target:
                mean, std = _two(args, kwargs, ("mean", "std"), (0.0, 1.0))
                return self._draw("normal", mean, std, caller, frames, target)
            case "normal" if values and not isinstance(args[0], torch.Tensor):
                mean, std = float(args[0]), float(args[1])
                return self._draw("normal", mean, std, caller, frames)
            case "rand" | "rand_like" | "randn" | "randn_like":
                if not target.dtype.is_floating_point:
                    return Other(name)
                return self._draw(_DRAWN[name], 0.0, 1.0, None, frames)
            case "zero" | "zeros" | "ones" | "zeros_like" | "ones_like" | "new_zeros" | "new_ones":
                return Constant(Number(_FILLED.get(name, 0.0), literal=True))
            case "fill" | "full" | "full_like" | "new_full":
                value = args[2] if name == "new_full" else args[1]
                if isinstance(value, torch.Tensor):
                    return Other(name) if is_drawn(self._law(value)) else Computed()
                if isinstance(value, bool | complex):
                    return Computed()
                plain = value in (0, 1)
                names = ("val", "value", "fill_value")
                said = Number(float(value), literal=True) if plain else number(value, caller, names)
                return Constant(said)
        if name == "arange" and values and not isinstance(args[0], torch.Tensor):
            first, step = (values[0] if len(values) > 1 else 0, values[2] if len(values) > 2 else 1)
            numbers = [
                Number(float(number_value), literal=True)
                if number_value in (0, 1)
                else number(number_value, caller)
                for number_value in (first, step)
            ]
            return Sequence(numbers[0], numbers[1], -1, tuple(target.shape))
        if name in _EMPTY:
            return Unset()
        if name in _RANDOM:
            return Other(name)
        if name in ("copy", "set") and len(args) > 1 and isinstance(args[1], torch.Tensor):
            return self._law(args[1])
        if name in _COPIES:
            return self._law(args[0])
        laws = [self._law(argument) for argument in _tensors((*args, *kwargs.values()))]
        drawn = any(is_drawn(law) for law in laws)
        if drawn and name in ("norm", "linalg_vector_norm") and args[1:2] in ((), (2,)):
            return Norm(laws[0])
        if not drawn and not any(sequence(law) or isinstance(law, Constant) for law in laws):
            return Computed()
        law_of_call = self._applied(name, args, kwargs, caller)
        return law_of_call if drawn or not isinstance(law_of_call, Other) else Computed()

    def _applied(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        caller: FrameType | None,
    ) -> Law:
        tensors = list(_tensors((*args, *kwargs.values())))
        shapes = {tensor.shape for tensor in tensors if tensor.dim()}
        alpha = kwargs.get("alpha", 1)
        if len(shapes) != 1 or alpha != 1 or (name in ("add", "sub") and len(args) > 2):
            return Other(name)
        inputs: list[Law | Number] = []
        for argument in args:
            if isinstance(argument, torch.Tensor):
                inputs.append(self._law(argument))
            elif isinstance(argument, int | float) and not isinstance(argument, bool):
                inputs.append(number(argument, caller))
            elif argument is not None:
                return Other(name)
        if name == "clamp":
            low, high = _two(args, kwargs, ("min", "max"), (None, None))
            if low is None or high is None:
                name = "clamp_max" if low is None else "clamp_min"
                inputs = [inputs[0], number(high if low is None else low, caller, ("min", "max"))]
            else:
                inputs = [inputs[0], number(low, caller, ("min",)), number(high, caller, ("max",))]
        elif set(kwargs) - {"alpha"}:
            return Other(name)
        return applied(name, tuple(inputs))

    # Draws.

    def _draw(
        self,
        kind: Any,
        first: Any,
        second: Any,
        caller: FrameType | None,
        frames: list[FrameType],
        target: torch.Tensor | None = None,
    ) -> Law:
        self.draws += 1
        names = {"uniform": ("from", "a"), "normal": ("mean",)}[kind]
        others = {"uniform": ("to", "b"), "normal": ("std",)}[kind]
        literal = caller is None
        low = Number(first, literal=True) if literal else _given(first, caller, names)
        high = Number(second, literal=True) if literal else _given(second, caller, others)
        rule = _rule(frames) if _reset(frames) else ""
        if not rule and target is not None and second and kind == "normal":
            named = _by_fans(frames, target, float(second))
            if named is not None:
                return Draw(kind, low, high, named=named, serial=self.draws)
        return Draw(kind, low, high, rule=rule, serial=self.draws)

    def _named(self, frame: FrameType, frames: list[FrameType], target: torch.Tensor) -> Law | None:
        """The law that a running function of torch.nn.init draws from."""
        name, arguments = frame.f_code.co_name, frame.f_locals
        caller = next((outer for outer in frames if not _between(outer)), None)
        if name == "trunc_normal_":
            self.draws += 1
            std = number(arguments["std"], caller, ("std",))
            mean = number(arguments["mean"], caller, ("mean",))
            edges = [number(arguments[edge_name], caller, (edge_name,)) for edge_name in ("a", "b")]
            named = {"mean": mean, "std": std, "a": edges[0], "b": edges[1]}
            fans = _by_fans(frames, target, std.value)
            ends = [
                Number((edge.value - mean.value) / std.value if std.value else 0.0)
                for edge in edges
            ]
            far = min(-ends[0].value, ends[1].value) > _FAR
            if fans is not None and std.origin is None and mean.value == 0 and far:
                return Draw("normal", mean, std, named=fans, serial=self.draws)
            call = (name, named)
            return Draw("truncated", ends[0], ends[1], std, mean, call, serial=self.draws)
        if name == "orthogonal_":
            self.draws += 1
            return Orthogonal(number(arguments["gain"], caller, ("gain",)), self.draws)
        if name == "sparse_":
            return Other("sparse_")
        if name in _NAMED and "tensor" in arguments:
            options: dict[str, Any] = {
                key: arguments[key]
                for key in ("a", "mode", "nonlinearity", "gain")
                if key in arguments
            }
            tensor = arguments["tensor"]
            self.draws += 1
            # Gains and bounds follow from these options and the tensor's shape.
            spread = Number(_spread(name, options, tensor))
            zero = Number(0.0, literal=True)
            if "uniform" in name:
                low = Number(-spread.value)
                return Draw("uniform", low, spread, named=(name, options), serial=self.draws)
            return Draw("normal", zero, spread, named=(name, options), serial=self.draws)
        return None


def _axis_of(tensor: torch.Tensor, held: Sequence) -> int | None:
    """Axis of a view along which a sequence lies, counted from the end; None if it is cut or
    transposed.
    """
    if tensor.shape == held.shape and tensor.is_contiguous():
        return held.axis
    length = held.shape[held.axis]
    if math.prod(held.shape) != length or tensor.storage_offset():
        return None
    sides = list(zip(tensor.shape, tensor.stride(), strict=True))
    lying = [at for at, (side, stride) in enumerate(sides) if side > 1 and stride]
    if len(lying) != 1 or sides[lying[0]] != (length, 1):
        return None
    return lying[0] - tensor.dim()


def _few_constants(state: _State) -> bool:
    """Whether a storage holds a constant with at most a few slices of other constants."""
    laws = [state.law, *(law for _, _, law in state.patches)]
    return len(laws) <= 5 and all(isinstance(law, Constant) for law in laws)


def _by_fans(
    frames: list[FrameType], target: torch.Tensor, std: float
) -> tuple[str, Mapping[str, Any]] | None:
    """The library initializer that scales by fan-in and fan-out, and its arguments; None if there
    is none.
    """
    for frame in frames[:14]:
        if _file(frame).endswith(_INIT):
            continue
        held = frame.f_locals
        tensor, fan = held.get("tensor"), held.get("denom")
        if not isinstance(tensor, torch.Tensor) or _key(tensor) != _key(target) or not fan:
            continue
        fans = {"fan_in": held.get("fan_in"), "fan_out": held.get("fan_out")}
        if None in fans.values():
            continue
        mode = held.get("mode")
        average = sum(fans.values()) / 2  # type: ignore[arg-type]
        if fan == (fans | {"fan_avg": average}).get(str(mode)):
            return "fans", {"mode": mode, "variance": std**2 * fan}
    return None


def _spread(name: str, options: Mapping[str, Any], tensor: torch.Tensor) -> float:
    """The bound of a uniform draw, or the standard deviation of a normal draw."""
    fan_in, fan_out = torch.nn.init._calculate_fan_in_and_fan_out(tensor)
    if name.startswith("xavier"):
        deviation = options["gain"] * (2.0 / (fan_in + fan_out)) ** 0.5
    else:
        fan = fan_in if options["mode"] == "fan_in" else fan_out
        gain = torch.nn.init.calculate_gain(options["nonlinearity"], options["a"])
        deviation = gain / float(fan) ** 0.5
    return float(3**0.5 * deviation if "uniform" in name else deviation)


def _given(value: Any, caller: FrameType | None, names: tuple[str, ...]) -> Number:
    """A bound of a draw. 0 and 1 are usually defaults that the source does not write."""
    if value in (0.0, 1.0):
        origin = number(value, caller, names)
        return origin if origin.origin is not None else Number(float(value), literal=True)
    return number(value, caller, names)


def _rule(frames: list[FrameType]) -> str:
    """torch.nn's default rule of the draws of a running `reset_parameters`: "fan" or "default"."""
    frame = next(
        frame_of_reset
        for frame_of_reset in frames
        if frame_of_reset.f_code.co_name == "reset_parameters"
    )
    return "fan" if "fan_in" in frame.f_locals else "default"


def _reset(frames: list[FrameType]) -> bool:
    return any(
        frame.f_code.co_name == "reset_parameters" and "torch/nn/modules/" in _file(frame)
        for frame in frames[:6]
    )


def _frames() -> list[FrameType]:
    """The running frames, innermost first."""
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(frames) < 40:
        if frame.f_code.co_filename != __file__:
            frames.append(frame)
        frame = frame.f_back
    return frames


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.replace("\\", "/")


def _between(frame: FrameType) -> bool:
    file = _file(frame)
    return file.endswith(_BETWEEN) or any(part in file for part in _BETWEEN_NAMES)


def _in_init(frames: list[FrameType], target: torch.Tensor) -> FrameType | None:
    """The outermost running function of torch.nn.init that fills the tensor."""
    outermost = None
    for frame in frames[:12]:
        if _file(frame).endswith(_INIT):
            tensor = frame.f_locals.get("tensor")
            if isinstance(tensor, torch.Tensor) and _key(tensor) == _key(target):
                outermost = frame
    return outermost


def _two(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], names: tuple[str, str], usual: Any
) -> tuple[Any, Any]:
    first = args[1] if len(args) > 1 else kwargs.get(names[0], usual[0])
    second = args[2] if len(args) > 2 else kwargs.get(names[1], usual[1])
    return first, second


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _key(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _array(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.array(plain.cpu().numpy())


@contextmanager
def watching() -> Iterator[Watch]:
    """Record the initial values of tensors made in this context."""
    watch = Watch()
    with watch:
        yield watch
