"""The backend "tpu_dist" over gloo: values are copied to the host, combined there, and copied back.

A group is torch's own, with one gloo backend in the place of torch_tpu's. Collectives of tensors on
"tpu" reach the kernels below through torch's dispatcher, whoever calls them: `torch.distributed`,
DistributedDataParallel, FSDP2, DTensor, functional collectives. Tensors on the host are refused, as in
a group of torch_tpu.

Each collective is complete when its call returns; sends and receives are, when they have been waited for.
"""

from __future__ import annotations

import collections
import datetime
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from shims._shared import averages, gloo_output, gloo_threads
from shims.errors import NotSimulatedError

_DEVICE = "tpu"
# torch's layer below `torch.distributed`, whose names have no types.
c10d: Any = torch._C._distributed_c10d
# gloo's threads drop a collective after its end, with a lock of the group. The last reference may need
# Python's lock, and the end of the group has that one and waits for the first: a deadlock. So the last
# reference is here.
_finished: collections.deque[Any] = collections.deque(maxlen=4)
_libraries: list[torch.library.Library] = []


def create_group(options: Any, _backend_options: Any = None) -> Any:
    """Return the gloo backend of a new group; see `torch.distributed.Backend.register_backend`."""
    gloo_threads.let_go_at_exit()
    gloo_output.keep_off_stdout()
    return dist.ProcessGroupGloo(
        options.store, options.group_rank, options.group_size, timeout=options.timeout
    )


def install() -> None:
    """Make "tpu_dist" and "tpu" backends over gloo. A second call changes nothing."""
    if _libraries:
        return
    for name in ("tpu_dist", "tpu"):
        dist.Backend._plugins[name.upper()] = dist.Backend._BackendPlugin(create_group, True)
    library = torch.library.Library("c10d", "IMPL")
    with warnings.catch_warnings():
        # torch has kernels for such devices, which would call gloo with tensors of the TPU.
        warnings.simplefilter("ignore")
        for name, kernel in _KERNELS.items():
            library.impl(name, kernel, "PrivateUse1", allow_override=True)
    _libraries.append(library)


def _gloo(group: Any) -> Any:
    return dist.ProcessGroup.unbox(group)._get_backend(torch.device(_DEVICE))


def _host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().contiguous()
    return [_host(item) for item in value]


def _write(targets: Any, values: Any) -> None:
    if isinstance(targets, torch.Tensor):
        with torch.no_grad():
            targets.detach().copy_(values)
        return
    for target, value in zip(targets, values, strict=True):
        _write(target, value)


def _finish(work: Any) -> None:
    work.wait()
    _finished.append(work)


def _done(result: Any) -> Any:
    """Return the handle of a completed collective with this result."""
    future: Any = torch.futures.Future()
    future.set_result(result)
    return c10d._create_work_from_future(future).boxed()


def _wait(options: Any, timeout: int) -> Any:
    if timeout > 0:
        options.timeout = datetime.timedelta(milliseconds=timeout)
    return options


class _GlooReduction:
    """Reduction of torch as gloo computes it: an average is a sum, divided by the number of ranks."""

    def __init__(self, boxed: Any, gloo: Any) -> None:
        operation = dist.ReduceOp.RedOpType(boxed.op())
        if operation == dist.ReduceOp.PREMUL_SUM:
            raise NotSimulatedError(
                "a collective with PREMUL_SUM, which torch_tpu does not have",
                "multiply the tensor before a sum",
            )
        self._mean = operation == dist.ReduceOp.AVG
        self._size = gloo.size()
        self.op = dist.ReduceOp.SUM if self._mean else operation

    def finish(self, value: torch.Tensor) -> torch.Tensor:
        """Return the result of the reduction that `op` has computed; an average is computed in place."""
        if self._mean:
            averages.divide(value, self._size)
        return value


