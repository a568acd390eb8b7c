"""Collectives of torch.distributed, with the same names and arguments, correct on every backend.

`op` may also be given by name: "sum", "mean", "product", "min", "max". What differs from torch:

- "mean" works everywhere, not only on NCCL;
- `barrier` waits for all ranks on XLA too, where `dist.barrier` waits for nobody;
- object collectives go over gloo where the backend cannot carry them;
- on XLA, tensors on the host and calls that ignore their group are refused, as torch_xla would leave
  them as they are or compute over all ranks;
- on XLA a collective has run when it returns, as elsewhere, but for one inside of `shims.step`, which is
  part of the step's graph: what it gives may be read by all ranks then, not by some of them.

All ranks of the group call the same function in the same order with the same shapes and dtypes.
Tensors are on `shims.device()`, results are written in place. With `async_op=True` the result is
there after `.wait()` of what is returned; else None is returned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist

from shims._shared import wide
from shims.api_errors import UnsupportedError
from shims.backends import current
from shims.backends.processes import WorkWithFinish

Op: TypeAlias = Literal["sum", "mean", "product", "min", "max"]

_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mean": dist.ReduceOp.AVG,
    "product": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def _at_once(collective: Callable[..., Any]) -> Callable[..., Any]:
    """Return the collective so that it has run on every rank when it returns, except inside `shims.step`.

    Otherwise `if rank == 0: print(total.item())` after it would make rank 0 wait on a TPU for a
    collective that the other ranks run in another graph.
    """

    @functools.wraps(collective)
    def run(*args: Any, **kwargs: Any) -> Any:
        work = collective(*args, **kwargs)
        groups = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, dist.ProcessGroup)]
        current().after_collective(groups[0] if groups else None)
        return work

    return run


@_at_once
def all_reduce(
    tensor: torch.Tensor,
    op: Op | dist.ReduceOp = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor over the ranks, in place in each.

    Args:
        tensor: any shape, the same in all ranks.
        op: the reduction; "mean" for floating-point and complex tensors only.
        group: None for all ranks.
        async_op: return at once, with a handle to `.wait()` for.
    """
    return pending_all_reduce(tensor, op, group, async_op)


