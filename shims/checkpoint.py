"""Checkpoints that are written once, whole or not at all, and load anywhere.

    shims.save({"model": model.state_dict(), "step": step}, "gs://bucket/run/model.pt")
    model.load_state_dict(shims.load("gs://bucket/run/model.pt")["model"])

What is stored are CPU tensors, so that `torch.load` reads it without torch_xla and without a GPU.
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
    """A checkpoint holds what cannot be loaded safely, or the file is broken.

    Remedy: store state dicts, tensors, numbers, strings and containers of them; the message names
    the entry that is something else. A broken file was cut off or damaged after it was written:
    use an older one.
    """


def save(
    obj: object,
    path: str | os.PathLike[str],
    *,
    writers: Writers = "first",
    weights_only: bool = True,
) -> None:
    """Write a checkpoint, from rank 0 only, with every tensor on the CPU.

    **The rule: every rank calls it, at the end of a step.** Rank 0 writes, the others return at
    once. It contains no collective, so a call under `if rank == 0:` does not hang either, on one
    condition: on XLA nothing that the other ranks take part in may be pending, as everything
    pending runs before the tensors are read. That holds after `shims.step()` has ended. Inside a
    step, a call under a guard lets rank 0 alone run a collective: on a TPU that waits for ever.
    No rank waits for the file: put a barrier before another rank reads it.

    Tensors that are tied (the same memory, as in `state_dict()` of tied weights) stay tied, on CPU
    and CUDA views of one storage as well; on XLA a view is stored as a tensor of its own. Dtypes
    are kept. Numpy scalars become Python numbers.

    Args:
        obj: nested dict, OrderedDict, list, tuple, set of tensors (any device, shape and dtype),
            numbers, strings, bytes, None, torch sizes, dtypes and devices. State dicts of models,
            optimizers, schedulers and GradScalers are that.
        path: a local path, or a URL that fsspec knows (`gs://bucket/model.pt`). What is there is
            replaced once the new file is complete.
        writers: which ranks write: "first" is rank 0; "local" the first of each machine, for a disk of
            its own; "all" each rank, to a path of its own.
        weights_only: refuse what only running code from the file could restore, which `load` refuses
            by default. False stores other objects as they are, as `torch.save` does, with the tensors in
            their attributes on the device.

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
    """Read a checkpoint onto the CPU, running no code from it.

    Every rank may call it; `load_state_dict` then copies to the device of the model. Files that
    `torch.save` wrote are read too, also those with CUDA or XLA tensors.

    Args:
        path: a local path, or a URL that fsspec knows, which is copied to a temporary file.
        weights_only: False to restore any object that is in it. That runs code from the file: only for
            a file that you trust.

    Returns:
        What was saved, with every tensor on the CPU.

    Raises:
        CheckpointError: the file is broken, or holds objects that only code could restore.
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
    """One pass over a checkpoint; what shares memory before shares it after."""

    def __init__(self, obj: object, weights_only: bool) -> None:
        self._weights_only = weights_only
        self._tensors: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.UntypedStorage] = {}
        # By the Python id of the XLA tensor.
        self._on_xla: dict[int, torch.Tensor] = {}
        self._fetch(obj)
        self.converted = self._convert(obj, "checkpoint")

    def _fetch(self, obj: object) -> None:
        """Bring all XLA tensors here in one transfer: one by one each would wait for the device."""
        found: dict[int, torch.Tensor] = {}
        values: dict[int, int] = {}
        pending = [obj]
        while pending:
            item = pending.pop()
            if isinstance(item, torch.Tensor) and item.device.type == "xla":
                # Views on XLA share a storage object and have offset 0, whatever part they show:
                # only the id of the value tells the same tensor from another view of it.
                value = sys.modules["torch_xla"]._XLAC._xla_get_tensor_id(item)
                values[id(item)] = value
                found.setdefault(value, item.detach())
            elif isinstance(item, dict):
                pending.extend(item.values())
            elif isinstance(item, list | tuple | set):
                pending.extend(item)
        if found:
            c_layer = sys.modules["torch_xla"]._XLAC
            fetched = c_layer._xla_get_cpu_tensors(list(found.values()))
            by_value = dict(zip(found, fetched, strict=True))
            self._on_xla = {item: by_value[value] for item, value in values.items()}

    def _convert(self, item: Any, place: str) -> Any:
        kind = type(item)
        if isinstance(item, torch.Tensor):
            return self._tensor(item, place)
        if kind in _PLAIN:
            return item
        if kind in (dict, collections.OrderedDict):
            converted = kind(
                (self._key(key, place), self._convert(value, f"{place}[{key!r}]"))
                for key, value in item.items()
            )
            # A module's state dict carries its versions in an attribute.
            for name, value in getattr(item, "__dict__", {}).items():
                setattr(converted, name, self._convert(value, f"{place}.{name}"))
            return converted
        if kind in (list, tuple, set):
            return kind(self._convert(value, f"{place}[{n}]") for n, value in enumerate(item))
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(item, numpy.generic) and type(item.item()) in _PLAIN:
            return item.item()
        if not self._weights_only:
            return item
        raise CheckpointError(
            f"{place} is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold",
            _remedy(item),
        )

    def _key(self, key: Any, place: str) -> Any:
        if type(key) is tuple or type(key) in _PLAIN:
            return self._convert(key, f"a key of {place}")
        if not self._weights_only:
            return key
        raise CheckpointError(
            f"a key of {place} is a {type(key).__name__}", "use strings or numbers as keys"
        )

    def _tensor(self, tensor: torch.Tensor, place: str) -> torch.Tensor:
        if id(tensor) in self._tensors:
            return self._tensors[id(tensor)]
        if type(tensor) not in _TENSORS:
            raise CheckpointError(
                f"{place} is a {type(tensor).__name__}, not a plain tensor",
                "store the whole tensor (full_tensor() of a DTensor)",
            )
        if tensor.is_meta:
            raise CheckpointError(f"{place} is on the meta device and has no values", "fill it")
        fetched = self._on_xla.get(id(tensor))
        value = self._values(tensor.detach()) if fetched is None else fetched
        if type(tensor) is torch.nn.Parameter:
            value = torch.nn.Parameter(value, tensor.requires_grad)
        elif tensor.is_leaf and tensor.requires_grad:
            # detach makes a new tensor object: the original's flag is not touched.
            value = value.detach().requires_grad_()
        self._tensors[id(tensor)] = value
        return value

    def _values(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type == "cpu":
            return tensor
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return tensor.cpu()
        # Copy whole storages, once each, so that views of one storage stay views of one.
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
