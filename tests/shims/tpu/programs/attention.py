"""One block of attention under DDP and AdamW; rank 0 writes losses, weights and first gradients.

torchrun --nproc_per_node 2 attention.py tpu|cpu OUT
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from shims._shared import gloo_threads

DEVICE, OUT = sys.argv[1:]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(32, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 32)

    def forward(self, tokens):
        rows = self.tokens(tokens)
        parts = [
            layer(rows).unflatten(2, (2, 8)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        attended = functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.head(rows + attended.transpose(1, 2).flatten(2))


def main():
    dist.init_process_group("tpu_dist" if DEVICE == "tpu" else "gloo")
    # Without shims on the CPU, nobody else waits for threads of gloo that still hold a tensor.
    gloo_threads.let_go_at_exit()
    torch.manual_seed(0)
    model = Block().to(DEVICE)
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = torch.Generator().manual_seed(dist.get_rank())
    losses, gradients = [], {}
    for _ in range(8):
        tokens = torch.randint(0, 32, (4, 9), generator=batches).to(DEVICE)
        optimizer.zero_grad()
        logits = wrapped(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        gradients = gradients or {n: p.grad.cpu() for n, p in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    if dist.get_rank() == 0:
        weights = {name: value.detach().cpu() for name, value in model.named_parameters()}
        torch.save({"losses": losses, "weights": weights, "gradients": gradients}, OUT)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
