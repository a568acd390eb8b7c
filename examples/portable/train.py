"""Train a next-character model on all TPUs or GPUs of a machine, or on its CPU.

python train.py --epochs 3
MIGRATE_RANKS=2 python train.py                      # two ranks on the CPU
MIGRATE_BACKEND=xla MIGRATE_RANKS=2 python train.py  # two simulated TPU replicas
"""

import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import shims

CHARACTERS, CONTEXT, WIDTH = 20, 8, 32


class NextCharacter(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(CHARACTERS, WIDTH)
        self.mix = nn.Linear(CONTEXT * WIDTH, 4 * WIDTH)
        self.out = nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CHARACTERS, bias=False)
        self.head.weight = self.embedding.weight  # tied, as in language models

    def forward(self, context):
        hidden = nn.functional.gelu(self.mix(self.embedding(context).flatten(1)))
        return self.head(self.out(hidden))


def make_dataset(rows, seed):
    """Each character is the later in the alphabet of the two before it."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(CHARACTERS, (rows, CONTEXT), generator=generator)
    return TensorDataset(text, torch.maximum(text[:, -1], text[:, -2]))


def evaluate(model, loader):
    model.eval()
    totals = torch.zeros(3, device=shims.device())
    with torch.no_grad():
        for context, target in loader:
            with shims.step():
                logits = model(context)
                totals[0] += nn.functional.cross_entropy(logits, target, reduction="sum")
                totals[1] += (logits.argmax(1) == target).sum()
                totals[2] += target.numel()
    shims.all_reduce(totals)
    model.train()
    loss, correct, rows = totals.tolist()
    return loss / rows, correct / rows


def main(rank, args):
    shims.init_distributed()
    world_size = shims.world_size()

    shims.manual_seed(0)
    module = shims.to_device(NextCharacter())
    model = shims.ddp(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = shims.grad_scaler(enabled=args.amp)
    first_epoch, history = 0, []
    if os.path.exists(args.checkpoint):
        checkpoint = shims.load(args.checkpoint)
        module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        first_epoch, history = checkpoint["epoch"], checkpoint["history"]

    train_set, test_set = make_dataset(1024, seed=1), make_dataset(256, seed=2)
    sampler = DistributedSampler(train_set, world_size, rank, seed=3)
    pinned = shims.device().type == "cuda"
    loader = shims.loader(
        DataLoader(train_set, 64, sampler=sampler, drop_last=True, pin_memory=pinned)
    )
    test_sampler = DistributedSampler(test_set, world_size, rank, shuffle=False)
    test_loader = shims.loader(DataLoader(test_set, 64, sampler=test_sampler, pin_memory=pinned))

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for context, target in loader:
            with shims.step():
                optimizer.zero_grad(set_to_none=True)
                with shims.autocast(enabled=args.amp):
                    loss = nn.functional.cross_entropy(model(context), target)
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                shims.clip_grad_norm(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                losses.append(loss.detach())

        losses = torch.stack(losses)
        of_all = [torch.empty_like(losses) for _ in range(world_size)]
        shims.all_gather(of_all, losses)
        history.append(torch.stack(of_all).tolist())
        test_loss, accuracy = evaluate(model, test_loader)
        if shims.is_main():
            print(f"epoch {epoch}: test loss {test_loss:.4f}, accuracy {accuracy:.1%}")
        shims.save(  # by every rank: the first one writes
            {
                "model": module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
                "epoch": epoch + 1,
                "history": history,
            },
            args.checkpoint,
        )
        shims.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    shims.launch(main, args=(parser.parse_args(),))
