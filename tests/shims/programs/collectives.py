"""Every collective on N replicas against its value worked out in place; what a TPU refuses too.

Run as `python collectives.py N FOLDER` with the simulation switched on.
"""

import functools
import os
import sys

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch_xla
import torch_xla.amp
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from checks import refused, same
from group_collectives import check_coalesced, check_sub_groups
from training_collectives import check_saving, check_sync_batch_norm, check_training

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
)


def check_topology(rank, n):
    assert rank == xr.global_ordinal() == xr.local_ordinal() == xr.process_index()
    assert rank == dist.get_rank()
    assert n == xr.world_size() == xr.global_device_count() == xr.process_count()
    assert n == dist.get_world_size() == xr.local_process_count() == xr.local_device_count()
    assert xr.addressable_device_count() == 1


def check_dtypes(rank, n):
    for dtype in DTYPES:
        values = torch.stack([torch.tensor([r + 1, 2 * r], dtype=dtype) for r in range(n)])
        wide = dtype in (torch.int64, torch.float64)
        for op, want in (
            (dist.ReduceOp.SUM, values.sum(0, dtype=dtype)),
            (dist.ReduceOp.PRODUCT, values.prod(0, dtype=dtype)),
            (dist.ReduceOp.MAX, values.amax(0)),
            (dist.ReduceOp.MIN, values.amin(0)),
        ):
            value = values[rank].to("xla")
            if wide and op != dist.ReduceOp.SUM:
                reduce = functools.partial(dist.all_reduce, value, op)
                refused(f"{op} of {dtype}", RuntimeError, reduce)
                continue
            dist.all_reduce(value, op=op)
            same(f"{op} of {dtype}", value, want)
    for op, want in ((dist.ReduceOp.BAND, 4), (dist.ReduceOp.BOR, 7 if n > 1 else 4)):
        value = torch.tensor([4 + (rank % 2) * 3], dtype=torch.int32, device="xla")
        dist.all_reduce(value, op=op)
        same(f"{op} of int32", value, torch.tensor([want], dtype=torch.int32))
    value = torch.ones(1, device="xla")
    refused("BAND of float", RuntimeError, lambda: dist.all_reduce(value, dist.ReduceOp.BAND))
    refused("BXOR", NotImplementedError, lambda: dist.all_reduce(value, dist.ReduceOp.BXOR))
    whole = torch.ones(1, dtype=torch.int32, device="xla")
    refused("half of an integer", Exception, lambda: xm.all_reduce("sum", whole, scale=0.5))
    for op, want in (
        (dist.ReduceOp.MAX, [True, True, False]),
        (dist.ReduceOp.MIN, [False, True, False]),
        (dist.ReduceOp.BOR, [True, True, False]),
        (dist.ReduceOp.BAND, [False, True, False]),
    ):
        value = torch.tensor([rank == 0, True, False], device="xla")
        dist.all_reduce(value, op=op)
        same(f"{op} of bool", value, want)


def check_whole_graphs(rank, n):
    """A collective is in the graph of its step, which may forbid to run a part of it by itself."""
    value = torch.ones(2, device="xla") * rank

    def step():
        dist.all_reduce(value)
        return value * 2

    result = torch_xla.compile(step, full_graph=True)()
    same("all_reduce in a whole graph", result, torch.full((2,), float(n * (n - 1))))
    with torch_xla.amp.autocast(torch_xla.device()):
        assert (value[:, None] @ value[None]).dtype == torch.bfloat16


