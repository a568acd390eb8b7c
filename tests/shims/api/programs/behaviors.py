"""Every behavior of the explicit API on two ranks, against values worked out in place.

    python behaviors.py OUT

Writes what must be equal on every backend to `OUT/rank<N>.json` and a checkpoint beside it.
"""

import json
import os
import sys
import time
import warnings
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shims
from shims.api_errors import LaunchError, MemoryUnknownError, NotOnDeviceError, UnsupportedError

# Backends of TPUs.
TPUS = ("xla", "tpu")
Pair = namedtuple("Pair", "left right")


def same(name, got, want):
    got, want = torch.as_tensor(got).detach().cpu(), torch.as_tensor(want)
    if got.dtype != want.dtype or not torch.equal(got, want):
        raise AssertionError(f"{name}: {got}, not {want}")


def close(name, got, want, tolerance):
    difference = (got.detach().cpu().double() - want.detach().cpu().double()).abs().max().item()
    if not difference <= tolerance:
        raise AssertionError(f"{name}: differs by {difference}, more than {tolerance}")


def refused(error, call, word):
    with pytest.raises(error, match=word):
        call()


def check_ranks(rank, n):
    assert rank == shims.rank() == shims.local_rank() == dist.get_rank()
    assert n == shims.world_size() == dist.get_world_size()
    assert shims.is_main() == (rank == 0)
    assert shims.device().type == shims.backend().name
    refused(LaunchError, lambda: shims.launch(main, ranks=n + 1), "shims.launch")


def check_reductions(rank, n):
    device = shims.device()
    on_host = torch.stack([torch.tensor([r + 1.0, 2.0 * r]) for r in range(n)])
    wants = {
        "sum": on_host.sum(0),
        "mean": on_host.mean(0),
        "product": on_host.prod(0),
        "min": on_host.amin(0),
        "max": on_host.amax(0),
    }
    for op, want in wants.items():
        value = on_host[rank].clone().to(device)
        assert shims.all_reduce(value, op) is None
        same(op, value, want)
        value = on_host[rank].clone().to(device)
        work = shims.all_reduce(value, op, async_op=True)
        work.wait()
        work.wait()
        same(f"{op} later", value, want)
        value = on_host[rank].clone().to(device)
        shims.reduce(value, dst=1, op=op)
        if rank == 1:
            same(f"reduce {op}", value, want)
        part = torch.empty(2, device=device)
        shims.reduce_scatter(part, [on_host[rank].to(device) + 10 * r for r in range(n)], op)
        shifted = {"sum": 10.0 * rank * n, "product": None}.get(op, 10.0 * rank)
        if shifted is not None:
            same(f"reduce_scatter {op}", part, want + shifted)
    part = torch.empty(1, device=device)
    shims.reduce_scatter_tensor(part, torch.arange(float(n), device=device) + rank, "mean")
    same("reduce_scatter_tensor", part, torch.tensor([rank + (n - 1) / 2]))
    value = on_host[rank].clone().to(device)
    shims.all_reduce(value, dist.ReduceOp.AVG)
    same("torch's own AVG", value, wants["mean"])
    whole = torch.tensor([rank], device=device)
    shims.all_reduce(whole, "max")
    same("int64", whole, torch.tensor([n - 1]))
    refused(UnsupportedError, lambda: shims.all_reduce(whole, "mean"), "floating-point")
    refused(ValueError, lambda: shims.all_reduce(whole, "average"), "'average'")


def check_infinities(rank, n):
    device = shims.device()
    infinite = torch.full((2, 2), float("-inf"))
    for name, broadcast in (("shims", shims.broadcast), ("dist", dist.broadcast)):
        value = (
            infinite.to(device) if rank == 1 else torch.full((2, 2), float("nan"), device=device)
        )
        broadcast(value, 1)
        same(f"infinite, {name}", value, infinite)
    scalar = torch.tensor(float("inf"), device=device)
    dist.broadcast(scalar, 0)
    same("infinite scalar", scalar, float("inf"))
    net = nn.BatchNorm1d(2)
    net.register_buffer("mask", infinite.triu(1), persistent=False)
    wrapped = shims.ddp(shims.to_device(net))
    for _ in range(2):  # DDP broadcasts the buffers again before the second
        with shims.step():
            wrapped(torch.ones(2, 2, device=device)).sum().backward()
    same("mask under DDP", net.mask, infinite.triu(1))


