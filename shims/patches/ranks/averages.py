"""Collectives that NCCL has and the real backend lacks: averages, and all_to_all of lists."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch.distributed as dist

from shims._shared import averages
from shims._shared.wide import CompletedWork
from shims.patches.ranks import executed

# Collective -> the arguments that hold the result.
_REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor")
_RED_OP_TYPE = type(dist.ReduceOp.AVG)


class _DividingWork:
    """Handle of a sum in progress, which is divided once, at the first wait."""

    def __init__(self, work: Any, divide: Callable[[], None]) -> None:
        self._work = work
        self._divide: Callable[[], None] | None = divide

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        result = self._work.wait(*args, **kwargs)
        if self._divide is not None:
            self._divide()
            self._divide = None
        return result

    def get_future(self) -> Any:
        def divided(future: Any) -> Any:
            if self._divide is not None:
                self._divide()
                self._divide = None
            return future.value()

        return self._work.get_future().then(divided)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _is_average(op: Any) -> bool:
    return isinstance(op, _RED_OP_TYPE | dist.ReduceOp) and op == dist.ReduceOp.AVG


def answers(target: str) -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Yield the collectives that take a reduction, and those of lists.

    Args:
        target: the type of the device.
    """
    on_xla = target == "xla"
    for name in _REDUCING:
        answer = _averaging(name)
        if on_xla:
            if name == "all_reduce":
                answer = executed.wide(answer)
            answer = executed.executed(answer)
        yield name, answer, "as it is; AVG is SUM, then divided" + ("; run at once" * on_xla)
    if target == "cpu":
        yield "all_to_all", _all_to_all(), "by sends and receives"


def _averaging(name: str) -> Callable[..., Any]:
    function = getattr(dist, name)

    @functools.wraps(function)
    def averaged(*args: Any, **kwargs: Any) -> Any:
        if not any(_is_average(arg) for arg in (*args, *kwargs.values())):
            return function(*args, **kwargs)
        args = tuple(dist.ReduceOp.SUM if _is_average(arg) else arg for arg in args)
        kwargs = {k: dist.ReduceOp.SUM if _is_average(v) else v for k, v in kwargs.items()}
        groups = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, dist.ProcessGroup)]
        size = dist.get_world_size(groups[0] if groups else None)
        output = args[0] if args else kwargs["tensor" if name[-6:] == "reduce" else "output"]

        before = output.clone() if name == "reduce" else None
        work = function(*args, **kwargs)
        if size < 0:
            return work
        if before is not None and not _is_destination(args, kwargs, groups):
            # Only the destination has the result.
            return work
        if work is not None:
            return _DividingWork(work, functools.partial(averages.divide, output, size))
        averages.divide(output, size)
        return None

    return averaged


def _is_destination(args: Any, kwargs: Any, groups: list[Any]) -> bool:
    group = groups[0] if groups else None
    if kwargs.get("group_dst") is not None:
        return bool(dist.get_rank(group) == kwargs["group_dst"])
    return bool(dist.get_rank() == (args[1] if len(args) > 1 else kwargs["dst"]))


def _all_to_all() -> Callable[..., Any]:
    function = dist.all_to_all

    @functools.wraps(function)
    def exchanged(
        output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
    ) -> Any:
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        output_tensor_list[rank].copy_(input_tensor_list[rank])
        works = []
        for other in range(size):
            if other != rank:
                where = other if group is None else dist.get_global_rank(group, other)
                works.append(dist.isend(input_tensor_list[other].contiguous(), where, group))
                works.append(dist.irecv(output_tensor_list[other], where, group))
        for work in works:
            work.wait()
        return CompletedWork() if async_op else None

    return exchanged
