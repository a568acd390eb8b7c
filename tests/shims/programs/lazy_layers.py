"""Lazy layers of a CUDA script, which move before their first forward."""

import torch
from torch import nn

torch.manual_seed(0)
for move in (nn.Module.cuda, lambda module: module.to("cuda"), lambda module: module.to("cuda:0")):
    model = move(
        nn.Sequential(nn.LazyConv2d(3, 1), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(4))
    )
    model(torch.ones(2, 1, 4, 4, device="cuda"))
    assert all(weight.is_cuda and weight.numel() for weight in model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        loss = model(torch.ones(2, 1, 4, 4, device="cuda")).sub(1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[2] < losses[0]