def check_movements(rank, n):
    device = shims.device()
    on_host = [torch.arange(3.0) + 10 * r for r in range(n)]
    value = on_host[rank].clone().to(device)
    # What a receiver holds before must not matter, not even a NaN.
    out = torch.full((3,), float("nan"), device=device) if rank == 0 else value.clone()
    shims.broadcast(out, src=1)
    same("broadcast", out, on_host[1])
    scalar = torch.tensor(float("inf") if rank else 5.0, device=device)
    shims.broadcast(scalar)
    same("broadcast of a scalar", scalar, torch.tensor(5.0))
    outs = [torch.empty(3, device=device) for _ in range(n)]
    shims.all_gather(outs, value)
    same("all_gather", torch.stack(outs), torch.stack(on_host))
    out = torch.empty(3 * n, device=device)
    shims.all_gather_into_tensor(out, value)
    same("all_gather_into_tensor", out, torch.cat(on_host))
    sent = [(value + 100 * r).reshape(3, 1) for r in range(n)]
    outs = [torch.empty(3, 1, device=device) for _ in range(n)]
    work = shims.all_to_all(outs, sent, async_op=True)
    work.wait()
    same("all_to_all", torch.cat(outs, 1).T.contiguous(), torch.stack(on_host) + 100 * rank)
    out = torch.empty(n, device=device)
    shims.all_to_all_single(out, torch.arange(float(n), device=device) + 10 * rank)
    same("all_to_all_single", out, torch.tensor([rank + 10.0 * r for r in range(n)]))
    outs = [torch.empty(3, device=device) for _ in range(n)] if rank == 1 else None
    shims.gather(value, outs, dst=1)
    if outs:
        same("gather", torch.stack(outs), torch.stack(on_host))
    out = torch.empty(3, device=device)
    parts = [torch.full((3,), float(r), device=device) for r in range(n)] if rank == 1 else None
    shims.scatter(out, parts, src=1)
    same("scatter", out, torch.full((3,), float(rank)))
    if rank == 0:
        shims.send(value, 1)
    else:
        out = torch.empty(3, device=device)
        assert shims.recv(out, 0) == 0
        same("recv", out, on_host[0])


def check_objects_and_groups(rank, n):
    objects = [None] * n
    shims.all_gather_object(objects, {"rank": rank, "text": "é" * (rank + 1)})
    assert objects == [{"rank": r, "text": "é" * (r + 1)} for r in range(n)]
    assert shims.broadcast_object(("from", rank), src=1) == ("from", 1)
    listed = [rank, "x"]
    shims.broadcast_object_list(listed, src=1)
    assert listed == [1, "x"]
    gathered = [None] * n if rank == 0 else None
    shims.gather_object(rank, gathered)
    assert gathered in (None, list(range(n)))
    mine = [None]
    shims.scatter_object_list(mine, ["a", "b"] if rank == 0 else None)
    assert mine == ["ab"[rank]]

    alone = [shims.new_group([r]) for r in range(n)][rank]
    value = torch.tensor([rank + 1.0], device=shims.device())
    shims.all_reduce(value, "mean", group=alone)
    same("group of one", value, torch.tensor([rank + 1.0]))
    on_host = shims.new_group(backend="gloo")
    value = torch.tensor([float(rank)])
    shims.all_reduce(value, "mean", group=on_host)
    same("host group", value, torch.tensor([(n - 1) / 2]))
    shims.barrier(on_host)
    if shims.backend().name in TPUS:
        refused(NotOnDeviceError, lambda: shims.all_reduce(torch.ones(1)), "cpu")
    if shims.backend().name == "xla":
        on_device = torch.ones(1, device="xla")
        refused(UnsupportedError, lambda: shims.reduce(on_device, rank, group=alone), "all_reduce")
        refused(UnsupportedError, lambda: shims.all_gather_object([None], 1, alone), "gloo")


def check_barrier(rank, folder):
    """Rank 1 comes late: rank 0 must see what it did before."""
    mark = folder / "rank1-was-here"
    if rank == 1:
        time.sleep(0.5)  # slow: the others must wait for this
        mark.touch()
    shims.barrier()
    assert mark.exists()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def check_placement():
    model = Tied()
    early = torch.optim.SGD(model.parameters(), lr=0.5)
    if shims.device().type != "cpu":
        refused(NotOnDeviceError, lambda: shims.ddp(model), "to_device")
    assert shims.to_device(model) is model
    assert model.head.weight is model.embedding.weight
    assert model.head.weight.device == shims.device()
    assert len(list(model.parameters())) == 1
    refused(TypeError, lambda: shims.ddp(model, device_ids=[0]), "device_ids")
    if shims.backend().name in TPUS:
        refused(NotOnDeviceError, early.step, "optimizer")
    meta = nn.Linear(1, 1, device="meta")
    refused(NotOnDeviceError, lambda: shims.ddp(meta), "'weight'")


