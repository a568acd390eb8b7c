"""The collectives of XLA computed between processes over gloo, on tensors in host memory.

Values only: which torch_xla function calls which of these is in `shims._replica`.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist

from shims.errors import NotSimulatedError, PeerLostError, RefusedOnTpuError, ReplicasDisagreeError

# As long as torch's own default for gloo: a replica may compile for minutes before it arrives.
# A replica that ended is noticed at once, by its closed connection.
_TIMEOUT = timedelta(minutes=30)

# A call is described to the other replicas in a message of this fixed size.
_CALL_BYTES = 512

_GLOO_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
# What gloo reduces itself (ProcessGroupGloo.cpp, GENERATE_ALL_TYPES).
_GLOO_DTYPES = frozenset(
    {
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
    }
)

_Fold = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_FOLDS: dict[str, _Fold] = {
    "sum": torch.add,
    "mul": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
}


def caller() -> str:
    """The innermost `file:line` outside torch, torch_xla and the shims; "" inside a backward."""
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in {"torch", "torch_xla", "shims", "migrate", "concurrent", "threading"}:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


class Collectives:
    """The collectives of one replica.

    Every method is called by all replicas, with CPU tensors of the same shape and dtype, and
    returns new CPU tensors of that dtype. `groups` are XLA's replica groups: empty for one group of
    all, otherwise lists of ordinals that together hold every replica once.

    Args:
        store: where the replicas meet.
        rank: this replica's ordinal.
        size: the number of replicas.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        options = dist.ProcessGroupGloo._Options()
        # The loopback interface: a host name that does not resolve must not matter here.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        self.rank = rank
        self.size = size
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options)

    def agree(self, call: str, tensors: Sequence[torch.Tensor], groups: Sequence[object]) -> None:
        """Make sure that every replica is in this same call.

        Raises:
            ReplicasDisagreeError: another replica is in another call, or has other shapes.
            PeerLostError: another replica has ended.
        """
        shapes = ", ".join(
            f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}" for tensor in tensors
        )
        what = f"{call} of {shapes}" + (f" in groups {groups}" if groups else "")
        if len(what.encode()) > _CALL_BYTES // 2:
            # Many tensors: their number and a checksum of the whole text stand for the list.
            what = f"{call} of {len(tensors)} tensors ({_checksum(what):08x})"
        where = caller()
        text = f"{what}\0{where}".encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\1")
        message = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        calls = []
        for gathered in self._gather(message, f"{what}{_at(where)}"):
            received = bytes(gathered.tolist()).rstrip(b"\1").decode(errors="replace")
            other, _, place = received.partition("\0")
            calls.append((other, place))
        for rank, (other, place) in enumerate(calls):
            if other != calls[0][0]:
                raise ReplicasDisagreeError(
                    f"replica 0 is in {calls[0][0]}{_at(calls[0][1])}, "
                    f"replica {rank} in {other}{_at(place)}",
                    "every replica must run the same collectives; on a TPU this hangs",
                )

    def all_reduce(
        self, kind: str, values: Sequence[torch.Tensor], scale: float, groups: list[list[int]]
    ) -> list[torch.Tensor]:
        """Each value reduced over the group, times `scale`.

        Raises:
            RefusedOnTpuError: an unknown reduction.
            NotSimulatedError: groups that do not hold every replica.
        """
        _known(kind)
        members = self._members(groups)
        self.agree(f"all_reduce({kind})", values, groups)
        return [_scaled(self._reduced(kind, value, members), scale) for value in values]

    def all_gather(
        self, values: Sequence[torch.Tensor], dim: int, groups: list[list[int]]
    ) -> list[torch.Tensor]:
        """Each value of all replicas of the group, one behind the other along `dim`."""
        members = self._members(groups)
        self.agree(f"all_gather(dim={dim})", values, groups)
        return [torch.cat([self._gather(value)[rank] for rank in members], dim) for value in values]

    def reduce_scatter(
        self,
        kind: str,
        values: Sequence[torch.Tensor],
        scale: float,
        dim: int,
        shards: int,
        groups: list[list[int]],
    ) -> list[torch.Tensor]:
        """This replica's shard, along `dim`, of each value reduced over the group, times `scale`."""
        _known(kind)
        members = self._members(groups)
        _same_count("reduce_scatter", shards, members)
        self.agree(f"reduce_scatter({kind}, dim={dim})", values, groups)
        return [
            _scaled(
                _shard(self._reduced(kind, value, members), dim, members.index(self.rank), shards),
                scale,
            )
            for value in values
        ]

    def all_to_all(
        self,
        value: torch.Tensor,
        split_dim: int,
        concat_dim: int,
        count: int,
        groups: list[list[int]],
    ) -> torch.Tensor:
        """Shard i of each replica's value, for this replica i of the group, concatenated."""
        members = self._members(groups)
        _same_count("all_to_all", count, members)
        self.agree(f"all_to_all(split={split_dim}, concat={concat_dim})", [value], groups)
        index = members.index(self.rank)
        gathered = self._gather(value)
        return torch.cat(
            [_shard(gathered[rank], split_dim, index, count) for rank in members], concat_dim
        )

    def permute(self, value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
        """The value of the replica that is paired with this one as its target; zeros without one.

        Not preceded by `agree`, as torch_xla's send and recv name different pairs in each replica.
        """
        targets = [target for _, target in pairs]
        if len(set(targets)) != len(targets):
            raise ValueError(f"collective_permute: a target occurs twice in {list(pairs)}")
        flat = _bytes_of(value)
        received = torch.zeros_like(flat)
        call = f"collective_permute{_at(caller())}"
        works = []
        for source, target in pairs:
            if source == self.rank == target:
                received = flat.clone()
            elif source == self.rank:
                works.append(self._gloo.send([flat], target, 0))
            elif target == self.rank:
                works.append(self._gloo.recv([received], source, 0))
        for work in works:
            self._wait(work, call)
        return received.view(value.dtype).reshape(value.shape)

    def _members(self, groups: list[list[int]]) -> list[int]:
        if not groups:
            return list(range(self.size))
        if sorted(rank for group in groups for rank in group) != list(range(self.size)):
            raise NotSimulatedError(
                f"replica groups {groups} leave out some of the {self.size} replicas{_at(caller())}",
                "name every replica in exactly one group, as XLA asks for",
            )
        return next(group for group in groups if self.rank in group)

    def _reduced(self, kind: str, value: torch.Tensor, members: list[int]) -> torch.Tensor:
        if len(members) == self.size and kind in _GLOO_OPS and value.dtype in _GLOO_DTYPES:
            options = dist.AllreduceOptions()
            options.reduceOp = _GLOO_OPS[kind]
            result = value.contiguous().clone()
            self._wait(self._gloo.allreduce([result], options), f"all_reduce{_at(caller())}")
            return result
        if value.dtype == torch.bool:
            # XLA's add and multiply on predicates are "or" and "and".
            kind = {"sum": "or", "max": "or", "mul": "and", "min": "and"}.get(kind, kind)
        gathered = self._gather(value)
        return reduce(_FOLDS[kind], [gathered[rank] for rank in members])

    def _gather(self, value: torch.Tensor, call: str = "all_gather") -> list[torch.Tensor]:
        # As bytes, which gloo carries for every dtype.
        flat = _bytes_of(value)
        gathered = [torch.empty_like(flat) for _ in range(self.size)]
        self._wait(self._gloo.allgather([gathered], [flat]), call)
        return [item.view(value.dtype).reshape(value.shape) for item in gathered]

    def _wait(self, work: dist.Work, call: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            raise PeerLostError(
                f"replica {self.rank} waits in {call}, but another replica has ended",
                "every replica must run the same collectives; on a TPU this hangs",
            ) from error


def _known(kind: str) -> None:
    if kind not in _FOLDS:
        raise RefusedOnTpuError(
            f"XLA has no reduction {kind!r} ({caller()})",
            f"one of {', '.join(_FOLDS)}",
            "reduce-op",
        )


def _bytes_of(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().reshape(-1).view(torch.uint8)


def _scaled(value: torch.Tensor, scale: float) -> torch.Tensor:
    return value if scale == 1.0 else (value * scale).to(value.dtype)


def _shard(value: torch.Tensor, dim: int, index: int, count: int) -> torch.Tensor:
    if value.shape[dim] % count:
        raise ValueError(f"dimension {dim} of {list(value.shape)} is not divisible by {count}")
    width = value.shape[dim] // count
    return value.narrow(dim, index * width, width).contiguous()


def _same_count(call: str, count: int, members: list[int]) -> None:
    if count != len(members):
        raise NotSimulatedError(
            f"{call} into {count} shards in a group of {len(members)} replicas{_at(caller())}",
            "use as many shards as the group has replicas",
        )


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def _at(where: str) -> str:
    return f" at {where}" if where else " in a backward pass"
