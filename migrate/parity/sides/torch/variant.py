"""Torch model with some settings: another dtype, device or precision."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import nn

from converters.copied import copied
from migrate.parity.ground.draws import Draws
from migrate.parity.ground.errors import ParityError
from migrate.parity.ground.settings import SideSettings
from migrate.parity.sides.torch.draws import ComparisonDraws
from migrate.parity.sides.torch.float64 import in_float64

Kind = Literal["torch", "xla", "tpu"]
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
_EXCESS = "--xla_allow_excess_precision"
# Backends of torch.compile, by the type of the device.
_COMPILERS = {"xla": "openxla", "tpu": "tpu"}


def device(kind: Kind, settings: SideSettings) -> torch.device:
    """Device of the model.

    Raises:
        ParityError: there is no such device.
    """
    if kind == "xla" and not settings.device:
        allow_excess_precision(settings.excess_precision)
        import torch_xla

        return torch_xla.device()
    torch_device = torch.device(settings.device or ("tpu" if kind == "tpu" else "cpu"))
    if torch_device.type == "cuda" and not torch.cuda.is_available():
        raise ParityError(
            "this machine has no CUDA device", "leave --device out, or use --device cpu"
        )
    return (
        torch.device("cuda", torch_device.index or 0)
        if torch_device.type == "cuda"
        else torch_device
    )


def allow_excess_precision(wanted: bool) -> None:
    """Set XLA's flag, which it reads once, when the runtime starts.

    Raises:
        ParityError: the runtime of this process runs already, with the other value.
    """
    import torch_xla

    flags = os.environ.get("XLA_FLAGS", "").split()
    # The last flag counts; without a value it means true.
    said = [flag for flag in flags if flag.partition("=")[0] == _EXCESS]
    now = not said or said[-1].partition("=")[2].lower() not in ("false", "0")
    if now == wanted:
        return
    if torch_xla._XLAC._xla_runtime_is_initialized():
        raise ParityError(
            f"XLA runs in this process with {_EXCESS}={str(now).lower()}, and reads it only once",
            "run the comparison again in a new process",
        )
    kept = [flag for flag in flags if flag not in said]
    os.environ["XLA_FLAGS"] = " ".join([*kept, f"{_EXCESS}={str(wanted).lower()}"])


def on_tpu(where: torch.device) -> bool:
    """Whether a device is a real TPU; torch_tpu's is simulated."""
    if where.type != "xla":
        return False
    import torch_xla.runtime as xr

    return bool(xr.device_type() == "TPU")


def is_emulated(where: torch.device, settings: SideSettings) -> bool:
    """Whether the precision of matmuls is emulated: float32 on a device that has only full float32."""
    cpu = where.type in ("cpu", "tpu") or (where.type == "xla" and not on_tpu(where))
    return cpu and settings.dtype == "float32" and settings.precision != "highest"


def variant(
    module: nn.Module, where: torch.device, settings: SideSettings, *, shared: bool = False
) -> nn.Module:
    """Copy the model in the settings' dtype to a device, in eval().

    With `shared` its parameters may be in the model's memory and must not be written into.

    Parameters and floating buffers are cast. In bfloat16 the frequencies of rotary embeddings stay
    unchanged, as `from_pretrained(dtype=torch.bfloat16)` leaves them: rounded to 8 bits they would turn far
    positions by whole radians.

    Raises:
        ParityError: the model cannot be copied.
    """
    try:
        with torch.no_grad():  # TorchScript copies by operations that autograd would record
            model = _copied(module, shared=shared and where.type == "cpu")
    except Exception as error:
        raise ParityError(
            f"the model cannot be copied ({type(error).__name__}: {_first_line(error)})",
            "make the model work with copy.deepcopy",
        ) from error
    model.eval()
    tied = _tied(model)
    kept = {
        (holder, name): _complex(buffer, settings) if buffer.is_complex() else buffer
        for holder in model.modules()
        for name, buffer in holder._buffers.items()
        if buffer is not None
        and (buffer.is_complex() or (settings.dtype == "bfloat16" and "inv_freq" in name))
    }
    for holder, name in kept:
        holder._buffers[name] = None  # a cast would drop imaginary parts
    model.to(dtype=DTYPES[settings.dtype])
    for (holder, name), buffer in kept.items():
        holder._buffers[name] = buffer
    model.to(where)
    _tie(model, tied)
    if settings.moved:
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.copy_(neighbors(parameter, settings.moved, number))
    return model


