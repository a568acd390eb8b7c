"""A training script as it is written for GPUs, with what such scripts do around the loop.

Prints the losses; the checkpoint goes to the folder of the first argument.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        # No bias: in front of a batch norm its gradient is rounding noise.
        self.first = nn.Linear(6, 16, bias=False)
        self.norm = nn.BatchNorm1d(16)
        self.second = nn.Linear(16, 2)

    def forward(self, batch):
        hidden = torch.relu(self.norm(self.first(batch)))
        return checkpoint(self.second, hidden, use_reentrant=False)


def main():
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    path = f"{sys.argv[1]}/checkpoint.pt"
    amp = "amp" in sys.argv
    gpu = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(gpu)
    device = torch.device("cuda", gpu)
    torch.backends.cudnn.benchmark = True
    dist.init_process_group(backend="nccl", init_method="env://")
    torch.manual_seed(0)
    torch.cuda.manual_seed_all(0)
    data = TensorDataset(torch.randn(64, 6), torch.randint(0, 2, (64,)))
    sampler = DistributedSampler(data, num_replicas=size, rank=rank)
    loader = DataLoader(data, batch_size=8, sampler=sampler, pin_memory=True, drop_last=True)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(Model()).to(device)
    model = DistributedDataParallel(model, device_ids=[gpu], output_device=gpu)
    criterion = nn.CrossEntropyLoss().cuda(gpu)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=None)
    scaler = torch.cuda.amp.GradScaler(enabled=amp)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for images, target in loader:
            images = images.cuda(gpu, non_blocking=True)
            target = target.to(device, non_blocking=True)
            assert images.is_cuda
            assert images.device == device
            with torch.autocast("cuda", dtype=torch.float16, enabled=amp):
                loss = criterion(model(images), target)
            optimizer.zero_grad(set_to_none=True)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            mean = loss.detach().clone()
            dist.all_reduce(mean, op=dist.ReduceOp.AVG)
            if rank == 0:
                sys.stdout.write(f"loss {mean.item():.8f}\n")
    end.record()
    torch.cuda.synchronize()
    assert start.elapsed_time(end) > 0
    assert torch.cuda.max_memory_allocated() > 0
    torch.cuda.empty_cache()
    if rank == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scaler": scaler.state_dict(),
            "cuda_rng": torch.cuda.get_rng_state_all(),
        }
        torch.save(state, path)
    dist.barrier()
    state = torch.load(path, map_location=f"cuda:{gpu}", weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scaler.load_state_dict(state["scaler"])
    torch.cuda.set_rng_state_all([state.cpu() for state in state["cuda_rng"]])
    optimizer.zero_grad()
    model(images).sum().backward()
    optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
