"""Train a small model with shims on torch_xla, and print a loss for each step."""

import argparse
import time

import torch

import shims


def main(rank: int, options: argparse.Namespace) -> None:
    shims.init_distributed()
    shims.manual_seed(0)
    model = shims.ddp(shims.to_device(torch.nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.arange(96.0).reshape(24, 4).div(50)
    loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    with shims.resume(options.run, model=model, optimizer=optimizer, every=4) as run:
        losses = run.state.setdefault("losses", [])
        for _ in run.epochs(options.epochs):
            for batch in run.batches(loader):
                with shims.step():
                    loss = (model(batch.to(shims.device())) - 1).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                losses.append(loss.item())
                if shims.is_main():
                    print(f"step {run.step}", flush=True)
                time.sleep(options.pause)  # slow: a step, to be preempted in
    if shims.is_main():
        print("losses", *(f"{loss:.9g}" for loss in losses), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.05)
    shims.launch(main, args=(parser.parse_args(),))