def check_torch_distributed(rank, n):
    on_host = [torch.arange(3.0) + 10 * r for r in range(n)]
    value = on_host[rank].to("xla")

    out = value.clone()
    dist.broadcast(out, src=n - 1)
    same("broadcast", out, on_host[-1])
    outs = [torch.empty(3, device="xla") for _ in range(n)]
    dist.all_gather(outs, value)
    same("all_gather", torch.stack(outs), torch.stack(on_host))
    out = torch.empty(3 * n, device="xla")
    dist.all_gather_into_tensor(out, value)
    same("all_gather_into_tensor", out, torch.cat(on_host))
    out = torch.empty(3, device="xla")
    dist.reduce_scatter(out, [value + 100 * r for r in range(n)])
    same("reduce_scatter", out, sum(on_host) + 100 * rank * n)
    out = torch.empty(3, device="xla")
    dist.reduce_scatter_tensor(out, torch.cat([value + 100 * r for r in range(n)]))
    same("reduce_scatter_tensor", out, sum(on_host) + 100 * rank * n)
    out = torch.empty(n, device="xla")
    dist.all_to_all_single(out, torch.arange(float(n), device="xla") + 10 * rank)
    same("all_to_all_single", out, torch.tensor([rank + 10.0 * r for r in range(n)]))
    outs = [torch.empty(2, device="xla") for _ in range(n)]
    dist.all_to_all(outs, [torch.full((2,), 10.0 * rank + r, device="xla") for r in range(n)])
    same("all_to_all", torch.stack(outs)[:, 1], torch.tensor([rank + 10.0 * r for r in range(n)]))
    stacked = torch.empty(n, 3, device="xla")
    dist.all_gather_into_tensor(stacked, value)
    same("all_gather_into_tensor, stacked", stacked, torch.stack(on_host))
    works = [dist.all_reduce(out := value.clone(), async_op=True)]
    works[0].wait()
    same("all_reduce, async", out, sum(on_host))
    out = value.clone()
    dist.reduce(out, dst=0)
    same("reduce", out, sum(on_host) if rank == 0 else on_host[rank])
    outs = [torch.empty(3, device="xla") for _ in range(n)] if rank == 0 else None
    dist.gather(value, outs, dst=0)
    if outs:
        same("gather", torch.stack(outs), torch.stack(on_host))
    parts = [torch.full((2,), float(r), device="xla") for r in range(n)] if rank == 0 else None
    out = torch.empty(2, device="xla")
    dist.scatter(out, parts, src=0)
    same("scatter", out, torch.full((2,), float(rank)))
    if rank == 0:
        dist.send(value, 1)
    if rank == 1:
        out = torch.empty(3, device="xla")
        dist.recv(out, 0)
        same("send and recv", out, on_host[0])
    # Around the ring, in pairs: each sends to the next one and receives from the one before.
    received = torch.empty(3, device="xla")
    for sender in range(n):
        if rank == sender:
            dist.isend(value, (sender + 1) % n).wait()
        if rank == (sender + 1) % n:
            dist.irecv(received, sender).wait()
    same("isend and irecv", received, on_host[(rank - 1) % n])
    everyone = dist.group.WORLD
    same("functional all_reduce", funcol.all_reduce(value, "sum", everyone), sum(on_host))
    gathered = funcol.all_gather_tensor(value, 0, everyone)
    same("functional all_gather", gathered, torch.cat(on_host))
    scattered = funcol.reduce_scatter_tensor(
        torch.arange(2.0 * n, device="xla"), "sum", 0, everyone
    )
    same("functional reduce_scatter", scattered, torch.tensor([2.0 * rank, 2.0 * rank + 1]) * n)


def check_groups(rank, n):
    value = torch.arange(3.0, device="xla") + 10 * rank
    alone = [dist.new_group([r]) for r in range(n)][rank]
    out = value.clone()
    dist.all_reduce(out, group=alone)
    same("group of one", out, torch.arange(3.0) + 10 * rank)
    if n == 4:
        first, second = (0, 2) if rank % 2 == 0 else (1, 3)
        groups = [[0, 2], [1, 3]]
        want = torch.arange(3.0) * 2 + 10 * (first + second)
        same("groups of two", xm.all_reduce(xm.REDUCE_SUM, value, groups=groups), want)
        want = torch.cat([torch.arange(3.0) + 10 * first, torch.arange(3.0) + 10 * second])
        same("gather in groups", xm.all_gather(value, groups=groups, pin_layout=False), want)
    on_cpu = dist.new_group(backend="gloo")
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank}, group=on_cpu)
    assert objects == [{"rank": r} for r in range(n)]


def check_xm(rank, n):
    on_host = [torch.arange(3.0) + 10 * r for r in range(n)]
    value = on_host[rank].to("xla")
    same("xm.all_reduce", xm.all_reduce(xm.REDUCE_SUM, value), sum(on_host))
    same("scale", xm.all_reduce(xm.REDUCE_SUM, value, scale=0.5), sum(on_host) * 0.5)
    row = torch.cat(on_host).reshape(1, -1)
    same("xm.all_gather", xm.all_gather(value.reshape(1, 3), dim=1), row)
    unpinned = xm.all_gather(value.reshape(1, 3), dim=-1, pin_layout=False)
    same("xm.all_gather without pinned layout", unpinned, row)
    coalesced = xm.all_gather([value, value + 1], pin_layout=False)
    same("xm.all_gather of a list", coalesced[1], torch.cat(on_host) + 1)
    ramp = torch.arange(2.0 * n)
    shard = xm.reduce_scatter(xm.REDUCE_SUM, ramp.to("xla") + rank, 0.5, 0, n)
    want = (ramp * n + sum(range(n)))[2 * rank : 2 * rank + 2] * 0.5
    same("xm.reduce_scatter", shard, want)
    moved = xm.collective_permute(value, [[r, (r + 1) % n] for r in range(n)])
    same("xm.collective_permute", moved, on_host[(rank - 1) % n])
    moved = xm.collective_permute(value, [[0, 1]])
    same("permute without a source", moved, on_host[0] if rank == 1 else torch.zeros(3))
    grid = ramp.reshape(n, 2)
    exchanged = xm.all_to_all(grid.to("xla") + 100 * rank, 0, 1, n)
    want = torch.cat([grid[rank : rank + 1] + 100 * r for r in range(n)], 1)
    same("xm.all_to_all", exchanged, want)
    out = value.clone()
    xm.collective_broadcast([out], root_ordinal=1)
    same("xm.collective_broadcast", out, on_host[1])
    payloads = xm.rendezvous("here", payload=bytes([rank] * (rank + 1)))
    assert payloads == [bytes([r] * (r + 1)) for r in range(n)]
    assert xm.mesh_reduce("sum", float(rank), sum) == sum(range(n))


