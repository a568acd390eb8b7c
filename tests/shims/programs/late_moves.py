"""A script that makes its optimizer before the move, ties weights, and leaves its inputs on the host.

All are right on CUDA: a move keeps the parameters, and DDP with device_ids moves what it is given.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.into = nn.Embedding(5, 4)
        self.out = nn.Linear(4, 5, bias=False)
        self.out.weight = self.into.weight
        self.norm = nn.LayerNorm(4)

    def forward(self, batch):
        return self.out(self.norm(self.into(batch["words"])))


def check_refusals(wrapped):
    late = nn.Linear(2, 2)
    loss = late(torch.ones(2)).sum()
    late.cuda()
    for call, expected in (
        (wrapped.cpu, "which DDP holds"),
        (loss.backward, "from before its model moved"),
    ):
        try:
            call()
        except Exception as error:
            if expected not in str(error):
                raise
        else:
            raise AssertionError(f"{expected}: not refused")
    assert late.weight.grad is None
    sys.stdout.write("refused\n")


def main():
    rank = int(os.environ["RANK"])
    dist.init_process_group("nccl")
    torch.cuda.set_device(rank)
    torch.manual_seed(rank)
    model = Tied()
    model.norm.bias.note = "kept"
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.5)
    # A gradient from before the move.
    model({"words": torch.tensor([1])}).sum().backward()
    before = model.norm.bias.grad.clone()
    model.to(rank)
    assert all(mine is its for mine, its in zip(parameters, model.parameters(), strict=True))
    assert model.out.weight is model.into.weight
    assert model.out.weight.is_cuda
    assert model.norm.bias.note == "kept"
    assert model.norm.bias.grad.is_cuda
    assert torch.allclose(model.norm.bias.grad.cpu(), before)
    optimizer.zero_grad()
    ddp = DistributedDataParallel(model, device_ids=[rank])
    start = model.norm.weight.detach().cpu().clone()
    words = torch.tensor([0, 1, 2, 3]) + rank
    for step in range(3):
        optimizer.zero_grad()
        # The dictionary is on the host.
        loss = nn.functional.cross_entropy(ddp({"words": words}), words.cuda())
        loss.backward()
        optimizer.step()
        # As scripts do that set gradients to zero themselves.
        model.norm.weight.grad.detach_()
        model.norm.weight.grad.zero_()
        average = loss.detach().clone()
        dist.all_reduce(average, dist.ReduceOp.AVG)
        if rank == 0:
            sys.stdout.write(f"step {step} loss {average.item():.6f}\n")
    trained = model.norm.weight.detach()
    assert not torch.allclose(trained.cpu(), start)
    everywhere = [torch.empty_like(trained) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, trained)
    assert all(torch.equal(one.cpu(), trained.cpu()) for one in everywhere)
    assert "into.weight" in ddp.module.state_dict()
    if trained.device.type == "cuda" and "xla" in sys.argv:
        check_refusals(model)
    # A graph of weight_norm's from before the move is nobody's loss.
    normed = nn.utils.weight_norm(nn.Linear(2, 2)).cuda()
    normed(torch.ones(1, 2).cuda()).sum().backward()
    assert normed.weight_g.grad.is_cuda
    # A model that nobody trains moves back, and is the same.
    other = nn.Linear(2, 2)
    weight, value = other.weight, other.weight.detach().clone()
    other.cuda().cpu()
    assert other.weight is weight
    assert torch.equal(weight.detach(), value)
    sys.stdout.write(f"rank {rank} moved\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
