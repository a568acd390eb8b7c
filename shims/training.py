"""The training step: its scope, mixed precision, clipping, recomputation and batches."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import torch
from torch.utils._pytree import tree_map

from shims.api_errors import MemoryUnknownError
from shims.backends import current
from shims.backends.base import MemoryUse
from shims.rng import rng_state, set_rng_state

_T = TypeVar("_T")


def step() -> contextlib.AbstractContextManager[None]:
    """Return the context for the body of one training step: `with shims.step():`.

    On XLA it is `torch_xla.step()`: the body is compiled and run as one graph. Elsewhere it does
    nothing. Read values (`loss.item()`) after it, not inside.
    """
    return current().step()


@contextlib.contextmanager
def together(*, tells: bool) -> Iterator[None]:
    """Run a block on all ranks although only one rank was to run it, as with `if rank == 0:`.

    On XLA all ranks must run the same graphs. The other ranks compute the same and leave no trace.
    They print nothing, and their random numbers (Python's, numpy's, torch's on the host and on the
    device) continue as if they had not run the block.

    Args:
        tells: whether this is the rank that prints.
    """
    if tells:
        try:
            yield
        finally:
            # On XLA the seed of the next draw may be part of a pending graph. Here it becomes a
            # number on all ranks; otherwise their next graphs would differ.
            backend = current()
            backend.set_device_rng_state(backend.device_rng_state())
        return
    before = rng_state(), random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        with (
            open(os.devnull, "w") as nowhere,
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            yield
    finally:
        set_rng_state(before[0])
        random.setstate(before[1])
        if numpy is not None and of_numpy is not None:
            numpy.random.set_state(of_numpy)


def on_host(value: Any) -> Any:
    """Copy a tensor, or the tensors in nested lists, tuples, dicts and dataclasses, to the host.

    On XLA the pending graph runs first, as one graph: all ranks must make this call alike. Other
    objects that hold tensors are returned unchanged, with their tensors computed.

    Args:
        value: for example the output of a model.
    """
    if isinstance(value, torch.Tensor):
        return value.cpu()
    synchronize()
    return tree_map(_leaf_on_host, value)


def _leaf_on_host(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.cpu()
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        return leaf
    copied = copy.copy(leaf)
    for field in dataclasses.fields(leaf):
        if hasattr(leaf, field.name):  # also if the dataclass is frozen
            inner = tree_map(_leaf_on_host, getattr(leaf, field.name))
            object.__setattr__(copied, field.name, inner)
    return copied


def autocast(
    dtype: torch.dtype | None = None, enabled: bool = True, cache_enabled: bool | None = None
) -> Any:
    """Return the mixed-precision context of this rank's device: `torch.autocast`.

    Args:
        dtype: None for torch.bfloat16, on every backend, so that all compute alike; torch.float16
            only on devices that have it, which excludes XLA (`autocast_dtype`); torch.float32 for a
            region that computes in float32 whatever its inputs are.
        enabled: False for a context that does nothing.
        cache_enabled: whether a weight is cast once in a region; None for torch's choice.

    Raises:
        UnsupportedError: the dtype is none of these on XLA, which would compute in float32.
    """
    return current().autocast(dtype or torch.bfloat16, enabled, cache_enabled)


def autocast_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which this rank's device computes a CUDA script's `dtype`.

    Args:
        dtype: torch.float16 becomes torch.bfloat16 on XLA, which needs no gradient scaler; others stay.
    """
    return current().autocast_dtype(dtype)


def grad_scaler(**options: Any) -> Any:
    """Return a `torch.amp.GradScaler` for this rank's device.

    bfloat16 needs no scaling: on XLA the scaler does nothing, and passes on the state in a
    checkpoint.

    Args:
        **options: options of torch.amp.GradScaler, such as `enabled` and `init_scale`.
    """
    return current().grad_scaler(options)


