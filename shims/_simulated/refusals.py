"""Errors of the simulation for programs that a TPU refuses or silently computes wrong.

The refusals were determined with the TPU's compiler: the graphs that torch_xla 2.9 builds for each
collective, compiled ahead of time for four v5e chips by libtpu 0.0.42. Its messages are quoted.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from shims._simulated.calls import at, caller
from shims.errors import RefusedOnTpuError, WrongOnTpuError

_MESH = "pg_options={'xla_pg_options': {'mesh': [[0, 2], [1, 3]]}}"
_ALL_GROUPS = f"name every replica once, in groups of one size, as dist.new_group([0, 2], {_MESH})"


# Process group methods that have another name in torch.distributed.
_BY_TORCH = {"alltoall": "all_to_all", "alltoall_base": "all_to_all_single"}


def expect_groups(groups: list[list[int]], size: int, operation: str) -> None:
    """Check that the replica groups have equal sizes and contain every replica once.

    Raises:
        RefusedOnTpuError: otherwise: XLA's verifier or the TPU's compiler refuses the graph.
    """
    named = [rank for group in groups for rank in group]
    where = at(caller())
    if len(set(named)) != len(named):
        raise RefusedOnTpuError(
            f"XLA refuses the replica groups {groups}: a replica is repeated{where}", _ALL_GROUPS
        )
    if sorted(named) != list(range(size)):
        raise RefusedOnTpuError(
            f"XLA refuses the replica groups {groups}: replica groups should contain {size} replicas, "
            f"but found {len(named)}{where}",
            _ALL_GROUPS,
        )
    if len({len(group) for group in groups}) != 1:
        raise RefusedOnTpuError(
            f"{operation} does not support subgroups of different sizes: {groups}{where}",
            _ALL_GROUPS,
        )


def expect_shards(operation: str, count: int, members: list[int]) -> None:
    """Check that there are as many parts as group members.

    Raises:
        RefusedOnTpuError: XLA's verifier refuses another number.
    """
    if count != len(members):
        raise RefusedOnTpuError(
            f"XLA refuses {operation} into {count} parts in a group of {len(members)} replicas"
            f"{at(caller())}",
            "use as many parts as the group has replicas",
        )


def expect_pairs(pairs: Sequence[Sequence[int]], size: int) -> None:
    """Check that each replica is at most once a source and at most once a target.

    Raises:
        RefusedOnTpuError: XLA's verifier refuses others.
    """
    for index, role in enumerate(("source", "target")):
        ordinals = [pair[index] for pair in pairs]
        if len(set(ordinals)) != len(ordinals) or not set(ordinals) <= set(range(size)):
            raise RefusedOnTpuError(
                f"XLA refuses collective_permute with the pairs {[list(pair) for pair in pairs]}: a "
                f"{role} appears twice or is none of the {size} replicas{at(caller())}",
                "send to several replicas in several calls",
            )


def expect_lowered(operation: str, kind: str, values: Sequence[torch.Tensor]) -> None:
    """Check that the TPU's compiler supports the reduction for the dtypes.

    Raises:
        RefusedOnTpuError: it has none: 64 bits are two numbers of 32 on a TPU.
    """
    for value in values:
        wide = value.dtype in (torch.int64, torch.float64)
        scatters_double = operation == "reduce-scatter" and value.dtype == torch.float64
        if wide and (kind != "sum" or scatters_double):
            raise RefusedOnTpuError(
                f"the TPU's compiler supports lowering only of Sum {operation} for {value.dtype}, "
                f"not {kind}{at(caller())}",
                "convert to torch.int32 or torch.float32 for the collective",
                "reduce-op",
            )
        if kind in ("and", "or") and value.dtype.is_floating_point:
            raise RefusedOnTpuError(
                f"XLA expected pred or integral type in argument to and/or operation; got {value.dtype}"
                f"{at(caller())}",
                "convert to torch.int32 or torch.bool",
                "reduce-op",
            )


def expect_scalable(scale: float, values: Sequence[torch.Tensor]) -> None:
    """Check that the dtypes can represent the scale.

    Raises:
        WrongOnTpuError: torch_xla makes it a constant of the tensor's dtype: 0.5 becomes 0.
    """
    if scale != int(scale) and any(not value.dtype.is_floating_point for value in values):
        raise WrongOnTpuError(
            f"torch_xla rounds scale={scale} down to {int(scale)} for integers{at(caller())}",
            "convert to floating point before, or divide the result",
        )


def expect_world(group_name: str, size: int) -> None:
    """Check that the group contains all replicas, or that there is no group.

    Raises:
        WrongOnTpuError: torch_xla's kernels ignore the name of a group.
    """
    if not group_name:
        return
    group = distributed_c10d._resolve_process_group(group_name)
    if group.size() != size:
        raise WrongOnTpuError(
            f"a functional collective in a group of {group.size()} of {size} replicas{at(caller())}: "
            "torch_xla reduces it over all replicas",
            "pass groups= to the xm function",
        )


def refuse_send_and_recv(name: str) -> Any:
    """Return a function that replaces `xm.send` or `xm.recv` and refuses.

    XLA:CPU reports "HLO opcode `send` is not supported". libtpu ends the process with "Check
    failed: send_recv_instr->is_host_transfer()".
    """

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RefusedOnTpuError(
            f"the TPU's compiler has no xm.{name} between replicas{at(caller())}",
            "use xm.collective_permute with the pairs of all replicas",
        )

    return refuse


def refuse_spmd(name: str) -> Any:
    """Return a function that replaces an SPMD collective, which torch_xla.launch does not support."""

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise RefusedOnTpuError(
            f"{name} is of SPMD{at(caller())}, and torch_xla.launch refuses SPMD",
            "use the collectives of xm",
        )

    return refuse


def refuse_in_subgroups(size: int) -> None:
    """Refuse process group methods that torch_xla computes wrong in a group smaller than the world.

    These methods use the global ordinal for the rank in the group, or ignore the groups (torch_xla
    2.9, distributed/xla_backend.py).
    """
    from torch_xla.distributed.xla_backend import ProcessGroupXla

    wrong = {
        "reduce": "reduces over all replicas",
        "alltoall": "exchanges with all replicas",
        "alltoall_base": "exchanges with all replicas",
        "scatter": "takes the rank in the group for the global one",
        "gather": "takes the rank in the group for the global one",
        "send": "takes the rank in the group for the global one",
        "recv": "takes the rank in the group for the global one",
    }
    for name, does in wrong.items():
        setattr(ProcessGroupXla, name, _in_the_world(getattr(ProcessGroupXla, name), size, does))


def _in_the_world(method: Any, size: int, does: str) -> Any:
    name = _BY_TORCH.get(method.__name__, method.__name__)

    @functools.wraps(method)
    def guarded(group: Any, *args: Any, **kwargs: Any) -> Any:
        if group.size() != size:
            raise WrongOnTpuError(
                f"{name} in a group of {group.size()} of {size} replicas{at(caller())}: "
                f"torch_xla {does}",
                "use all_reduce, all_gather, broadcast or reduce_scatter, or a gloo group",
            )
        return method(group, *args, **kwargs)

    return guarded


def refuse_object_collectives() -> None:
    """Refuse object collectives on XLA, which cannot compile tensors whose length differs by rank.

    https://github.com/pytorch/xla/issues/5492
    """
    # Patches the functions behind every object collective, so that names imported earlier are
    # refused too.
    for name in ("_object_to_tensor", "_get_object_coll_device"):
        setattr(distributed_c10d, name, _refusing_xla(getattr(distributed_c10d, name)))
    # With a device argument, receivers would first wait for senders.
    for name in ("broadcast_object_list", "send_object_list", "recv_object_list"):
        refusing = _refusing_xla(getattr(distributed_c10d, name))
        setattr(distributed_c10d, name, refusing)
        setattr(dist, name, refusing)


def _refusing_xla(function: Any) -> Any:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        group = signature.bind(*args, **kwargs).arguments.get("group")
        if dist.get_backend(group) == "xla":
            raise RefusedOnTpuError(
                f"an object collective on the xla group{at(caller())}",
                "use a group made by dist.new_group(backend='gloo')",
                "object-collectives",
            )
        return function(*args, **kwargs)

    return guarded