def neighbors(tensor: torch.Tensor, seed: int, number: int) -> torch.Tensor:
    """Move each element of a floating tensor to one of its two neighbors in the dtype; zeros stay.

    Args:
        tensor: of any shape, on any device.
        seed, number: of the draws; `number` tells the tensors of a model apart.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
    up = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.device, torch.bool)
    ends = (torch.full_like(tensor, end) for end in (math.inf, -math.inf))
    moved = torch.nextafter(tensor, torch.where(up, *ends))
    # Zeros are exact: padding, masks, initial biases.
    return torch.where((tensor == 0) | tensor.isinf(), tensor, moved)


def _complex(buffer: torch.Tensor, settings: SideSettings) -> torch.Tensor:
    """Complex buffer with the precision of the settings' dtype, and at least complex64."""
    wide = settings.dtype == "float64"
    return buffer.to(torch.complex128 if wide else torch.complex64)


def _copied(module: nn.Module, *, shared: bool) -> nn.Module:
    """Copy a module; a `shared` copy has its parameters' values in the same memory, until they are cast."""
    kept = {
        id(parameter): nn.Parameter(parameter.data, parameter.requires_grad)
        for parameter in (module.parameters() if shared else ())
        if type(parameter) is nn.Parameter
    }
    return copied(module, dict(kept))


def _tied(model: nn.Module) -> list[list[str]]:
    """Groups of names that share a parameter."""
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(parameter), []).append(name)
    return [names for names in groups.values() if len(names) > 1]


def _tie(model: nn.Module, tied: list[list[str]]) -> None:
    """Tie parameters again: moving to XLA separates parameters with several names."""
    for first, *others in tied:
        parameter = model.get_parameter(first)
        for name in others:
            holder, _, key = name.rpartition(".")
            model.get_submodule(holder)._parameters[key] = parameter


@contextlib.contextmanager
def running(where: torch.device, settings: SideSettings, *, draws: bool = False) -> Iterator[None]:
    """Set up a run of the model with the settings; global state is restored afterwards.

    Args:
        where: the device.
        settings: settings of the run.
        draws: whether it draws random numbers: then they are those of the comparison.

    Raises:
        ParityError: the model is compiled, and its precision cannot be emulated.
    """
    if settings.compiled and is_emulated(where, settings):
        raise ParityError(
            f"the precision {settings.precision} cannot be emulated inside torch.compile",
            "leave --compile or --precision out",
        )
    torch.manual_seed(settings.seed)
    with contextlib.ExitStack() as stack:
        if settings.dtype == "float64":
            stack.enter_context(in_float64())
        if is_emulated(where, settings):
            from migrate.parity.emulate.torch_mode import emulated

            stack.enter_context(emulated(settings.precision))
        if where.type == "cuda":
            stack.enter_context(_tensor_floats(settings.precision != "highest"))
        if on_tpu(where):
            stack.enter_context(_tpu_precision(settings.precision))
        if draws and not settings.compiled:
            stack.enter_context(ComparisonDraws(Draws(settings.seed)))
        yield


@contextlib.contextmanager
def _tensor_floats(allowed: bool) -> Iterator[None]:
    """Use TF32 in CUDA's matmuls and convolutions, or true float32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@contextlib.contextmanager
def _tpu_precision(precision: str) -> Iterator[None]:
    from torch_xla import backends

    before = backends.get_mat_mul_precision()
    backends.set_mat_mul_precision(precision)
    try:
        yield
    finally:
        backends.set_mat_mul_precision(before)


def compiled(model: nn.Module, where: torch.device) -> Any:
    """Model under torch.compile, on XLA with its own backend."""
    return torch.compile(model, backend=_COMPILERS.get(where.type, "inductor"))


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else ""
