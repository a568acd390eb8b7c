"""Checkpoints that are written once, completely or not at all, and load on any backend.

    shims.save({"model": model.state_dict(), "step": step}, "gs://bucket/run/model.pt")
    model.load_state_dict(shims.load("gs://bucket/run/model.pt")["model"])

The stored tensors are CPU tensors, so `torch.load` reads them without torch_xla and without a GPU.
"""

from __future__ import annotations

import collections
import os
import sys
from typing import Any, Literal, get_args

import torch

from shims._saved import atomic
from shims._shared import world
from shims.errors import ShimError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
Writers = Literal["first", "local", "all"]


class CheckpointError(ShimError):
    """A checkpoint holds an object that cannot be loaded safely, or its file is damaged.

    Remedy: store state dicts, tensors, numbers, strings and containers of them; the message names
    the other entry. A damaged file was cut off or changed after it was written: use an older one.
    """


def save(
    obj: object,
    path: str | os.PathLike[str],
    *,
    writers: Writers = "first",
    weights_only: bool = True,
) -> None:
    """Write a checkpoint from rank 0 only, with every tensor on the CPU.

    **The rule: every rank calls it, at the end of a step.** Rank 0 writes; the others return at
    once. It contains no collective, so a call under `if rank == 0:` does not hang either, on one
    condition: on XLA, no collective with other ranks may be pending, because everything pending
    runs before the tensors are read. That holds after `shims.step()` has ended. Inside a step, a
    guarded call makes rank 0 alone run a collective, which on a TPU waits forever. No rank waits
    for the file: add a barrier before another rank reads it.

    Tied tensors (the same memory, as in `state_dict()` of tied weights) stay tied. On CPU and CUDA,
    views of one storage do too; on XLA a view is stored as a separate tensor. Dtypes are kept.
    Numpy scalars become Python numbers.

    Args:
        obj: nested dict, OrderedDict, list, tuple, set of tensors (any device, shape and dtype),
            numbers, strings, bytes, None, torch sizes, dtypes and devices. State dicts of models,
            optimizers, schedulers and GradScalers qualify.
        path: a local path, or an fsspec URL (`gs://bucket/model.pt`). An existing file is
            replaced once the new file is complete.
        writers: which ranks write: "first" is rank 0; "local" is the first rank of each machine, for
            local disks; "all" is every rank, each to a different path.
        weights_only: refuse objects that can only be restored by running code from the file, which
            `load` refuses by default. False stores other objects unchanged, like `torch.save`, with
            the tensors in their attributes on the device.

    Raises:
        CheckpointError: an entry is refused.
        FileError: the folder is missing, or the disk or the store refuses.
    """
    if writers not in get_args(Writers):
        raise ValueError(f"writers={writers!r}: one of {', '.join(get_args(Writers))}")
    world.run_pending()
    first = world.rank_and_size()[0] if writers == "first" else _local_rank()
    if writers != "all" and first != 0:
        return
    on_cpu = _ToCpu(obj, weights_only).converted
    with atomic.atomic_write(path) as file:
        torch.save(on_cpu, file)


def load(path: str | os.PathLike[str], *, weights_only: bool = True) -> Any:
    """Read a checkpoint onto the CPU without running code from it.

    Every rank may call it; `load_state_dict` then copies to the model's device. Files written by
    `torch.save` are read too, including those with CUDA or XLA tensors.

    Args:
        path: a local path, or an fsspec URL, which is copied to a temporary file.
        weights_only: False to restore any object in the file. That runs code from the file: use it
            only for a file that you trust.

    Returns:
        The saved object, with every tensor on the CPU.

    Raises:
        CheckpointError: the file is broken, or holds objects that only running code could restore.
        FileError: there is no such file, or it cannot be read.
    """
    with atomic.reading(path) as local:
        try:
            return torch.load(local, map_location="cpu", weights_only=weights_only)
        except Exception as error:  # a damaged file can fail in any part of the reader
            reason = str(error).strip().partition("\n")[0]
            raise CheckpointError(
                f"{path} cannot be loaded ({type(error).__name__}: {reason})",
                "use an older checkpoint, or save it again with shims.save",
            ) from error


def _local_rank() -> int:
    from shims.backends import current

    return current().local_rank()


