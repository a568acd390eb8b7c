"""What torch_xla's own functions for training and saving do with several replicas."""

import os

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
from checks import refused, same
from torch import nn

from shims.batch_norm import SyncBatchNorm


def check_training(rank, n):
    torch.manual_seed(rank)
    model = nn.Linear(2, 1, bias=False).to("xla")
    xm.broadcast_master_param(model)
    before = model.weight.detach().cpu()
    torch.manual_seed(0)
    same("xm.broadcast_master_param", model.weight, nn.Linear(2, 1, bias=False).weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.full((1, 2), float(rank + 1), device="xla")).sum().backward()
    xm.optimizer_step(optimizer, barrier=True)
    mean = (n + 1) / 2
    same("xm.optimizer_step", model.weight, before - mean)
    optimizer.zero_grad()
    model(torch.full((1, 2), float(rank + 1), device="xla")).sum().backward()
    xm.reduce_gradients(optimizer)
    same("xm.reduce_gradients", model.weight.grad, torch.full((1, 2), mean))

    value = torch.arange(2.0, device="xla") + rank
    value.requires_grad_()
    out = xf.all_reduce(xm.REDUCE_SUM, value)
    (out * (rank + 1)).sum().backward()
    same("functions.all_reduce", out, torch.arange(2.0) * n + sum(range(n)))
    same("the gradient of functions.all_reduce", value.grad, torch.full((2,), rank + 1.0))
    gathered = xf.all_gather(value.detach())
    same("functions.all_gather", gathered, torch.cat([torch.arange(2.0) + r for r in range(n)]))


def check_saving(rank, n, folder):
    path = os.path.join(folder, "saved.pt")
    value = torch.arange(3.0, device="xla") + 10 * rank
    # All replicas call it, one writes, and all meet behind it.
    xm.save({"value": value}, path, global_master=True)
    xm.rendezvous("saved")
    same("xm.save", torch.load(path)["value"], torch.arange(3.0))
    own = os.path.join(folder, f"saved.{rank}.pt")
    xm.save({"value": value}, own, master_only=False)
    payloads = xm.rendezvous("saved too", payload=str(rank).encode())
    assert payloads == [str(r).encode() for r in range(n)]
    other = (rank + 1) % n
    loaded = torch.load(os.path.join(folder, f"saved.{other}.pt"))["value"]
    same("xm.save by each", loaded, torch.arange(3.0) + 10 * other)
    summed = xm.mesh_reduce("sum", {"of": torch.tensor([rank + 1.0])}, lambda all_: all_)
    assert [one["of"].item() for one in summed] == [r + 1.0 for r in range(n)]
    done = xm.do_on_ordinals(lambda tensor: tensor.sum().item(), (value,), (1,))
    assert done == (33.0 if rank == 1 else None)


def _joined(seed, n):
    """The batch of all replicas, one behind the other."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4 * n, 3, 2, 2, generator=generator) * 2 + 1


def check_sync_batch_norm(rank, n):
    """torch's own layer refuses XLA; torch_xla's and the shims' equal a BatchNorm of the joined batch."""
    torch.manual_seed(0)
    weight, bias = torch.rand(3) + 0.5, torch.rand(3)
    reference = nn.BatchNorm2d(3)
    joined = _joined(1, n).requires_grad_()
    with torch.no_grad():
        reference.weight.copy_(weight)
        reference.bias.copy_(bias)
    factors = _joined(2, n)
    wanted = reference(joined)
    (wanted * factors).sum().backward()
    mine = slice(4 * rank, 4 * rank + 4)

    native = nn.SyncBatchNorm(3).to("xla")
    refused("nn.SyncBatchNorm", Exception, lambda: native(joined[mine].detach().to("xla")))

    biased = joined.detach().var((0, 2, 3), unbiased=False) * 0.1 + 0.9
    for name, layer, running in (
        ("shims", SyncBatchNorm(3), reference.running_var),
        ("torch_xla", xf.SyncBatchNorm(3), biased),
    ):
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        layer = layer.to("xla")
        inputs = joined[mine].detach().to("xla").requires_grad_()
        out = layer(inputs)
        (out * factors[mine].to("xla")).sum().backward()
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad)
        torch_xla.sync()
        for what, got, want in (
            ("output", out, wanted[mine]),
            ("gradient of the input", inputs.grad, joined.grad[mine]),
            ("gradient of the weight", layer.weight.grad, reference.weight.grad),
            ("gradient of the bias", layer.bias.grad, reference.bias.grad),
            ("running mean", layer.running_mean, reference.running_mean),
            ("running variance", layer.running_var, running),
        ):
            close = torch.allclose(got.detach().cpu(), want, rtol=1e-4, atol=1e-5)
            assert close, f"{name} SyncBatchNorm: {what}: {got.cpu()}, not {want}"