def clip_grad_norm(
    parameters: torch.nn.Module | torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scale gradients down to a total norm, in place: `torch.nn.utils.clip_grad_norm_`.

    Call it after the backward pass, and after `scaler.unscale_(optimizer)` if there is a scaler.

    Args:
        parameters: a module, or parameters.
        max_norm: the largest norm allowed.
        norm_type: the order of the norm; may be inf.
        error_if_nonfinite: raise if the norm is NaN or infinite. On XLA this waits for the device.

    Returns:
        The norm before scaling, a scalar tensor on the device.
    """
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    return current().clip_grad_norm(parameters, max_norm, norm_type, error_if_nonfinite)


def checkpoint_activations(
    function: Callable[..., Any], *args: Any, preserve_rng_state: bool = True
) -> Any:
    """Run `function(*args)` without keeping its activations; the backward pass recomputes them.

    Args:
        function: a module, or a function of tensors.
        *args: its arguments. On XLA at least one must require a gradient.
        preserve_rng_state: whether dropout drops the same values the second time.

    Raises:
        UnsupportedError: on XLA, where the weights in `function` would get no gradient.
    """
    return current().checkpoint_activations(function, args, preserve_rng_state)


def synchronize() -> None:
    """Wait until the device has finished all its work, for example before reading a clock."""
    current().synchronize()


def memory(missing: int | None = None) -> MemoryUse:
    """Return the memory of this rank's device: `.used`, `.peak` and `.limit`, in bytes.

    Args:
        missing: the value of all three if memory is not counted, on the CPU and on XLA's CPU device;
            None to raise there.

    Raises:
        MemoryUnknownError: memory is not counted here, and `missing` is None.
    """
    try:
        return current().memory()
    except MemoryUnknownError:
        if missing is None:
            raise
        return MemoryUse(missing, missing, missing)


def compile(model: Callable[..., Any] | None = None, **options: Any) -> Any:  # noqa: A001 - torch's name
    """Apply `torch.compile`; on XLA return the model unchanged, because the whole step is compiled.

    Args:
        model: a module or a function; None for a decorator, `@shims.compile(fullgraph=True)`.
        **options: options of torch.compile. XLA ignores them.
    """
    if model is None:
        return lambda function: current().compile(function, options)
    return current().compile(model, options)


def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy in page-locked memory on CUDA, for asynchronous transfers; else the tensor."""
    return current().pin_memory(tensor)


class DeviceLoader(Generic[_T]):
    """Loader whose batches are on this rank's device; it otherwise behaves like the wrapped loader.

    Args:
        loader: a DataLoader, or any iterable of batches. Tensors in tuples, lists and dicts are
            moved, and objects with a `to` method; the rest stays.
    """

    def __init__(self, loader: Iterable[_T]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[_T]:
        device = current().device()
        for batch in self._loader:
            # Asynchronous from pinned memory (`DataLoader(pin_memory=True)` on CUDA).
            yield _moved(batch, device)

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            # While being unpickled, it has no loader yet.
            raise AttributeError(name)
        return getattr(self._loader, name)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of a DistributedSampler; without one, do nothing."""
        for name in ("sampler", "batch_sampler"):
            set_epoch = getattr(getattr(self._loader, name, None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)


def loader(loader: Iterable[_T]) -> DeviceLoader[_T]:
    """Return a loader whose batches are on this rank's device.

    It does not divide the data among the ranks: the DistributedSampler does. On XLA it warns if the
    last batch is shorter than the others, which compiles the step a second time.
    """
    if current().name == "xla":
        _hint_at_short_batch(loader)
    return DeviceLoader(loader)


def _hint_at_short_batch(loader: Any) -> None:
    size = getattr(loader, "batch_size", None)
    if size is None or getattr(loader, "drop_last", True):
        return
    try:
        rest = len(loader.sampler) % size
    except (TypeError, AttributeError):
        # An iterable dataset does not know its length.
        return
    if rest:
        warnings.warn(
            f"the last batch has {rest} of {size} rows: XLA compiles the step once more for it; "
            "pass drop_last=True, or pad it",
            stacklevel=3,
        )


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_moved(item, device) for item in batch))
    if type(batch) in (tuple, list):
        return type(batch)(_moved(item, device) for item in batch)
    if type(batch) is dict:
        return {key: _moved(value, device) for key, value in batch.items()}
    if hasattr(batch, "to"):
        return batch.to(device)
    return batch
