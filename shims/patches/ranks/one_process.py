"""Several CUDA devices of one process: `nn.DataParallel`, and what `torch.cuda.comm` moves between them.

All devices are one place here, so a batch that is split among them goes through the model in as many parts,
one after the other: each sees its own part in a batch normalisation, and only the first part's running
statistics stay, as on GPUs.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from shims.patches.cuda import refusal
from shims.patches.devices import Devices
from shims.patches.registry import Patch, patch

_PARTS = "a part of the batch for each device, one after the other"
_COPIES = "every device is the same place"


def patches(devices: Devices) -> Iterator[Patch]:
    """`nn.DataParallel`, `torch.cuda.comm`; the parts that DataParallel is made of are refused."""
    yield patch(nn.DataParallel, "forward", _forward(devices), _PARTS, name="torch.nn.DataParallel")
    parallel: Any = sys.modules["torch.nn.parallel"]

    def data_parallel(
        module: nn.Module,
        inputs: Any,
        device_ids: Any = None,
        output_device: Any = None,
        dim: int = 0,
        module_kwargs: Any = None,
    ) -> Any:
        if not isinstance(inputs, tuple):
            inputs = (inputs,)
        ids = list(range(devices.count)) if device_ids is None else device_ids
        return _in_parts(devices, module, ids, dim, inputs, module_kwargs or {})

    for place in (parallel, sys.modules["torch.nn.parallel.data_parallel"]):
        yield patch(place, "data_parallel", data_parallel, _PARTS)
    for name in ("replicate", "parallel_apply"):
        yield patch(parallel, name, _refusing(name), "refused: it runs models on several GPUs")
    # torch.cuda.comm takes these names over where it is imported, maybe after this.
    known = [sys.modules.get(f"torch.{name}.comm") for name in ("nn.parallel", "cuda")]
    for name, function in _communication(devices).items():
        for place in filter(None, known):
            yield patch(place, name, function, _COPIES, name=f"torch.cuda.comm.{name}")


def _forward(devices: Devices) -> Callable[..., Any]:
    @functools.wraps(nn.DataParallel.forward)
    def forward(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not wrapper.device_ids:
            return wrapper.module(*inputs, **kwargs)
        for tensor in itertools.chain(wrapper.module.parameters(), wrapper.module.buffers()):
            if not devices.place.holds(tensor):
                source = wrapper.src_device_obj
                raise RuntimeError(
                    f"module must have its parameters and buffers on device {source} "
                    f"(device_ids[0]) but found one of them on device: {tensor.device}"
                )
        ids = wrapper.device_ids
        return _in_parts(devices, wrapper.module, ids, wrapper.dim, inputs, kwargs)

    return forward


def _in_parts(
    devices: Devices,
    module: nn.Module,
    ids: Sequence[Any],
    dim: int,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """The outputs of the parts, put together."""
    first = devices.shown[devices.index(ids[0]) or 0]
    args, named = _parts(inputs, len(ids), dim, first), _parts(dict(kwargs), len(ids), dim, first)
    # An input without a tensor is the same for all, as often as there are parts of the others.
    count = max(len(args), len(named), 1)
    args += [()] * (count - len(args))
    named += [{}] * (count - len(named))
    if len(ids) == 1:
        return module(*args[0], **named[0])
    outputs = []
    for number, (own, keywords) in enumerate(zip(args, named, strict=True)):
        with torch.cuda.device(ids[number]):
            # Buffers of a replica go with it; the first one has the module's own.
            buffers = {name: one.clone() for name, one in module.named_buffers()} if number else {}
            outputs.append(
                functional_call(module, buffers, own, keywords)
                if buffers
                else module(*own, **keywords)
            )
    return _together(outputs, dim)


def _parts(value: Any, count: int, dim: int, device: torch.device) -> list[Any]:
    """A value for each device: tensors are cut, what holds tensors is rebuilt, all else is the same."""
    if isinstance(value, torch.Tensor):
        return (
            list(value.to(device).chunk(count, dim)) if value.ndim else [value.to(device)] * count
        )
    if isinstance(value, list | tuple) and value:
        cut = zip(*(_parts(one, count, dim, device) for one in value), strict=False)
        if hasattr(value, "_fields"):
            return [type(value)(*one) for one in cut]
        return [type(value)(one) for one in cut]
    if isinstance(value, dict) and value:
        columns = [_parts(one, count, dim, device) for one in value.values()]
        cut = zip(*columns, strict=False)
        return [type(value)(zip(value, one, strict=True)) for one in cut]
    return [] if isinstance(value, tuple | dict) and not value else [value] * count


def _together(outputs: list[Any], dim: int) -> Any:
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        rows = [one.reshape(1) if not one.ndim else one for one in outputs]
        return torch.cat(rows, 0 if not first.ndim else dim)
    if first is None:
        return None
    if isinstance(first, Mapping):
        return type(first)(  # type: ignore[call-arg]
            (name, _together([one[name] for one in outputs], dim)) for name in first
        )
    if isinstance(first, list | tuple):
        columns = [_together(list(one), dim) for one in zip(*outputs, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    raise refusal(
        f"nn.DataParallel of a model that gives {type(first).__name__}", "let it give tensors"
    )


def _communication(devices: Devices) -> dict[str, Callable[..., Any]]:
    """The functions of `torch.cuda.comm`, between devices that are one place."""

    def on(device: Any) -> torch.device:
        return devices.shown[devices.index(device) or 0]

    def copy(tensor: torch.Tensor, device: Any) -> torch.Tensor:
        return tensor.to(on(device), copy=True)

    def broadcast(tensor: torch.Tensor, devices: Any = None, *, out: Any = None) -> Any:
        if out is not None:
            return tuple(one.copy_(tensor) for one in out)
        return tuple(copy(tensor, device) for device in devices)

    def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
        return [tuple(copy(one, device) for one in tensors) for device in devices]

    def reduce_add(inputs: Any, destination: Any = None) -> torch.Tensor:
        total = inputs[0]
        for one in inputs[1:]:
            total = total + one
        return total.to(on(destination)) if len(inputs) > 1 else copy(total, destination)

    def reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
        return tuple(reduce_add(list(one), destination) for one in zip(*inputs, strict=True))

    def scatter(
        tensor: torch.Tensor,
        devices: Any = None,
        chunk_sizes: Any = None,
        dim: int = 0,
        streams: Any = None,
        *,
        out: Any = None,
    ) -> Any:
        if chunk_sizes is not None:
            cut = tensor.split(list(chunk_sizes), dim)
        else:
            cut = tensor.chunk(len(out if out is not None else devices), dim)
        if out is not None:
            return tuple(one.copy_(part) for one, part in zip(out, cut, strict=True))
        return tuple(copy(part, device) for part, device in zip(cut, devices, strict=False))

    def gather(
        tensors: Any, dim: int = 0, destination: Any = None, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        made = torch.cat([one.reshape(1) if not one.ndim else one for one in tensors], dim)
        if out is not None:
            return out.copy_(made)
        return made.cpu() if str(destination) == "cpu" else made

    return {
        "broadcast": broadcast,
        "broadcast_coalesced": broadcast_coalesced,
        "reduce_add": reduce_add,
        "reduce_add_coalesced": reduce_add_coalesced,
        "scatter": scatter,
        "gather": gather,
    }


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise refusal(
            f"torch.nn.parallel.{name}",
            "wrap the model in nn.DataParallel, or better in DistributedDataParallel",
        )

    return refuse
