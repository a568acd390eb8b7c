"""torch.distributed as it is written for nccl, and SyncBatchNorm against one big batch."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def same(name, got, want, within=0.0):
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    assert got.shape == want.shape, f"{name}: {got.shape} is not {want.shape}"
    assert torch.all((got - want).abs() <= within), f"{name}: {got} is not {want}"


def check_reductions(rank, n):
    average, mean = dist.ReduceOp.AVG, (n - 1) / 2
    value = torch.full((3,), float(rank), device="cuda")
    dist.all_reduce(value, op=average)
    same("average", value, torch.full((3,), mean))
    value = torch.full((3,), float(rank)).cuda()
    work = dist.all_reduce(value, average, async_op=True)
    work.wait()
    same("asynchronous average", value, torch.full((3,), mean))
    value = torch.full((2,), float(rank)).cuda()
    dist.reduce(value, 0, op=average)
    if rank == 0:
        same("reduced average", value, torch.full((2,), mean))
    out = torch.empty(2).cuda()
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * n).cuda() + rank, op=average)
    same("scattered average", out, torch.tensor([2.0 * rank, 2.0 * rank + 1]) + mean)
    total = torch.tensor([rank + 1], device="cuda")
    dist.all_reduce(total)
    assert total.item() == n * (n + 1) // 2
    gathered = [torch.zeros(2, device="cuda") for _ in range(n)]
    dist.all_gather(gathered, torch.full((2,), float(rank)).cuda())
    same("gathered", torch.stack(gathered)[:, 0], torch.arange(float(n)))
    sent = [torch.full((2,), 10.0 * rank + other).cuda() for other in range(n)]
    received = [torch.zeros(2).cuda() for _ in range(n)]
    if dist.is_nccl_available() and "xla" not in sys.argv:
        dist.all_to_all(received, sent)
        want = torch.tensor([10.0 * other + rank for other in range(n)])
        same("exchanged", torch.stack(received)[:, 0], want)


def check_objects(rank, n):
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(n)]
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=0, device=torch.device("cuda"))
    assert box == ["from 0"]
    gathered = [None] * n if rank == 0 else None
    dist.gather_object(rank, gathered, dst=0)
    assert rank or gathered == list(range(n))


def check_barrier(rank, n):
    place = f"{sys.argv[1]}/arrived"
    if rank == n - 1:
        open(place, "w").close()
    dist.barrier(device_ids=[rank])
    assert os.path.exists(place)


def check_batch_norm(rank, n):
    torch.manual_seed(0)
    whole = torch.randn(4 * n, 3, 5)
    scale = torch.randn(4 * n, 3, 5)
    one = nn.BatchNorm1d(3)
    with torch.no_grad():
        one.weight.copy_(torch.tensor([1.0, 2.0, 3.0]))
    spread = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.BatchNorm1d(3)))
    spread[0].load_state_dict(one.state_dict())
    spread.cuda()
    start = whole.clone().requires_grad_()
    expected = one(start)
    (expected * scale).sum().backward()
    part = slice(4 * rank, 4 * rank + 4)
    mine = whole[part].clone().cuda().requires_grad_()
    got = spread(mine)
    (got * scale[part].cuda()).sum().backward()
    same("forward", got, expected[part], 1e-5)
    same("input gradient", mine.grad, start.grad[part], 1e-5)
    total = spread[0].weight.grad.clone()
    dist.all_reduce(total)
    same("weight gradient", total, one.weight.grad, 1e-4)
    same("running mean", spread[0].running_mean, one.running_mean, 1e-6)
    same("running variance", spread[0].running_var, one.running_var, 1e-6)
    spread.eval()
    one.eval()
    same("evaluation", spread(mine), one(whole[part]), 1e-5)


def check_ddp(rank, n):
    model = DistributedDataParallel(
        nn.SyncBatchNorm.convert_sync_batchnorm(
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        ).cuda(rank),
        device_ids=[rank],
        output_device=rank,
        find_unused_parameters=False,
        broadcast_buffers=True,
        bucket_cap_mb=1,
        static_graph=False,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batch = torch.full((2, 4), 1.0 + rank).cuda(rank)
    batch[0] *= 2
    for step in range(3):
        optimizer.zero_grad()
        with model.no_sync():
            model(batch).sum().backward()
        model.require_backward_grad_sync = step == 2
        model(batch).pow(2).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        model.require_backward_grad_sync = True
        optimizer.step()
    assert dist.get_backend() == "nccl"
    assert dist.get_backend() == dist.Backend.NCCL


def main():
    rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "cuda:nccl,cpu:gloo", timeout=timedelta(minutes=15), device_id=torch.device("cuda", rank)
    )
    check_reductions(rank, n)
    check_objects(rank, n)
    check_barrier(rank, n)
    check_batch_norm(rank, n)
    check_ddp(rank, n)
    if "fail" in sys.argv and rank == 1:
        raise ValueError("the second rank gives up")
    dist.destroy_process_group()
    sys.stdout.write(f"rank {rank} of {n} is right\n")


if __name__ == "__main__":
    main()