def check_random(record):
    device = shims.device()
    shims.manual_seed(7)
    first = torch.rand(4, device=device).cpu()
    state = shims.rng_state()
    again, host = torch.rand(4, device=device).cpu(), torch.rand(4)
    shims.set_rng_state(state)
    same("device random", torch.rand(4, device=device), again)
    same("host random", torch.rand(4), host)
    shims.manual_seed(7)
    same("seeded again", torch.rand(4, device=device), first)
    assert not torch.equal(first, again)
    shims.manual_seed(7)
    record["host random"] = torch.rand(4).tolist()
    state["backend"] = "other"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        shims.set_rng_state(state)
    assert len(caught) == (device.type != "cpu")
    if device.type != "cuda":
        # As a checkpoint of a CUDA script has it: the bytes of one GPU, or of all.
        of_a_gpu = torch.zeros(16, dtype=torch.uint8)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            shims.set_rng_state(of_a_gpu)
            shims.set_rng_state([of_a_gpu, of_a_gpu])
        assert len(caught) == 2 * (device.type != "cpu")


def check_batches(rank, n):
    rows = torch.arange(20.0).reshape(10, 2)
    data = TensorDataset(rows, torch.arange(10))
    sampler = DistributedSampler(data, n, rank)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = shims.loader(DataLoader(data, 2, sampler=sampler))
        shims.loader(DataLoader(data, 2, sampler=sampler, drop_last=True))
    assert len(caught) == (shims.backend().name == "xla"), caught
    assert len(loader) == 3
    assert loader.batch_size == 2
    loader.set_epoch(1)
    assert sampler.epoch == 1
    for values, numbers in loader:
        assert values.device == numbers.device == shims.device()
        same("rows", values, rows[numbers.cpu()])
    nested = [{"a": torch.ones(1), "b": Pair(torch.zeros(1), "text")}, 3]
    (moved,) = shims.loader([nested])
    assert moved[0]["a"].device == moved[0]["b"].left.device == shims.device()
    assert (moved[0]["b"].right, moved[1]) == ("text", 3)


def check_precision(record):
    device = shims.device()
    layer = nn.Linear(2, 2, device=device)
    with shims.autocast():
        assert layer(torch.ones(1, 2, device=device)).dtype == torch.bfloat16
    with shims.autocast(enabled=False):
        assert layer(torch.ones(1, 2, device=device)).dtype == torch.float32
    with shims.autocast(), shims.autocast(torch.float32):
        assert layer(torch.ones(1, 2, dtype=torch.bfloat16, device=device)).dtype == torch.float32
    half = torch.bfloat16 if device.type in TPUS else torch.float16
    assert shims.autocast_dtype(torch.float16) == half
    assert shims.autocast_dtype(torch.bfloat16) == torch.bfloat16
    with shims.autocast(torch.float16):
        assert layer(torch.ones(1, 2, device=device)).dtype == half
    if device.type in TPUS:
        refused(UnsupportedError, lambda: shims.autocast(torch.float64), "bfloat16")
    scaler = shims.grad_scaler(init_scale=256.0)
    state = {**scaler.state_dict(), "scale": 512.0}
    scaler.load_state_dict(state)
    record["scaler"] = scaler.state_dict()
    assert torch.amp.GradScaler("cpu").state_dict().keys() == scaler.state_dict().keys()
    weight = nn.Parameter(torch.tensor([3.0, 4.0], device=device))
    weight.grad = weight.detach().clone()
    same("norm before", shims.clip_grad_norm([weight], 1.0), torch.tensor(5.0))
    close("clipped", weight.grad, torch.tensor([0.6, 0.8]), 1e-6)


