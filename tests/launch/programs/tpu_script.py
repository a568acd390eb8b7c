"""Train a small model with dropout on torch_tpu under torchrun, and print a loss for each step."""

import argparse
import time

import torch
import torch.distributed as dist

import shims


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.05)
    options = parser.parse_args()
    dist.init_process_group("tpu_dist")
    torch.manual_seed(0)
    layers = (torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to("tpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.arange(96.0).reshape(24, 4).div(50)
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    with shims.resume(options.run, model=model, optimizer=optimizer, every=4) as run:
        losses = run.state.setdefault("losses", [])
        for _ in run.epochs(options.epochs):
            for batch in run.batches(loader):
                loss = (model(batch.to("tpu")) - 1).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                if dist.get_rank() == 0:
                    print(f"step {run.step}", flush=True)
                time.sleep(options.pause)  # slow: a step, to be preempted in
    if dist.get_rank() == 0:
        print("losses", *(f"{loss:.9g}" for loss in losses), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