def check_refusals(rank, n):
    value = torch.ones(n, device="xla")
    average = dist.ReduceOp.AVG
    refused("ReduceOp.AVG", ValueError, lambda: dist.all_reduce(value, op=average))
    everyone = dist.group.WORLD
    refused("functional avg", Exception, lambda: funcol.all_reduce(value, "avg", everyone).cpu())
    receivers = [None] * n
    refused("all_gather_object", Exception, lambda: dist.all_gather_object(receivers, rank))
    refused("broadcast_object_list", Exception, lambda: dist.broadcast_object_list([1], src=0))
    refused(
        "broadcast_object_list on a device",
        Exception,
        lambda: dist.broadcast_object_list([1], src=0, device=torch.device("xla")),
    )
    refused(
        "gather_object",
        Exception,
        lambda: dist.gather_object(rank, receivers if rank == 0 else None),
    )
    refused(
        "scatter_object_list",
        Exception,
        lambda: dist.scatter_object_list([None], receivers if rank == 0 else None),
    )
    refused("monitored_barrier", ValueError, dist.monitored_barrier)
    splits = [2, 0] + [1] * (n - 2)
    out = torch.empty(n, device="xla")
    refused("splits", AssertionError, lambda: dist.all_to_all_single(out, value, splits, splits))
    refused("xm.send", RuntimeError, lambda: xm.send(value, 1))
    refused("xm.recv", RuntimeError, lambda: xm.recv(value, 1))
    for name, groups in (
        ("incomplete groups", [[0]]),
        ("a replica twice", [[0, 1], [1, *range(2, n)]]),
        ("a strange replica", [[0, n]]),
    ):
        reduce = functools.partial(xm.all_reduce, xm.REDUCE_SUM, value, groups=groups)
        refused(name, RuntimeError, reduce)
    wrong = functools.partial(xm.all_to_all, value, 0, 0, n + 1)
    refused("another number of parts", RuntimeError, wrong)
    for name, pairs in (("a source twice", [[0, 0], [0, 1]]), ("a target twice", [[0, 1], [1, 1]])):
        permute = functools.partial(xm.collective_permute, value, pairs)
        refused(name, RuntimeError, permute)
    # A barrier of the xla group waits for nobody: one rank alone may call it.
    if rank == 0:
        dist.barrier()


def check_reads_of_one_replica(rank):
    """What a sync has computed, and what needs no collective, one replica may read alone."""
    value = torch.ones(3, device="xla")
    dist.all_reduce(value)
    local = torch.ones(2, device="xla") * 3
    if rank == 0:
        assert local.sum().item() == 6
    torch_xla.sync()
    if rank == 0:
        assert f"{value} {value.sum().item()}"
        xm.save({"value": value}, os.devnull)
    dist.all_reduce(value)


def main(rank, n, folder):
    dist.init_process_group("xla", init_method="xla://")
    check_topology(rank, n)
    check_dtypes(rank, n)
    check_whole_graphs(rank, n)
    check_torch_distributed(rank, n)
    check_groups(rank, n)
    check_sub_groups(rank, n)
    check_coalesced(rank, n)
    check_xm(rank, n)
    check_training(rank, n)
    check_saving(rank, n, folder)
    check_sync_batch_norm(rank, n)
    check_reads_of_one_replica(rank)
    check_refusals(rank, n)
    if rank == 0:
        sys.stdout.write(f"all collectives are right on {n} replicas\n")


if __name__ == "__main__":
    replicas, folder = int(sys.argv[1]), sys.argv[2]
    try:
        torch_xla.launch(main, args=(replicas, folder), nprocs=replicas)
    except TypeError as error:
        sys.stdout.write(f"refused nprocs: {error}\n")
    torch_xla.launch(main, args=(replicas, folder))