def _all_reduce(
    tensors: Sequence[torch.Tensor],
    group: Any,
    op: Any,
    sparse_indices: Any = None,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    gloo = _gloo(group)
    reduction = _GlooReduction(op, gloo)
    for tensor in tensors:
        value = _host(tensor)
        options = c10d.AllreduceOptions()
        options.reduceOp = reduction.op
        _finish(gloo.allreduce([value], _wait(options, timeout)))
        _write(tensor, reduction.finish(value))
    return list(tensors), _done(list(tensors))


def _all_reduce_coalesced(
    tensors: Sequence[torch.Tensor], group: Any, op: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    return _all_reduce(tensors, group, op, None, async_op, timeout)[1]


def _broadcast(
    tensors: Sequence[torch.Tensor],
    group: Any,
    root: int,
    root_tensor: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    value = _host(tensors)
    options = c10d.BroadcastOptions()
    options.rootRank, options.rootTensor = root, root_tensor
    _finish(_gloo(group).broadcast(value, _wait(options, timeout)))
    _write(tensors, value)
    return list(tensors), _done(list(tensors))


def _reduce(
    tensors: Sequence[torch.Tensor],
    group: Any,
    op: Any,
    root: int,
    root_tensor: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    gloo = _gloo(group)
    reduction = _GlooReduction(op, gloo)
    value = _host(tensors)
    options = c10d.ReduceOptions()
    options.reduceOp, options.rootRank, options.rootTensor = reduction.op, root, root_tensor
    _finish(gloo.reduce(value, _wait(options, timeout)))
    if gloo.rank() == root:
        _write(tensors, [reduction.finish(item) for item in value])
    return _done(list(tensors))


def _all_gather(
    outputs: Sequence[Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    group: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    values = [[torch.empty_like(item, device="cpu") for item in row] for row in outputs]
    _finish(_gloo(group).allgather(values, _host(inputs), _wait(c10d.AllgatherOptions(), timeout)))
    _write(outputs, values)
    return [list(row) for row in outputs], _done([list(row) for row in outputs])


def _all_gather_coalesced(
    outputs: Sequence[Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    group: Any,
    async_op: bool = True,
) -> Any:
    for index, value in enumerate(inputs):
        _all_gather([[row[index] for row in outputs]], [value], group, async_op)
    return _done([list(row) for row in outputs])


def _all_gather_base(
    output: torch.Tensor, value: torch.Tensor, group: Any, async_op: bool = True, timeout: int = -1
) -> Any:
    gloo = _gloo(group)
    values = torch.empty(output.numel(), dtype=output.dtype)
    options = _wait(c10d.AllgatherOptions(), timeout)
    parts = [list(values.chunk(gloo.size()))]
    _finish(gloo.allgather(parts, [_host(value).reshape(-1)], options))
    _write(output, values.reshape(output.shape))
    return output, _done([output])


def _all_gather_into_tensors(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    group: Any,
    async_op: bool = True,
) -> Any:
    for output, value in zip(outputs, inputs, strict=True):
        _all_gather_base(output, value, group, async_op)
    return _done(list(outputs))


def _reduce_scatter(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[Sequence[torch.Tensor]],
    group: Any,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    gloo = _gloo(group)
    reduction = _GlooReduction(op, gloo)
    for output, parts in zip(outputs, inputs, strict=True):
        # All parts are reduced on all ranks: gloo's own form does without some of the operations.
        values = torch.stack([_host(part).reshape(-1) for part in parts])
        options = c10d.AllreduceOptions()
        options.reduceOp = reduction.op
        _finish(gloo.allreduce([values], _wait(options, timeout)))
        _write(output, reduction.finish(values[gloo.rank()]).reshape(output.shape))
    return list(outputs), _done(list(outputs))


def _reduce_scatter_base(
    output: torch.Tensor,
    value: torch.Tensor,
    group: Any,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    parts = list(value.detach().reshape(-1).chunk(_gloo(group).size()))
    _reduce_scatter([output], [parts], group, op, async_op, timeout)
    return output, _done([output])


def _reduce_scatter_tensors(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    group: Any,
    op: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    for output, value in zip(outputs, inputs, strict=True):
        _reduce_scatter_base(output, value, group, op, async_op, timeout)
    return _done(list(outputs))


def _all_to_all_base(
    output: torch.Tensor,
    value: torch.Tensor,
    group: Any,
    output_sizes: Sequence[int],
    input_sizes: Sequence[int],
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    on_host = torch.empty_like(output, device="cpu")
    options = _wait(c10d.AllToAllOptions(), timeout)
    arguments = (on_host, _host(value), list(output_sizes), list(input_sizes), options)
    _finish(_gloo(group).alltoall_base(*arguments))
    _write(output, on_host)
    return _done([output])


def _all_to_all(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    group: Any,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    # gloo has the form with one tensor only.
    on_host = torch.empty(sum(item.numel() for item in outputs), dtype=outputs[0].dtype)
    value = torch.cat([_host(item).reshape(-1) for item in inputs])
    sizes = [[item.numel() for item in items] for items in (outputs, inputs)]
    options = _wait(c10d.AllToAllOptions(), timeout)
    _finish(_gloo(group).alltoall_base(on_host, value, *sizes, options))
    for output, part in zip(outputs, on_host.split(sizes[0]), strict=True):
        _write(output, part.reshape(output.shape))
    return list(outputs), _done(list(outputs))


def _gather(
    outputs: Sequence[Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    group: Any,
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    values = [[torch.empty_like(item, device="cpu") for item in row] for row in outputs]
    options = c10d.GatherOptions()
    options.rootRank = root
    _finish(_gloo(group).gather(values, _host(inputs), _wait(options, timeout)))
    _write(outputs, values)
    return _done([list(row) for row in outputs])


def _scatter(
    outputs: Sequence[torch.Tensor],
    inputs: Sequence[Sequence[torch.Tensor]],
    group: Any,
    root: int,
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    values = [torch.empty_like(item, device="cpu") for item in outputs]
    options = c10d.ScatterOptions()
    options.rootRank = root
    _finish(_gloo(group).scatter(values, _host(inputs), _wait(options, timeout)))
    _write(outputs, values)
    return list(outputs), _done(list(outputs))


def _send(tensors: Sequence[torch.Tensor], group: Any, to: int, tag: int) -> Any:
    # Not awaited here: the other rank may receive only after it has sent.
    return _gloo(group).send(_host(tensors), to, tag).boxed()


def _recv(tensors: Sequence[torch.Tensor], group: Any, source: int, tag: int) -> Any:
    values = [torch.empty_like(item, device="cpu") for item in tensors]
    return _received(tensors, values, _gloo(group).recv(values, source, tag))


def _recv_any(tensors: Sequence[torch.Tensor], group: Any, tag: int) -> Any:
    values = [torch.empty_like(item, device="cpu") for item in tensors]
    return _received(tensors, values, _gloo(group).recv_anysource(values, tag))


def _received(tensors: Sequence[torch.Tensor], values: list[torch.Tensor], work: Any) -> Any:
    """Return a handle whose `wait` copies what has arrived into `tensors`."""

    def finish(timeout: Any = None) -> bool:
        done = bool(work.wait())
        _write(tensors, values)
        return done

    return c10d.PythonCallbackWork(finish).boxed()


def _barrier(
    tensor: torch.Tensor,
    group: Any,
    device_ids: Sequence[int],
    async_op: bool = True,
    timeout: int = -1,
) -> Any:
    _finish(_gloo(group).barrier(_wait(c10d.BarrierOptions(), timeout)))
    return _done([])


_KERNELS: dict[str, Callable[..., Any]] = {
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce_coalesced,
    "broadcast_": _broadcast,
    "reduce_": _reduce,
    "allgather_": _all_gather,
    "allgather_coalesced_": _all_gather_coalesced,
    "_allgather_base_": _all_gather_base,
    "allgather_into_tensor_coalesced_": _all_gather_into_tensors,
    "reduce_scatter_": _reduce_scatter,
    "_reduce_scatter_base_": _reduce_scatter_base,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_tensors,
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_base,
    "gather_": _gather,
    "scatter_": _scatter,
    "send": _send,
    "recv_": _recv,
    "recv_any_source_": _recv_any,
    "barrier": _barrier,
}
