"""Fit a linear layer with DistributedDataParallel, one process per GPU."""

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.distributed.xla_backend
from torch.nn.parallel import DistributedDataParallel as DDP


def train(rank):
    dist.init_process_group(
        "xla", init_method="xla://"
    )
    torch.manual_seed(0)
    torch_xla.manual_seed(0)
    model = DDP(torch.nn.Linear(10, 1).to("xla"), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)  # every rank draws its own batches
    for step in range(20):
        with torch_xla.step():
            inputs = torch.randn(8, 10, generator=data).to("xla")
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()  # DDP averages the gradients here
            optimizer.step()
    if rank == 0:
        print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    torch_xla.launch(train)