def pending_all_reduce(
    tensor: torch.Tensor,
    op: Op | dist.ReduceOp = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Call `all_reduce`, but on XLA leave it in the current graph: for sums that only the model uses."""
    current().check("all_reduce", [tensor], group)
    reduction, divisor = _reduction(op, tensor, group)
    if wide.is_wide(tensor, reduction):
        wide.all_reduce(tensor, reduction, group)
        return wide.CompletedWork() if async_op else None
    return _divided(dist.all_reduce(tensor, reduction, group, async_op), tensor, divisor)


@_at_once
def reduce(
    tensor: torch.Tensor,
    dst: int = 0,
    op: Op | dist.ReduceOp = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce a tensor into rank `dst`; the tensors of the other ranks are undefined afterwards.

    Args:
        tensor: any shape, the same in all ranks.
        dst: a global rank.
        op: the reduction; "mean" for floating-point and complex tensors only.
        group: None for all ranks.
        async_op: return at once, with a handle to `.wait()` for.
    """
    current().check("reduce", [tensor], group, whole_world=True)
    reduction, divisor = _reduction(op, tensor, group)
    if dist.get_rank() != dst:
        divisor = None
    return _divided(dist.reduce(tensor, dst, reduction, group, async_op), tensor, divisor)


@_at_once
def broadcast(
    tensor: torch.Tensor,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Overwrite every rank's tensor with that of rank `src` (a global rank)."""
    current().check("broadcast", [tensor], group)
    return current().broadcast(tensor, src, group, async_op)


@_at_once
def all_gather(
    tensor_list: list[torch.Tensor],
    tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Write the tensor of rank i into `tensor_list[i]`, on every rank; all tensors have one shape."""
    current().check("all_gather", [tensor, *tensor_list], group)
    return dist.all_gather(tensor_list, tensor, group, async_op)


@_at_once
def all_gather_into_tensor(
    output_tensor: torch.Tensor,
    input_tensor: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Concatenate all ranks' tensors: (n, …) of each into (ranks * n, …)."""
    current().check("all_gather_into_tensor", [output_tensor, input_tensor], group)
    return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)


@_at_once
def reduce_scatter(
    output: torch.Tensor,
    input_list: list[torch.Tensor],
    op: Op | dist.ReduceOp = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce `input_list[i]` over the ranks into the output of rank i; all tensors have one shape."""
    current().check("reduce_scatter", [output, *input_list], group)
    reduction, divisor = _reduction(op, output, group)
    work = dist.reduce_scatter(output, input_list, reduction, group, async_op)
    return _divided(work, output, divisor)


@_at_once
def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name for it
    op: Op | dist.ReduceOp = "sum",
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Reduce (ranks * n, …) over the ranks, and give rank i part i of shape (n, …)."""
    current().check("reduce_scatter_tensor", [output, input], group)
    reduction, divisor = _reduction(op, output, group)
    work = dist.reduce_scatter_tensor(output, input, reduction, group, async_op)
    return _divided(work, output, divisor)


@_at_once
def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Send `input_tensor_list[i]` to rank i, and receive rank i's tensor into `output_tensor_list[i]`."""
    tensors = [*output_tensor_list, *input_tensor_list]
    current().check("all_to_all", tensors, group, whole_world=True)
    return current().all_to_all(output_tensor_list, input_tensor_list, group, async_op)


@_at_once
def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,  # noqa: A002 - torch's name for it
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Send part i of the first dimension to rank i, and receive the parts of the other ranks.

    Args:
        output: (n, …), with n divisible by the number of ranks unless there are split sizes.
        input: like `output`.
        output_split_sizes: rows from each rank. Refused on XLA, which splits evenly.
        input_split_sizes: rows for each rank. Refused on XLA.
        group: None for all ranks.
        async_op: return at once, with a handle to `.wait()` for.
    """
    current().check("all_to_all_single", [output, input], group, whole_world=True)
    return dist.all_to_all_single(
        output, input, output_split_sizes, input_split_sizes, group, async_op
    )


@_at_once
def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Write the tensor of rank i into `gather_list[i]` on rank `dst`; the list is None elsewhere."""
    current().check("gather", [tensor, *(gather_list or ())], group, whole_world=True)
    return dist.gather(tensor, gather_list, dst, group, async_op)


@_at_once
def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
    async_op: bool = False,
) -> Any:
    """Write `scatter_list[i]` of rank `src` into the tensor of rank i; the list is None elsewhere."""
    current().check("scatter", [tensor, *(scatter_list or ())], group, whole_world=True)
    return dist.scatter(tensor, scatter_list, src, group, async_op)


def send(
    tensor: torch.Tensor, dst: int, group: dist.ProcessGroup | None = None, tag: int = 0
) -> None:
    """Send a tensor to rank `dst` (a global rank), which calls `recv`. Slow on XLA."""
    current().check("send", [tensor], group, whole_world=True)
    dist.send(tensor, dst, group, tag)


def recv(
    tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None, tag: int = 0
) -> int:
    """Receive a tensor from rank `src` (a global rank), in place. Slow on XLA.

    Returns:
        `src`.
    """
    current().check("recv", [tensor], group, whole_world=True)
    return int(dist.recv(tensor, src, group, tag))


def all_gather_object(
    object_list: list[Any], obj: Any, group: dist.ProcessGroup | None = None
) -> None:
    """Write the object of rank i into `object_list[i]`, on every rank. Objects are pickled."""
    dist.all_gather_object(object_list, obj, current().object_group("all_gather_object", group))


def broadcast_object_list(
    object_list: list[Any], src: int = 0, group: dist.ProcessGroup | None = None
) -> None:
    """Overwrite every rank's list with that of rank `src`; all lists have one length."""
    dist.broadcast_object_list(
        object_list, src, current().object_group("broadcast_object_list", group)
    )


def broadcast_object(obj: Any, src: int = 0, group: dist.ProcessGroup | None = None) -> Any:
    """Return the object of rank `src` on every rank; the other ranks' objects are ignored."""
    objects = [obj]
    broadcast_object_list(objects, src, group)
    return objects[0]


def gather_object(
    obj: Any,
    object_gather_list: list[Any] | None = None,
    dst: int = 0,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Write the object of rank i into `object_gather_list[i]` on rank `dst`; the list is None elsewhere."""
    dist.gather_object(obj, object_gather_list, dst, current().object_group("gather_object", group))


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int = 0,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Put object i of rank `src` first in the output list of rank i."""
    dist.scatter_object_list(
        scatter_object_output_list,
        scatter_object_input_list,
        src,
        current().object_group("scatter_object_list", group),
    )


def barrier(group: dist.ProcessGroup | None = None) -> None:
    """Wait until all ranks of the group have arrived. On XLA this runs the pending graph first."""
    current().barrier(group)


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
) -> Any:
    """Return a group of some ranks for a collective. Every rank creates every group, in the same order.

    Args:
        ranks: global ranks; None for all. On XLA, a row or column of a grid of all ranks.
        timeout: None for torch's default.
        backend: "gloo" for a group for host tensors and objects; None for the device's
            backend.

    Raises:
        UnsupportedError: ranks that XLA cannot group.
    """
    return current().new_group(None if ranks is None else list(ranks), timeout, backend)


def _reduction(op: Any, tensor: torch.Tensor, group: Any) -> tuple[Any, int | None]:
    """Return torch's operation, and the divisor of its result or None."""
    if isinstance(op, str):
        if op not in _OPS:
            raise ValueError(f"op={op!r} is not a reduction; one of {', '.join(_OPS)}")
        op = _OPS[op]
    if op != dist.ReduceOp.AVG:
        return op, None
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise UnsupportedError(
            f"op='mean' of {tensor.dtype}", "convert the tensor to a floating-point type first"
        )
    # The group may have another backend than the device: gloo beside NCCL does not average.
    if current().averages and dist.get_backend(group) == current().group_backend:
        return op, None
    return dist.ReduceOp.SUM, dist.get_world_size(group)


def _divided(work: Any, tensor: torch.Tensor, divisor: int | None) -> Any:
    # -1: this rank is not in the group, and its tensor stays unchanged.
    if divisor is None or divisor < 1:
        return work

    def divide() -> None:
        with torch.no_grad():
            tensor.div_(divisor)

    if work is not None:
        return WorkWithFinish(work, divide)
    divide()
    return None
