"""Train a next-character model on all GPUs of a machine, with DDP and mixed precision.

python cuda_original.py --epochs 3
"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

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


def evaluate(model, loader, device):
    model.eval()
    totals = torch.zeros(3, device=device)
    with torch.no_grad():
        for context, target in loader:
            context = context.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            logits = model(context)
            totals[0] += nn.functional.cross_entropy(logits, target, reduction="sum")
            totals[1] += (logits.argmax(1) == target).sum()
            totals[2] += target.numel()
    dist.all_reduce(totals)
    model.train()
    loss, correct, rows = totals.tolist()
    return loss / rows, correct / rows


def main(rank, world_size, args):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    device = torch.device("cuda", rank)

    torch.manual_seed(0)
    module = NextCharacter().to(device)
    model = DistributedDataParallel(module, device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler("cuda", enabled=args.amp)
    first_epoch, history = 0, []
    if os.path.exists(args.checkpoint):
        checkpoint = torch.load(args.checkpoint, map_location="cpu")
        module.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        scaler.load_state_dict(checkpoint["scaler"])
        first_epoch, history = checkpoint["epoch"], checkpoint["history"]

    train_set, test_set = make_dataset(1024, seed=1), make_dataset(256, seed=2)
    sampler = DistributedSampler(train_set, world_size, rank, seed=3)
    loader = DataLoader(train_set, 64, sampler=sampler, drop_last=True, pin_memory=True)
    test_sampler = DistributedSampler(test_set, world_size, rank, shuffle=False)
    test_loader = DataLoader(test_set, 64, sampler=test_sampler, pin_memory=True)

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        losses = []
        for context, target in loader:
            context = context.to(device, non_blocking=True)
            target = target.to(device, non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.amp):
                loss = nn.functional.cross_entropy(model(context), target)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())

        losses = torch.stack(losses)
        of_all = [torch.empty_like(losses) for _ in range(world_size)]
        dist.all_gather(of_all, losses)
        history.append(torch.stack(of_all).tolist())
        test_loss, accuracy = evaluate(model, test_loader, device)
        if rank == 0:
            print(f"epoch {epoch}: test loss {test_loss:.4f}, accuracy {accuracy:.1%}")
            torch.save(
                {
                    "model": module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "scaler": scaler.state_dict(),
                    "epoch": epoch + 1,
                    "history": history,
                },
                args.checkpoint,
            )
        dist.barrier(device_ids=[rank])

    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--checkpoint", default="checkpoint.pt")
    args = parser.parse_args()
    world_size = torch.cuda.device_count()
    mp.spawn(main, args=(world_size, args), nprocs=world_size)
