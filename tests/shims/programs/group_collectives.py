"""Collectives in groups of some of the replicas, and of several tensors at once."""

import functools

import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
from checks import refused, same


def check_sub_groups(rank, n):
    value = torch.arange(4.0, device="xla") + 10 * rank

    # torch_xla gives XLA this one group, which leaves replicas out: no TPU compiles it.
    for ranks in ([0], [1]) if n == 2 else ([0, 2], [1, 3]):
        group = dist.new_group(ranks)
        if n == 4 and rank in ranks:
            reduce = functools.partial(dist.all_reduce, value.clone(), group=group)
            refused(f"group {ranks} without a mesh", RuntimeError, reduce)

    # With the whole mesh it is right, when all groups are in the same collective.
    width = n // 2
    for mesh in (
        [list(range(width)), list(range(width, n))],
        [list(range(0, n, 2)), list(range(1, n, 2))],
    ):
        _check_mesh(value, rank, n, mesh)


def _check_mesh(value, rank, n, mesh):
    options = {"xla_pg_options": {"mesh": mesh}}
    (group,) = [
        made
        for ranks in mesh
        if (made := dist.new_group(ranks, pg_options=options), rank in ranks)[1]
    ]
    ranks = next(ranks for ranks in mesh if rank in ranks)
    width, index = len(ranks), ranks.index(rank)
    on_host = [torch.arange(4.0) + 10 * r for r in ranks]

    out = value.clone()
    dist.all_reduce(out, group=group)
    same(f"all_reduce in {mesh}", out, sum(on_host))
    out = value.clone()
    dist.all_reduce(out, op=dist.ReduceOp.MAX, group=group)
    same(f"max in {mesh}", out, on_host[-1])
    out = value.clone()
    dist.broadcast(out, src=ranks[-1], group=group)
    same(f"broadcast in {mesh}", out, on_host[-1])
    outs = [torch.empty(4, device="xla") for _ in ranks]
    dist.all_gather(outs, value, group=group)
    same(f"all_gather in {mesh}", torch.stack(outs), torch.stack(on_host))
    out = torch.empty(4 * width, device="xla")
    dist.all_gather_into_tensor(out, value, group=group)
    same(f"all_gather_into_tensor in {mesh}", out, torch.cat(on_host))
    part = slice(index * 4 // width, (index + 1) * 4 // width)
    out = torch.empty(4 // width, device="xla")
    dist.reduce_scatter_tensor(out, value, group=group)
    same(f"reduce_scatter_tensor in {mesh}", out, sum(on_host)[part])
    dist.reduce_scatter(out, list(value.chunk(width)), group=group)
    same(f"reduce_scatter in {mesh}", out, sum(on_host)[part])
    exchanged = xm.all_to_all(value.reshape(width, -1), 0, 0, width, groups=mesh)
    want = torch.cat([one.reshape(width, -1)[index : index + 1] for one in on_host])
    same(f"xm.all_to_all in {mesh}", exchanged, want)
    out = value.clone()
    xm.collective_broadcast([out], root_ordinal=0, groups=mesh)
    same(f"xm.collective_broadcast in {mesh}", out, on_host[0] * (0 in ranks))
    shard = xm.reduce_scatter(xm.REDUCE_SUM, value, 0.5, 0, width, groups=mesh)
    same(f"xm.reduce_scatter in {mesh}", shard, sum(on_host)[part] * 0.5)
    # It waits for nobody, in no group.
    dist.barrier(group=group)

    # torch_xla pays no heed to the group in these. Each replica is refused by itself.
    if width == n:
        return
    list_of = [torch.empty(4, device="xla") for _ in ranks]
    for name, call in {
        "reduce": lambda: dist.reduce(value, ranks[0], group=group),
        "all_to_all": lambda: dist.all_to_all(list_of, list_of, group=group),
        "all_to_all_single": lambda: dist.all_to_all_single(out, value, group=group),
        "gather": lambda: dist.gather(value, list_of if index == 0 else None, ranks[0], group),
        "scatter": lambda: dist.scatter(out, list_of if index == 0 else None, ranks[0], group),
        "send": lambda: dist.send(value, ranks[index - 1], group) if width > 1 else _no_peer(),
        "recv": lambda: dist.recv(out, ranks[index - 1], group) if width > 1 else _no_peer(),
    }.items():
        refused(f"{name} in {mesh}", Exception, call)


def _no_peer():
    raise ValueError("a group of one")


def check_coalesced(rank, n):
    on_host = [torch.arange(2.0) + 10 * r for r in range(n)]
    value = on_host[rank].to("xla")
    values = [value, value.reshape(1, 2) + 1]

    first, second = xm.all_gather(values, pin_layout=False)
    same("all_gather of a list, first", first, torch.cat(on_host))
    same("all_gather of a list, second", second, torch.stack(on_host) + 1)
    outputs = [torch.empty(2 * n, device="xla"), torch.empty(n, 2, device="xla")]
    xm.all_gather(values, output=outputs, pin_layout=False)
    same("all_gather of a list into outputs", outputs[1], torch.stack(on_host) + 1)
    bucketized = xm.all_gather_bucketized([value, value + 1])
    same("xm.all_gather_bucketized", bucketized[1], torch.cat(on_host) + 1)

    ramps = [torch.arange(2.0 * n), torch.arange(4.0 * n) + 1]
    mine = slice(2 * rank, 2 * rank + 2), slice(4 * rank, 4 * rank + 4)
    inputs = [ramp.to("xla") + rank for ramp in ramps]
    wanted = [(ramp * n + sum(range(n)))[part] for ramp, part in zip(ramps, mine, strict=True)]
    for name, got in {
        "list": xm.reduce_scatter(xm.REDUCE_SUM, inputs, 1.0, 0, n, pin_layout=False),
        "bucketized": xm.reduce_scatter_bucketized(xm.REDUCE_SUM, inputs, 1.0, 0, n),
    }.items():
        for one, want in zip(got, wanted, strict=True):
            same(f"xm.reduce_scatter, {name}", one, want)
    outputs = [torch.empty(2, device="xla"), torch.empty(4, device="xla")]
    xm.reduce_scatter(xm.REDUCE_SUM, inputs, 1.0, 0, n, output=outputs, pin_layout=False)
    same("xm.reduce_scatter of a list into outputs", outputs[1], wanted[1])
    both = [value.clone(), value + 1]
    xm.all_reduce(xm.REDUCE_SUM, both)
    same("xm.all_reduce of a list", both[1], sum(on_host) + n)

    lists = [[torch.empty(2, device="xla") for _ in range(n)] for _ in range(2)]
    dist.group.WORLD.allgather_coalesced(lists, [value, value + 1])
    same("allgather_coalesced", torch.stack(lists[1]), torch.stack(on_host) + 1)
    outputs = [torch.empty(2, device="xla"), torch.empty(4, device="xla")]
    pieces = [list(one.chunk(n)) for one in inputs]
    options = dist.ReduceScatterOptions()
    dist.group.WORLD.reduce_scatter_coalesced(outputs, pieces, options)
    same("reduce_scatter_coalesced", outputs[1], wanted[1])

    refused("all_reduce_coalesced", Exception, lambda: dist.all_reduce_coalesced([value, value]))
    refused("_coalescing_manager", RuntimeError, lambda: _coalesce(value))
    # torch has noted it as begun, and would only collect all that follows.
    dist.distributed_c10d._world.pg_coalesce_state.clear()


def _coalesce(value):
    with dist.distributed_c10d._coalescing_manager(device=value.device):
        dist.all_reduce(value)
        dist.all_reduce(value)
