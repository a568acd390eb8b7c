"""Train a small regression network with DistributedDataParallel, one process per GPU.

    python before.py
"""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
import torch_xla
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 32)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(32, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def make_dataset(size=512):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size, 10, generator=generator)
    labels = torch.relu(inputs) @ torch.randn(10, 5, generator=generator)
    return TensorDataset(inputs, labels)


def _mp_fn(rank):
    world_size = xr.world_size()
    # Join the group of all processes
    dist.init_process_group("xla", init_method="xla://")

    # DDP gives every rank the weights of rank 0
    model = ToyModel()
    model = model.to('xla')
    ddp_model = DDP(model, gradient_as_bucket_view=True)

    loss_fn = nn.MSELoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=0.05, momentum=0.9)

    dataset = make_dataset()
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=16, sampler=sampler)

    for epoch in range(3):
        sampler.set_epoch(epoch)  # another order in every epoch
        for inputs, labels in loader:
            with torch_xla.step():
                inputs, labels = inputs.to('xla'), labels.to('xla')
                optimizer.zero_grad()
                outputs = ddp_model(inputs)
                loss = loss_fn(outputs, labels)
                loss.backward()  # DDP averages the gradients here
                optimizer.step()
        if rank == 0:
            print(f'epoch {epoch}: loss {loss.item():.4f}')

    dist.destroy_process_group()


if __name__ == '__main__':
    torch_xla.launch(_mp_fn)
