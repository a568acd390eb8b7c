"""Several CUDA devices in one process: `nn.DataParallel`, and the transfers of `torch.cuda.comm`.

All devices are the same device here, so a split batch goes through the model part by part. As on
GPUs, batch normalization sees each part separately, and only the first part's running statistics
are kept.
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
_COPIES = "all devices are one"


def patches(devices: Devices) -> Iterator[Patch]:
    """Yield the patches of `nn.DataParallel` and `torch.cuda.comm`; DataParallel's building blocks are
    refused."""
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

    for module in (parallel, sys.modules["torch.nn.parallel.data_parallel"]):
        yield patch(module, "data_parallel", data_parallel, _PARTS)
    for name in ("replicate", "parallel_apply"):
        yield patch(parallel, name, _refusing(name), "refused: it runs models on several GPUs")
    # torch.cuda.comm copies these names when it is imported, possibly after this.
    known = [sys.modules.get(f"torch.{name}.comm") for name in ("nn.parallel", "cuda")]
    for name, function in _communication(devices).items():
        for module in filter(None, known):
            yield patch(module, name, function, _COPIES, name=f"torch.cuda.comm.{name}")


def _forward(devices: Devices) -> Callable[..., Any]:
    @functools.wraps(nn.DataParallel.forward)
    def forward(wrapper: Any, *inputs: Any, **kwargs: Any) -> Any:
        if not wrapper.device_ids:
            return wrapper.module(*inputs, **kwargs)
        for tensor in itertools.chain(wrapper.module.parameters(), wrapper.module.buffers()):
            if not devices.placement.holds(tensor):
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
    """Return the outputs of the parts, combined."""
    first = devices.shown[devices.index(ids[0]) or 0]
    args, named = _parts(inputs, len(ids), dim, first), _parts(dict(kwargs), len(ids), dim, first)
    # An input without a tensor is repeated for each part of the other inputs.
    count = max(len(args), len(named), 1)
    args += [()] * (count - len(args))
    named += [{}] * (count - len(named))
    if len(ids) == 1:
        return module(*args[0], **named[0])
    outputs = []
    for number, (arguments, keywords) in enumerate(zip(args, named, strict=True)):
        with torch.cuda.device(ids[number]):
            # A replica's buffers are discarded with it; the first replica has the module's own.
            buffers = (
                {name: buffer.clone() for name, buffer in module.named_buffers()} if number else {}
            )
            outputs.append(
                functional_call(module, buffers, arguments, keywords)
                if buffers
                else module(*arguments, **keywords)
            )
    return _combine_outputs(outputs, dim)


def _parts(value: Any, count: int, dim: int, device: torch.device) -> list[Any]:
    """Return a value for each device: tensors are split, containers rebuilt, other values repeated."""
    if isinstance(value, torch.Tensor):
        return (
            list(value.to(device).chunk(count, dim)) if value.ndim else [value.to(device)] * count
        )
    if isinstance(value, list | tuple) and value:
        cut = zip(*(_parts(entry, count, dim, device) for entry in value), strict=False)
        if hasattr(value, "_fields"):
            return [type(value)(*entries) for entries in cut]
        return [type(value)(entries) for entries in cut]
    if isinstance(value, dict) and value:
        columns = [_parts(entry, count, dim, device) for entry in value.values()]
        cut = zip(*columns, strict=False)
        return [type(value)(zip(value, entries, strict=True)) for entries in cut]
    return [] if isinstance(value, tuple | dict) and not value else [value] * count


def _combine_outputs(outputs: list[Any], dim: int) -> Any:
    first = outputs[0]
    if isinstance(first, torch.Tensor):
        rows = [output.reshape(1) if not output.ndim else output for output in outputs]
        return torch.cat(rows, 0 if not first.ndim else dim)
    if first is None:
        return None
    if isinstance(first, Mapping):
        return type(first)(  # type: ignore[call-arg]
            (name, _combine_outputs([output[name] for output in outputs], dim)) for name in first
        )
    if isinstance(first, list | tuple):
        columns = [_combine_outputs(list(column), dim) for column in zip(*outputs, strict=True)]
        return type(first)(*columns) if hasattr(first, "_fields") else type(first)(columns)
    raise refusal(
        f"nn.DataParallel of a model that gives {type(first).__name__}", "let it give tensors"
    )


def _communication(devices: Devices) -> dict[str, Callable[..., Any]]:
    """Return the functions of `torch.cuda.comm` between devices that are the same device."""

    def on(device: Any) -> torch.device:
        return devices.shown[devices.index(device) or 0]

    def copy(tensor: torch.Tensor, device: Any) -> torch.Tensor:
        return tensor.to(on(device), copy=True)

    def broadcast(tensor: torch.Tensor, devices: Any = None, *, out: Any = None) -> Any:
        if out is not None:
            return tuple(target.copy_(tensor) for target in out)
        return tuple(copy(tensor, device) for device in devices)

    def broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int = 0) -> Any:
        return [tuple(copy(tensor, device) for tensor in tensors) for device in devices]

    def reduce_add(inputs: Any, destination: Any = None) -> torch.Tensor:
        total = inputs[0]
        for tensor in inputs[1:]:
            total = total + tensor
        return total.to(on(destination)) if len(inputs) > 1 else copy(total, destination)

    def reduce_add_coalesced(inputs: Any, destination: Any = None, buffer_size: int = 0) -> Any:
        return tuple(
            reduce_add(list(tensors), destination) for tensors in zip(*inputs, strict=True)
        )

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
            return tuple(target.copy_(part) for target, part in zip(out, cut, strict=True))
        return tuple(copy(part, device) for part, device in zip(cut, devices, strict=False))

    def gather(
        tensors: Any, dim: int = 0, destination: Any = None, *, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        result = torch.cat(
            [tensor.reshape(1) if not tensor.ndim else tensor for tensor in tensors], dim
        )
        if out is not None:
            return out.copy_(result)
        return result.cpu() if str(destination) == "cpu" else result

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