class _ToCpu:
    """Pass over a checkpoint that keeps shared memory shared."""

    def __init__(self, obj: object, weights_only: bool) -> None:
        self._weights_only = weights_only
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        # Keyed by the Python id of the XLA tensor.
        self._on_xla: dict[int, torch.Tensor] = {}
        self._fetch(obj)
        self.converted = self._convert(obj, "checkpoint")

    def _fetch(self, obj: object) -> None:
        """Copy all XLA tensors to the host in one transfer: copied singly, each would wait for the device."""
        xla_tensors: dict[int, torch.Tensor] = {}
        values: dict[int, int] = {}
        pending = [obj]
        while pending:
            item = pending.pop()
            if isinstance(item, torch.Tensor) and item.device.type == "xla":
                # Views on XLA share a storage object and have offset 0 in every case. Only the id
                # of the value distinguishes the same tensor from another view of it.
                value = sys.modules["torch_xla"]._XLAC._xla_get_tensor_id(item)
                values[id(item)] = value
                xla_tensors.setdefault(value, item.detach())
            elif isinstance(item, dict):
                pending.extend(item.values())
            elif isinstance(item, list | tuple | set):
                pending.extend(item)
        if xla_tensors:
            c_layer = sys.modules["torch_xla"]._XLAC
            fetched = c_layer._xla_get_cpu_tensors(list(xla_tensors.values()))
            by_value = dict(zip(xla_tensors, fetched, strict=True))
            self._on_xla = {item: by_value[value] for item, value in values.items()}

    def _convert(self, item: Any, path: str) -> Any:
        kind = type(item)
        if isinstance(item, torch.Tensor):
            return self._tensor(item, path)
        if kind in _PLAIN:
            return item
        if kind in (dict, collections.OrderedDict):
            converted = kind(
                (self._key(key, path), self._convert(value, f"{path}[{key!r}]"))
                for key, value in item.items()
            )
            # A module's state dict stores its versions in an attribute.
            for name, value in getattr(item, "__dict__", {}).items():
                setattr(converted, name, self._convert(value, f"{path}.{name}"))
            return converted
        if kind in (list, tuple, set):
            return kind(self._convert(value, f"{path}[{n}]") for n, value in enumerate(item))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(item, numpy.generic) and type(item.item()) in _PLAIN:
            return item.item()
        if not self._weights_only:
            return item
        raise CheckpointError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold",
            _remedy(item),
        )

    def _key(self, key: Any, path: str) -> Any:
        if type(key) is tuple or type(key) in _PLAIN:
            return self._convert(key, f"a key of {path}")
        if not self._weights_only:
            return key
        raise CheckpointError(
            f"a key of {path} is a {type(key).__name__}", "use strings or numbers as keys"
        )

    def _tensor(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        if id(tensor) in self._tensors:
            return self._tensors[id(tensor)]
        if type(tensor) not in _TENSORS:
            raise CheckpointError(
                f"{path} is a {type(tensor).__name__}, not a plain tensor",
                "store the whole tensor (full_tensor() of a DTensor)",
            )
        if tensor.is_meta:
            raise CheckpointError(f"{path} is on the meta device and has no values", "fill it")
        fetched = self._on_xla.get(id(tensor))
        value = self._values(tensor.detach()) if fetched is None else fetched
        if type(tensor) is torch.nn.Parameter:
            value = torch.nn.Parameter(value, tensor.requires_grad)
        elif tensor.is_leaf and tensor.requires_grad:
            # detach creates a new tensor object: the original's flag is not changed.
            value = value.detach().requires_grad_()
        self._tensors[id(tensor)] = value
        return value

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.cpu()
        # Copy complete storages, once each, so that views of one storage stay views of one.
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = storage.cpu()
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(
            self._storages[storage._cdata], tensor.storage_offset(), tensor.shape, tensor.stride()
        )


def _remedy(item: object) -> str:
    if isinstance(item, torch.nn.Module | torch.optim.Optimizer):
        return "store its state_dict()"
    if isinstance(item, dict):
        return "store dict(…) of it"
    if isinstance(item, os.PathLike):
        return "store str(…) of it"
    if hasattr(item, "tolist"):
        return "store torch.from_numpy(…) or tolist() of it"
    if hasattr(item, "_asdict"):
        return "store its _asdict()"
    return "store vars(…) of it" if hasattr(item, "__dict__") else "store plain values of it"
