"""Train a small transformer that reads digits off strips, one process per GPU.

    torchrun --nproc-per-node 2 before.py --epochs 2
    torchrun --nproc-per-node 2 before.py --epochs 4 --resume run.pt

Mixed precision with a gradient scaler, gradient accumulation, clipping, synchronized batch
normalization, a moving average of the weights, a cosine schedule, checkpoints.
"""
import argparse
import contextlib
import copy
import math
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import shims
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CLASSES = 10


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Reader(nn.Module):
    """Cut a strip into patches by a convolution, and say which digit each patch shows."""

    def __init__(self, width=32, heads=4, depth=2, length=12):
        super().__init__()
        self.patches = nn.Conv1d(1, width, kernel_size=4, stride=4, bias=False)
        self.norm = nn.BatchNorm1d(width)
        self.position = nn.Parameter(torch.zeros(1, length, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, strips):
        x = self.norm(self.patches(strips)).transpose(1, 2)
        return self.head(self.blocks(x + self.position))


def make_dataset(size, length=12):
    generator = torch.Generator().manual_seed(7)
    glyphs = torch.randn(CLASSES, 4, generator=generator)
    digits = torch.randint(CLASSES, (size, length), generator=generator)
    strips = glyphs[digits].reshape(size, 1, -1)
    strips = strips + 0.3 * torch.randn(strips.shape, generator=generator)
    return TensorDataset(strips, digits)


def make_optimizer(model, lr, weight_decay):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    groups = [
        {'params': decayed, 'weight_decay': weight_decay},
        {'params': others, 'weight_decay': 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


@torch.no_grad()
def update_average(average, model, decay):
    for ours, theirs in zip(average.parameters(), model.parameters()):
        ours.mul_(decay).add_(theirs, alpha=1 - decay)
    for ours, theirs in zip(average.buffers(), model.buffers()):
        ours.copy_(theirs)


@torch.no_grad()
def evaluate(model, loader, device):
    model.eval()
    right = torch.zeros((), device=device)
    total = torch.zeros((), device=device)
    for strips, digits in loader:
        with torch_xla.step():
            strips, digits = strips.to(device), digits.to(device)
            right += (model(strips).argmax(dim=-1) == digits).sum()
        total += digits.numel()
    dist.all_reduce(right)
    dist.all_reduce(total)
    model.train()
    return (right / total).item()


def main(args):
    dist.init_process_group('xla', init_method='xla://')
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = torch.device('xla')

    torch.manual_seed(args.seed)
    torch_xla.manual_seed(args.seed)
    model = shims.sync_batch_norm(Reader(depth=args.depth)).to(device)
    average = copy.deepcopy(model).requires_grad_(False)
    ddp_model = DDP(model, gradient_as_bucket_view=True)
    optimizer = make_optimizer(model, args.lr, args.weight_decay)

    train_set, test_set = make_dataset(args.examples), make_dataset(64)
    sampler = DistributedSampler(train_set, num_replicas=world_size, rank=rank)
    loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler, drop_last=True)
    test_sampler = DistributedSampler(test_set, num_replicas=world_size, rank=rank, shuffle=False)
    test_loader = DataLoader(test_set, batch_size=args.batch_size, sampler=test_sampler)

    updates = args.schedule_epochs * (len(loader) // args.accumulate)
    warmup = 2
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(1.0, (step + 1) / warmup)
        * 0.5 * (1 + math.cos(math.pi * min(1.0, step / updates))),
    )
    # bfloat16 needs no loss scale: kept for checkpoints that the CUDA script loads too.
    scaler = torch.amp.GradScaler('cpu')

    first_epoch = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location='cpu')
        model.load_state_dict(checkpoint['model'])
        average.load_state_dict(checkpoint['average'])
        optimizer.load_state_dict(checkpoint['optimizer'])
        scheduler.load_state_dict(checkpoint['scheduler'])
        scaler.load_state_dict(checkpoint['scaler'])
        first_epoch = checkpoint['epoch'] + 1

    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for index, (strips, digits) in enumerate(loader):
            with torch_xla.step():
                strips = strips.to(device, non_blocking=True)
                digits = digits.to(device, non_blocking=True)
                boundary = (index + 1) % args.accumulate == 0
                with contextlib.nullcontext() if boundary else ddp_model.no_sync():
                    with torch.autocast('xla', dtype=torch.bfloat16):
                        logits = ddp_model(strips)
                        loss = F.cross_entropy(logits.flatten(0, 1), digits.flatten())
                        loss = loss / args.accumulate
                    loss.backward()
                if boundary:
                    nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
                    scheduler.step()
                    update_average(average, model, args.decay)
        accuracy = evaluate(average, test_loader, device)
        if rank == 0:
            print(f'epoch {epoch}: loss {loss.item() * args.accumulate:.4f}, accuracy {accuracy:.3f}')
        if args.save:
            xm.save(
                {
                    'model': model.state_dict(),
                    'average': average.state_dict(),
                    'optimizer': optimizer.state_dict(),
                    'scheduler': scheduler.state_dict(),
                    'scaler': scaler.state_dict(),
                    'epoch': epoch,
                },
                args.save,
                global_master=True,
            )
        xm.rendezvous('after_save')
    dist.destroy_process_group()


def _mp_fn(index_):
    if 'TORCHELASTIC_RUN_ID' not in os.environ:  # else torchrun has set them
        os.environ['RANK'] = str(index_)
        os.environ['LOCAL_RANK'] = str(xr.local_ordinal())
        os.environ['WORLD_SIZE'] = str(xr.world_size())
        os.environ['LOCAL_WORLD_SIZE'] = str(xr.local_device_count())
    parser = argparse.ArgumentParser()
    parser.add_argument('--epochs', type=int, default=2)
    parser.add_argument('--schedule-epochs', type=int, default=4)
    parser.add_argument('--examples', type=int, default=128)
    parser.add_argument('--depth', type=int, default=2)
    parser.add_argument('--batch-size', type=int, default=8)
    parser.add_argument('--accumulate', type=int, default=2)
    parser.add_argument('--lr', type=float, default=3e-3)
    parser.add_argument('--weight-decay', type=float, default=0.1)
    parser.add_argument('--clip', type=float, default=1.0)
    parser.add_argument('--decay', type=float, default=0.9)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--save')
    parser.add_argument('--resume')
    main(parser.parse_args())


if __name__ == '__main__':
    torch_xla.launch(_mp_fn)
