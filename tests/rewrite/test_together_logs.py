"""What one replica computes and gives to a logger: all compute and read it, one logs."""

from __future__ import annotations

from pathlib import Path

from migrate.reading.tree.source import parse
from migrate.rewrite.story import rewrite_source

SCRIPT = b"""\
import torch
import torch.distributed as dist
import torch.nn.functional as F
import wandb


def train(model, loader, optimizer, writer):
    rank = dist.get_rank()
    for step, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        out = model(x)
        loss = F.cross_entropy(out, y)
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 10 == 0:
            error = F.l1_loss(out, y)
            writer.add_scalar("error", error, step)
            wandb.log({"loss": loss, "acc": (out.argmax(1) == y).float().mean()})
            print("loss %.3f, error %.3f" % (loss, error))
"""


def test_what_is_logged_is_read_by_all() -> None:
    done = rewrite_source(parse(SCRIPT, Path("train.py")))
    text = done.data.decode()
    assert text[text.index("        if step % 10 == 0:") :] == (
        """\
        if step % 10 == 0:
            with shims.together(tells=rank == 0):
                error = F.l1_loss(out, y)
                error_read = error.cpu()
                if rank == 0:
                    writer.add_scalar("error", error_read, step)
                out_read = (out.argmax(1) == y).float().mean().cpu()
                if rank == 0:
                    wandb.log({"loss": loss, "acc": out_read})
                error_read_2 = error.cpu()
                if rank == 0:
                    print("loss %.3f, error %.3f" % (loss, error_read_2))
"""
    )
    assert done.findings == ()
