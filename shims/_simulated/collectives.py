"""XLA's collectives, computed between processes over gloo on tensors in host memory.

This module computes values only. `shims._simulated.replica` maps torch_xla's functions to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import reduce

import torch
import torch.distributed as dist

from shims._shared import gloo_output, gloo_threads
from shims._simulated import calls as _calls
from shims._simulated import refusals
from shims._simulated.calls import Call, at, first_difference
from shims._simulated.reads import READ_REMEDY
from shims._simulated.watch import Watch
from shims.errors import RefusedOnTpuError, ReplicasDisagreeError

# torch's own default for gloo: a replica may compile for minutes before it arrives. A replica that
# ended is noticed at once, by its closed connection.
_TIMEOUT = timedelta(minutes=30)

# Polling interval at which a waiting replica asks the others where they are.
_SLICE = timedelta(seconds=2)

# Fixed size of the message that describes a call to the other replicas.
_CALL_BYTES, _FIELDS = 2048, 6

_GLOO_OPS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}
# Dtypes that gloo reduces itself (ProcessGroupGloo.cpp, GENERATE_ALL_TYPES).
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


class Collectives:
    """Collectives of one replica.

    All replicas call every method, with CPU tensors of the same shape and dtype. Each method
    returns new CPU tensors of that dtype. `groups` are XLA's replica groups: empty for one group of
    all, otherwise lists of ordinals that together contain every replica once.

    Args:
        store: the store of the replicas' rendezvous.
        rank: this replica's ordinal.
        size: the number of replicas.
        watch: determines which replica this one waits for.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, watch: Watch) -> None:
        options = dist.ProcessGroupGloo._Options()
        # The loopback interface: works even if the host name does not resolve.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        options._timeout = _TIMEOUT
        self.rank = rank
        self.size = size
        self._watch = watch
        self._reads = watch.reads
        gloo_threads.let_go_at_exit()
        gloo_output.keep_off_stdout()
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options)

    def agree(
        self, operation: str, tensors: Sequence[torch.Tensor], groups: Sequence[object]
    ) -> Call:
        """Check that every replica is in this same call.

        Raises:
            ReplicasDisagreeError: another replica is in another call, has other shapes, or has
                read something before the call that this replica has not.
            PeerLostError: another replica has ended.
        """
        call = _calls.current(_calls.describe(operation, tensors, groups), self._watch.step)
        digest, description = self._reads.since()
        self._reads.begin()
        fields = (
            call.wire,
            "" if call.name == call.wire else call.name,
            call.location,
            str(call.step),
            digest,
            description,
        )
        text = "\0".join(fields).encode()[:_CALL_BYTES].ljust(_CALL_BYTES, b"\1")
        message = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        gathered = [_received(item) for item in self._gather(message, call)]
        calls = {rank: call for rank, (call, _, _) in enumerate(gathered)}
        self._watch.seen(calls)
        _expect_one_call(calls)
        _expect_equal_reads(gathered)
        return call

    def all_reduce(
        self, kind: str, values: Sequence[torch.Tensor], scale: float, groups: list[list[int]]
    ) -> list[torch.Tensor]:
        """Return each value reduced over the group, times `scale`.

        Raises:
            RefusedOnTpuError: the TPU's compiler refuses the reduction or the groups.
        """
        _expect_known_reduction(kind)
        refusals.expect_lowered("all-reduce", kind, values)
        refusals.expect_scalable(scale, values)
        members = self._members(groups, "AllReduce")
        call = self.agree(f"all_reduce({kind})", values, groups)
        return [_scaled(self._reduced(kind, value, members, call), scale) for value in values]

    def all_gather(
        self, values: Sequence[torch.Tensor], dim: int, groups: list[list[int]]
    ) -> list[torch.Tensor]:
        """Return each value of all replicas of the group, concatenated along `dim`."""
        members = self._members(groups, "AllGather")
        call = self.agree(f"all_gather(dim={dim})", values, groups)
        gathered = [self._gather(value, call) for value in values]
        return [torch.cat([each[rank] for rank in members], dim) for each in gathered]

    def reduce_scatter(
        self,
        kind: str,
        values: Sequence[torch.Tensor],
        scale: float,
        dim: int,
        shards: int,
        groups: list[list[int]],
    ) -> list[torch.Tensor]:
        """Return this replica's shard along `dim` of each value reduced over the group, times `scale`."""
        _expect_known_reduction(kind)
        refusals.expect_lowered("reduce-scatter", kind, values)
        refusals.expect_scalable(scale, values)
        members = self._members(groups, "ReduceScatter")
        refusals.expect_shards("reduce_scatter", shards, members)
        call = self.agree(f"reduce_scatter({kind}, dim={dim})", values, groups)
        index = members.index(self.rank)
        reduced = [self._reduced(kind, value, members, call) for value in values]
        return [_scaled(_shard(value, dim, index, shards), scale) for value in reduced]

    def all_to_all(
        self,
        value: torch.Tensor,
        split_dim: int,
        concat_dim: int,
        count: int,
        groups: list[list[int]],
    ) -> torch.Tensor:
        """Return the concatenation of the shards that the group's replicas hold for this replica."""
        members = self._members(groups, "AllToAll")
        refusals.expect_shards("all_to_all", count, members)
        call = self.agree(f"all_to_all(split={split_dim}, concat={concat_dim})", [value], groups)
        index = members.index(self.rank)
        gathered = self._gather(value, call)
        return torch.cat(
            [_shard(gathered[rank], split_dim, index, count) for rank in members], concat_dim
        )

    def permute(self, value: torch.Tensor, pairs: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the value of this replica's source in `pairs`, or zeros if there is no source.

        `agree` is not called first, because torch_xla's send and recv name different pairs on each
        replica.
        """
        refusals.expect_pairs(pairs, self.size)
        flat = _bytes_of(value)
        received = torch.zeros_like(flat)
        wire = _calls.describe(f"collective_permute({list(pairs)})", [value], [])
        call = _calls.current(wire, self._watch.step)
        works: list[tuple[int, dist.Work]] = []
        for source, target in pairs:
            if source == self.rank == target:
                received = flat.clone()
            elif source == self.rank:
                works.append((target, self._gloo.send([flat], target, 0)))
            elif target == self.rank:
                works.append((source, self._gloo.recv([received], source, 0)))
        for peer, work in works:
            # gloo closes the connection when a wait for this work times out.
            self._wait(_UnboundedWait(work), call, [peer])
        return received.view(value.dtype).reshape(value.shape)

    def _members(self, groups: list[list[int]], operation: str) -> list[int]:
        if not groups:
            return list(range(self.size))
        refusals.expect_groups(groups, self.size, operation)
        return next(group for group in groups if self.rank in group)

    def _reduced(
        self, kind: str, value: torch.Tensor, members: list[int], call: Call
    ) -> torch.Tensor:
        if len(members) == self.size and kind in _GLOO_OPS and value.dtype in _GLOO_DTYPES:
            options = dist.AllreduceOptions()
            options.reduceOp = _GLOO_OPS[kind]
            result = value.contiguous().clone()
            self._wait(self._gloo.allreduce([result], options), call)
            return result
        if value.dtype == torch.bool:
            # XLA's add and multiply of predicates are "or" and "and".
            kind = {"sum": "or", "max": "or", "mul": "and", "min": "and"}.get(kind, kind)
        gathered = self._gather(value, call)
        return reduce(_FOLDS[kind], [gathered[rank] for rank in members])

    def _gather(self, value: torch.Tensor, call: Call) -> list[torch.Tensor]:
        # Sent as bytes, which gloo carries for every dtype.
        flat = _bytes_of(value)
        gathered = [torch.empty_like(flat) for _ in range(self.size)]
        self._wait(self._gloo.allgather([gathered], [flat]), call)
        return [item.view(value.dtype).reshape(value.shape) for item in gathered]

    def _wait(
        self, work: dist.Work | _UnboundedWait, call: Call, peers: Sequence[int] | None = None
    ) -> None:
        with self._watch.waiting(call, peers) as poll:
            while not self._is_done(work, call):
                poll()

    def _is_done(self, work: dist.Work | _UnboundedWait, call: Call) -> bool:
        """Wait for one polling interval. Return whether the work is done."""
        try:
            work.wait(_SLICE)
        except RuntimeError as error:
            # Completed: with this error, or right after the interval.
            if work.is_completed() and not work.is_success():
                raise self._watch.lost(call) from error
            return work.is_completed()
        return True


class _UnboundedWait:
    """Work whose `wait` can time out without ending the work."""

    def __init__(self, work: dist.Work) -> None:
        self._error: RuntimeError | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: dist.Work) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            self._error = error

    def wait(self, limit: timedelta) -> None:
        self._thread.join(limit.total_seconds())
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError("not yet")

    def is_completed(self) -> bool:
        return not self._thread.is_alive()

    def is_success(self) -> bool:
        return self._error is None


def _received(message: torch.Tensor) -> tuple[Call, str, str]:
    """Return a replica's call, and the digest and description of its reads since the previous call."""
    text = message.numpy().tobytes().rstrip(b"\1").decode(errors="replace")
    fields = text.split("\0")
    # A text that was too long is cut at the end.
    wire, name, location, step, digest, description = fields + [""] * (_FIELDS - len(fields))
    return Call(wire, name or wire, location, int(step or 0)), digest, description


def _expect_one_call(calls: dict[int, Call]) -> None:
    wires = [call.wire for call in calls.values()]
    most = max(wires, key=wires.count)
    for rank, call in calls.items():
        if call.wire != most:
            waiting = wires.index(most)
            first, second = calls[waiting], call
            if first.name == second.name:
                first, second = first.by_wire(), second.by_wire()
            raise ReplicasDisagreeError(
                f"replica {waiting} waits in {first}, which replica {rank} never reaches: "
                f"it is in {second}",
                "every replica must run the same collectives; on a TPU this hangs",
            )


def _expect_equal_reads(gathered: Sequence[tuple[Call, str, str]]) -> None:
    _, first, reads = gathered[0]
    for rank, (_, digest, its) in enumerate(gathered):
        if digest != first:
            done = dict(zip((0, rank), first_difference(reads, its), strict=True))
            reader = 0 if done[0] else rank
            other = rank if reader == 0 else 0
            what = done[reader] or "reads other results of collectives"
            differs = f", not as replica {other}, which {done[other]}" if done[other] else ""
            raise ReplicasDisagreeError(
                f"replica {reader} {what}{differs or f', and replica {other} does not'} "
                f"before the next collective, {gathered[other][0]}",
                READ_REMEDY,
            )


def _expect_known_reduction(kind: str) -> None:
    if kind not in _FOLDS:
        raise RefusedOnTpuError(
            f"XLA has no reduction {kind!r}{at(_calls.caller())}",
            f"use one of {', '.join(_FOLDS)}",
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