def check_recomputation():
    device = shims.device()
    torch.manual_seed(3)
    block = shims.to_device(nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    value = torch.randn(2, 3).to(device).requires_grad_()
    block(value).square().sum().backward()
    wants = [value.grad.clone(), *(p.grad.clone() for p in block.parameters())]
    value.grad = None
    block.zero_grad()
    shims.checkpoint_activations(block, value).square().sum().backward()
    for got, want in zip([value.grad, *(p.grad for p in block.parameters())], wants, strict=True):
        close("recomputed gradient", got, want, 1e-6)
    if shims.backend().name == "xla":
        fixed = value.detach()
        refused(
            UnsupportedError, lambda: shims.checkpoint_activations(block, fixed), "requires_grad"
        )


def check_batch_norm(rank):
    """Two ranks with unequal batches against one BatchNorm on all rows."""
    torch.manual_seed(5)
    rows = torch.randn(7, 3, 2) * 3 + 100
    weights = torch.randn(7, 3, 2)
    reference = nn.BatchNorm1d(3)
    nn.init.uniform_(reference.weight)
    model = nn.Sequential(nn.BatchNorm1d(3))
    model[0].load_state_dict(reference.state_dict())
    model = shims.to_device(shims.sync_batch_norm(model))
    assert list(model.state_dict()) == [f"0.{name}" for name in reference.state_dict()]
    joint = rows.clone().requires_grad_()
    want = reference(joint)
    (want * weights).sum().backward()
    mine = slice(0, 4) if rank == 0 else slice(4, 7)
    if shims.backend().name == "xla":
        mine = slice(0, 4) if rank == 0 else slice(3, 7)
        joint.grad = None
        overlapping = torch.cat([rows[0:4], rows[3:7]]).requires_grad_()
        reference.load_state_dict(model[0].state_dict())
        reference.zero_grad()
        want = reference(overlapping)
        (want * torch.cat([weights[0:4], weights[3:7]])).sum().backward()
        here = slice(0, 4) if rank == 0 else slice(4, 8)
        want, gradient = want[here], overlapping.grad[here]
    else:
        want, gradient = want[mine], joint.grad[mine]
    value = rows[mine].to(shims.device()).requires_grad_()
    got = model(value)
    (got * weights[mine].to(shims.device())).sum().backward()
    close("normalized", got, want, 2e-5)
    close("its gradient", value.grad, gradient, 2e-5)
    for name, buffer in reference.named_buffers():
        close(name, model[0].get_buffer(name), buffer, 1e-4)
    total = model[0].weight.grad.clone()
    shims.all_reduce(total)
    close("gradient of the weight", total, reference.weight.grad, 2e-5)
    model.eval()
    reference.eval()
    close("evaluation", model(value), reference(rows[mine]), 2e-5)


def check_memory():
    if shims.backend().name == "cuda":
        use = shims.memory()
        assert 0 < use.used <= use.peak <= use.limit
    else:
        refused(MemoryUnknownError, shims.memory, "MemoryUnknownError")


def train(rank, n, folder, record):
    """Fifteen steps of tied weights, clipping and a scaler; the losses go into the record."""
    torch.manual_seed(1)
    tokens = torch.randint(0, 11, (60, 2))
    loader = DataLoader(
        TensorDataset(tokens),
        4,
        sampler=DistributedSampler(tokens, n, rank, seed=2),
        drop_last=True,
    )
    module = shims.to_device(Tied())
    model = shims.ddp(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = shims.grad_scaler()
    losses, norms = [], []
    batches = shims.loader(loader)
    for epoch in range(2):
        batches.set_epoch(epoch)
        for (batch,) in batches:
            with shims.step():
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(batch[:, 0]), batch[:, 1])
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                norm = shims.clip_grad_norm(model, 1.0)
                scaler.step(optimizer)
                scaler.update()
            losses.append(loss.detach())
            norms.append(norm)
    shims.synchronize()
    record["losses"] = torch.stack(losses).tolist()
    record["norms"] = torch.stack(norms).tolist()
    shims.save(
        {"model": module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "last.pt"
    )
    shims.barrier()


def main(rank, folder):
    # Before the group: on XLA the seed waits for the runtime.
    shims.manual_seed(0)
    shims.init_distributed()
    n = shims.world_size()
    record = {"world": n}
    check_ranks(rank, n)
    check_reductions(rank, n)
    check_infinities(rank, n)
    check_movements(rank, n)
    check_objects_and_groups(rank, n)
    check_barrier(rank, folder)
    check_placement()
    check_random(record)
    check_batches(rank, n)
    check_precision(record)
    check_recomputation()
    check_batch_norm(rank)
    check_memory()
    train(rank, n, folder, record)
    (folder / f"rank{rank}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    shims.launch(main, args=(Path(sys.argv[1]),))
