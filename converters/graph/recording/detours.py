"""Detours around code that cannot be recorded: the same values, computed by recordable operators."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import sympy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from converters.graph.files import tree_of
from converters.original_lines import frame_of_original


@contextmanager
def eager_attention(module: Any, wanted: bool) -> Iterator[None]:
    """If `wanted`, use transformers' attention in plain operators: its other forms ask what a mask
    holds.
    """
    if not wanted:
        yield
        return
    before = module.config._attn_implementation
    module.set_attn_implementation("eager")
    try:
        yield
    finally:
        module.set_attn_implementation(before)


@contextmanager
def batched_experts(module: Any, wanted: bool) -> Iterator[None]:
    """If `wanted`, use transformers' experts as one product: the loop asks which experts are hit."""
    if not wanted:
        yield
        return
    before = module.config._experts_implementation
    module.set_experts_implementation("batched_mm")
    try:
        yield
    finally:
        module.set_experts_implementation(before)


@contextmanager
def masks_by_index() -> Iterator[None]:
    """Build transformers' masks from broadcast indices, not by `torch.vmap`.

    `torch.export` records operators within vmap as operators of vmap's own machinery.
    """
    masks: Any = sys.modules.get("transformers.masking_utils")
    names = ("_vmap_expansion_sdpa", "TransformGetItemToIndex")
    if not all(hasattr(masks, name) for name in names):
        yield
        return
    before = {name: getattr(masks, name) for name in names}

    def expanded(mask: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def on(*indices: torch.Tensor) -> torch.Tensor:
            shape = [index.shape[0] for index in indices]
            return mask(*masks._non_vmap_expansion_sdpa(*indices)).expand(shape)

        return on

    masks._vmap_expansion_sdpa = expanded
    masks.TransformGetItemToIndex = nullcontext
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(masks, name, value)


@contextmanager
def modules_stay() -> Iterator[None]:
    """Keep a module on `module.to(dtype)` in a forward if it already has this dtype: export allows
    no change.
    """
    before = torch.nn.Module.to

    def to(self: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        arguments = [*args, *kwargs.values()]
        if all(isinstance(argument, torch.dtype) for argument in arguments):
            held = [
                tensor
                for tensor in (*self.parameters(), *self.buffers())
                if tensor.is_floating_point()
            ]
            if all({tensor.dtype} == set(arguments) for tensor in held):
                return self
        return before(self, *args, **kwargs)

    torch.nn.Module.to = to
    try:
        yield
    finally:
        torch.nn.Module.to = before


@contextmanager
def precision_stays() -> Iterator[None]:
    """Leave no trace of a `torch.autocast` that does nothing: switched off, or for an absent
    device.

    `torch.export` puts the region into a separate graph, which no longer shows the modules' calls.
    """
    cls: Any = torch.amp.autocast_mode.autocast
    enter, leave = cls.__enter__, cls.__exit__
    passed: list[bool] = []

    def entered(self: Any) -> Any:
        on_cpu = self.device == "cpu" and self._enabled
        passed.append(not on_cpu and not torch.is_autocast_enabled("cpu"))
        return self if passed[-1] else enter(self)

    def left(self: Any, *raised: Any) -> Any:
        return None if passed.pop() else leave(self, *raised)

    cls.__enter__, cls.__exit__ = entered, left
    try:
        yield
    finally:
        cls.__enter__, cls.__exit__ = enter, leave


@contextmanager
def distributions_unchecked() -> Iterator[None]:
    """Skip the parameter checks of torch.distributions, which branch on values."""
    cls = torch.distributions.Distribution
    before = cls._validate_args
    cls.set_default_validate_args(False)
    try:
        yield
    finally:
        cls.set_default_validate_args(before)


@contextmanager
def unaware(wanted: bool) -> Iterator[None]:
    """If `wanted`, answer no when the model asks whether it is compiled or exported."""
    names = ("is_compiling", "is_exporting")
    compiler: Any = torch.compiler
    before = {name: getattr(compiler, name) for name in names if wanted and hasattr(compiler, name)}
    for name in before:
        setattr(compiler, name, lambda: False)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(compiler, name, value)


# Operators of ours that other targets of an export lack, so that code has a loop in their place there.
_LACKED_ELSEWHERE = {"solve_triangular"}
# So far up is the function that has the operator: it asks through one of its library.
_ASKING = 2


@contextmanager
def solvers_stay() -> Iterator[None]:
    """Answer no when code with an operator that other targets lack asks whether it is exported."""
    compiler: Any = torch.compiler
    before = compiler.is_exporting

    def is_exporting() -> bool:
        frame = sys._getframe(1)
        for _ in range(_ASKING):
            if _LACKED_ELSEWHERE.intersection(frame.f_code.co_names):
                return False
            if frame.f_back is None:
                break
            frame = frame.f_back
        return bool(before())

    compiler.is_exporting = is_exporting
    try:
        yield
    finally:
        compiler.is_exporting = before


# Maximum number of elements of a tensor whose values are known while a model is recorded.
_KNOWN = 4096
_INDEXED = {torch.Tensor.__getitem__, torch.Tensor.__setitem__}
# Functions that make a tensor from numbers alone.
_MADE = {torch.arange, torch.div, torch.full, torch.linspace, torch.ones, torch.zeros}


@contextmanager
def values_known(wanted: bool) -> Iterator[None]:
    """If `wanted`, keep the values of tensors computed from constants alone, so that they can be
    read.
    """
    if not wanted:
        yield
        return
    from torch._subclasses import fake_tensor
    from torch.fx.experimental import proxy_tensor

    modules: tuple[Any, ...] = (fake_tensor, proxy_tensor)
    before = [patched_module.CONSTANT_NUMEL_LIMIT for patched_module in modules]
    for patched_module in modules:
        patched_module.CONSTANT_NUMEL_LIMIT = _KNOWN
    try:
        with _Constants():
            yield
    finally:
        for patched_module, value in zip(modules, before, strict=True):
            patched_module.CONSTANT_NUMEL_LIMIT = value


def numbers_kept(module: torch.nn.Module) -> dict[tuple[str, str], tuple[int, torch.dtype]]:
    """(path, name) → value of the one-number integer buffers that no checkpoint has."""
    numbers = {}
    for path, owner in module.named_modules():
        for name in owner._non_persistent_buffers_set:
            held = owner._buffers.get(name)
            if held is not None and held.dim() == 0 and not held.is_floating_point():
                numbers[path, name] = (int(held), held.dtype)
    return numbers


@contextmanager
def kept_as_numbers(
    module: torch.nn.Module, kept: Mapping[tuple[str, str], tuple[int, torch.dtype]]
) -> Iterator[None]:
    """Make these buffers readable. Enter this while a recording runs: tensors made there keep their
    values.
    """
    before = {}
    for (path, name), (value, dtype) in kept.items():
        buffers = module.get_submodule(path)._buffers
        before[path, name] = buffers[name]
        buffers[name] = torch.tensor(value, dtype=dtype)
    try:
        yield
    finally:
        for (path, name), held in before.items():
            module.get_submodule(path)._buffers[name] = held


class _Constants(TorchFunctionMode):
    """Makes constants of tensors made from numbers: `torch.export` keeps no values of other
    tensors.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch._subclasses.fake_tensor import unset_fake_temporarily
        from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

        kwargs = kwargs or {}
        arguments = pytree.tree_leaves((args, kwargs))
        if func is torch.tensor and any(
            isinstance(argument, torch.Tensor) for argument in arguments
        ):
            return _stacked(args[0] if args else kwargs["data"], kwargs.get("dtype"))
        if func in _INDEXED:
            return func(args[0], _places(args[1]), *args[2:], **kwargs)
        if func not in _MADE or any(
            isinstance(argument, torch.SymInt | torch.Tensor) for argument in arguments
        ):
            return func(*args, **kwargs)
        with disable_proxy_modes_tracing(), unset_fake_temporarily():
            constant = func(*args, **kwargs)
        if constant.numel() > _KNOWN:
            return func(*args, **kwargs)
        return torch.tensor(constant.tolist(), dtype=constant.dtype)


def _stacked(parts: Any, dtype: torch.dtype | None) -> torch.Tensor:
    """`torch.tensor` of a list of tensors, as a stack: export could not read their numbers."""
    if isinstance(parts, list | tuple):
        parts = torch.stack([_stacked(element, dtype) for element in parts])
    stacked = parts if isinstance(parts, torch.Tensor) else torch.tensor(parts, dtype=dtype)
    return stacked if dtype is None else stacked.to(dtype)


def _places(index: Any) -> Any:
    """The index, with each mask of known values replaced by the indices that it selects."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(is_known_mask(index_part) for index_part in parts):
        return index
    places: list[Any] = []
    for index_part in parts:
        places += index_part.nonzero(as_tuple=True) if is_known_mask(index_part) else [index_part]
    return tuple(places)


def is_known_mask(value: Any) -> bool:
    """Whether a value is a mask whose values are known while the model is recorded."""
    mask = isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.dim() > 0
    return mask and getattr(value, "constant", None) is not None


@contextmanager
def memory_followed() -> Iterator[None]:
    """Record torch's other access to the same memory by recordable operators.

    `as_strided` becomes an index into the flat tensor if it reads only that tensor's own elements.
    `.data` becomes `detach`.

    Raises:
        RuntimeError: its input or result is changed in place: in torch both share memory.
    """
    with _Memory() as mode:
        yield
    for line, tensor, version in mode.shared:
        if tensor._version != version:
            raise RuntimeError(f"{line}: what shares its memory by as_strided is changed in place")


class _Memory(TorchFunctionMode):
    """A mode instead of a patched function: a recording would record the patched function too."""

    def __init__(self) -> None:
        super().__init__()
        # Each call's line, its input and its result, each with its version at that time.
        self.shared: list[tuple[str, torch.Tensor, int]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        indexed = None
        if func == torch.Tensor.data.__get__ and not _asked_by_torch():
            return args[0].detach()  # shares memory, and the recording knows it
        if func in (torch.Tensor.as_strided, torch.as_strided) and not _asked_by_torch():
            indexed = _indexed(*args, **named)
        if indexed is None:
            return func(*args, **named)
        line = "{}:{}".format(*place())
        self.shared += [(line, tensor, tensor._version) for tensor in (args[0], indexed)]
        return indexed


class SizedDraws(TorchFunctionMode):
    """Lets `torch.randn(size, generator=None)` have a size that depends on the inputs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if "generator" in named and named["generator"] is None:
            del named["generator"]  # torch's own default
        return func(*args, **named)


def _asked_by_torch() -> bool:
    """Whether torch itself made the caught call: it cuts views by strides while it records."""
    frame = sys._getframe(2)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back  # of torch.export's own mode
    return frame.f_code.co_filename.startswith(f"{torch.__path__[0]}/")


def _indexed(
    x: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None
) -> torch.Tensor | None:
    """The elements that `as_strided` reads; None if they are not all elements of `x`."""
    order = sorted(range(x.dim()), key=lambda axis: (-x.stride(axis), axis))
    inner: Any = 1
    for axis in reversed(order):
        if x.shape[axis] != 1 and x.stride(axis) != inner:
            return None  # with gaps, or spread
        inner = inner * x.shape[axis]
    first: Any = 0 if storage_offset is None else storage_offset - x.storage_offset()
    last = first + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    if first < 0 or last >= x.numel():
        return None
    index = torch.full((), first, device=x.device)
    for count, step in zip(size, stride, strict=True):
        index = index.unsqueeze(-1) + torch.arange(count, device=x.device) * step
    return x.permute(order).reshape(-1)[index]


@contextmanager
def checks_pass(wanted: bool, reported: dict[str, None]) -> Iterator[None]:
    """If `wanted`, let checks of values (`assert`, `if …: raise`) pass as in the example.

    Args:
        wanted: whether to do so.
        reported: receives the lines of these checks.

    Raises:
        RuntimeError: code other than a check depends on values.
    """
    if not wanted:
        yield
        return
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    environment: Any = ShapeEnv
    before = environment._log_real_tensor_propagation

    def log(self: Any, expression: sympy.Basic, truth: sympy.Basic) -> None:
        file, line = place()
        if not _is_check(file, line):
            raise RuntimeError(f"{file}:{line}: it rests on values whether {expression} is {truth}")
        reported.setdefault(f"{file.rpartition('/')[2]}:{line}")

    environment._log_real_tensor_propagation = log
    try:
        with torch._functorch.config.patch(
            fake_tensor_propagate_real_tensors=True,
            generate_fake_kernels_from_real_mismatches=True,
        ):
            yield
    finally:
        environment._log_real_tensor_propagation = before


# Notes on a check that is left out, and on a branch on non-finite values.
CHECK = "a check of values that the port does not make"
FINITE = (
    "values are taken to be finite: what the original does where they are not is not in the port"
)
_ASKS: dict[Any, bool] = {
    getattr(holder, name): name == "isfinite"
    for holder in (torch, torch.Tensor)
    for name in ("isfinite", "isinf", "isnan")
}
_OF_ALL = (torch.all, torch.any, torch.Tensor.all, torch.Tensor.any)
_NOT = (torch.logical_not, torch.Tensor.logical_not, torch.Tensor.__invert__)
_JOIN = (
    *(
        getattr(torch.Tensor, f"{kind}_{name}")
        for kind in ("logical", "bitwise")
        for name in ("and", "or")
    ),
    *(torch.logical_and, torch.logical_or, torch.bitwise_and, torch.bitwise_or),
    *(torch.Tensor.__and__, torch.Tensor.__or__),
)
_READ = (torch.Tensor.__bool__, torch.Tensor.item)


class FiniteValues(TorchFunctionMode):
    """Answers that values are finite, where the model reads that as a Python number.

    A run on real values comes first and notes the lines with non-finite values: there, nothing is
    answered.

    Attributes:
        odd: lines with non-finite values.
        notes: notes on the lines that were answered.
    """

    def __init__(self, odd: dict[str, None] | None = None) -> None:
        super().__init__()
        self.real = odd is None
        self.odd: dict[str, None] = {} if odd is None else odd
        self.notes: dict[str, None] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = getattr(args[0], "_if_finite", None) if args else None
        if answer is not None and func in _READ:
            file, number = place()
            line = f"{file.rpartition('/')[2]}:{number}"
            if self.real:
                read = func(*args, **(kwargs or {}))
                if read is not answer:
                    self.odd[line] = None
                return read
            if line not in self.odd:
                self.notes[f"{CHECK if _is_check(file, number) else FINITE}: {line}"] = None
                return answer
        result = func(*args, **(kwargs or {}))
        if func in _ASKS:
            result._if_finite = _ASKS[func]
        elif answer is not None and func in _OF_ALL:
            result._if_finite = answer
        elif answer is not None and func in _NOT:
            result._if_finite = not answer
        elif func in _JOIN and answer is getattr(args[1], "_if_finite", ()):
            result._if_finite = answer
        return result


def place() -> tuple[str, int]:
    """The running line of the model."""
    frame = frame_of_original("<")
    return ("?", 0) if frame is None else (frame.filename, frame.lineno or 0)


def _is_check(file: str, line: int) -> bool:
    """Whether a line belongs to the condition of a check that raises an error."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Assert):
            asked: ast.AST = node
        elif isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise) and not node.orelse:
            asked = node.test
        else:
            continue
        if asked.lineno <= line <= (asked.end_lineno or 0):  # type: ignore[attr-defined]
            return True
    return False
