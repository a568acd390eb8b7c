"""Train under torchrun with torch_tpu: never run here, only read."""

import os

import torch
import torch.distributed as dist

import shims


def main() -> None:
    dist.init_process_group("tpu_dist")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to("tpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with shims.resume(os.environ["CHECKPOINTS"], model=model, optimizer=optimizer) as run:
        for _ in run.epochs(3):
            for batch in run.batches([torch.ones(2, 4)]):
                optimizer.zero_grad()
                model(batch.to("tpu")).sum().backward()
                optimizer.step()
    torch.tpu.synchronize()


if __name__ == "__main__":
    main()
