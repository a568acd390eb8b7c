"""Operations on the device that some replicas alone have in one graph with a collective."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

HELPERS = """
import torch
import torch.distributed as dist


def leads():
    return dist.get_rank() == 0


def place():
    return dist.get_rank() if dist.is_initialized() else 0


def spread(x):
    dist.broadcast(x, src=0)


def mean(x):
    dist.all_reduce(x)
    return x.item()


def follow(average, net, decay):
    for a, p in zip(average, net.parameters()):
        a.mul_(decay).add_(p.data, alpha=1 - decay)


class Base:
    def __init__(self):
        self.where = place()
        if dist.is_initialized():
            self.boss = self.where == 0
        else:
            self.boss = True
"""
SCRIPT = """
import torch
import torch.distributed as dist
from helpers import Base, follow, leads, mean, place, spread
from torch.nn.parallel import DistributedDataParallel as DDP


class Draws(Base):
    def __init__(self, args):
        super().__init__()
        self.args = args
        self.worker = dist.get_rank()
        self.seen = torch.zeros(3).cuda()

    @property
    def chief(self):
        return self.worker == 0

    def is_chief(self):
        return self.worker == 0

    def share(self, n, steps, net, group, path):
        rank, world = dist.get_rank(), dist.get_world_size()
        size = torch.zeros(1, dtype=torch.long, device="cuda")
        {guard}:
            {inside}
        {other}
        {between}
        {collective}
        return size
"""
RIGHT = {
    "guard": "if rank == 0",
    "inside": "size[0] = n",
    "other": "pass",
    "between": "pass",
    "collective": "dist.broadcast(size, src=0)",
}
HOST_GROUP = 'dist.broadcast(size, src=0, group=dist.new_group(backend="gloo"))'
DRAWN = 'size = torch.randint(0, steps, (n,), device="cuda")'
EMPTY = 'else: size = torch.empty(n, dtype=torch.long, device="cuda")'
WRONG = [
    {},
    {"guard": "if not rank"},
    {"guard": "if dist.get_rank() == 0"},
    {"guard": "if rank == 0 and n > 3"},
    {"guard": "if self.worker == 0"},
    {"guard": "if self.chief"},
    {"guard": "if self.is_chief()"},
    {"guard": "if self.boss"},
    {"guard": "if self.where == 0"},
    {"guard": "if leads()"},
    {"guard": "if place() == 0"},
    {"guard": "if self.args.rank == 0"},
    {"guard": "if bool(rank == 0)"},
    {"guard": "while rank == 0 and n"},
    {"inside": "size += n"},
    {"inside": "size.fill_(n)"},
    {"inside": "size.data.add_(n)"},
    {"inside": "size.view(-1)[0] = n"},
    {"inside": "size = torch.full((1,), n, device='cuda')"},
    {"inside": "self.seen += 1"},
    {"inside": "self.seen[1:].zero_()"},
    {"inside": "self.drawn = torch.randn(3, device='cuda')"},
    {"inside": "torch.nn.init.ones_(size)"},
    {"inside": DRAWN, "other": EMPTY},
    {"inside": "size = torch.tensor([n]).cuda()"},
    {"inside": "with torch.no_grad(): size[0] = n"},
    {"guard": "if True", "inside": "size = size * 2 if rank == 0 else size"},
    {"collective": "dist.all_reduce(size)"},
    {"collective": "dist.reduce(size, 0)"},
    {"collective": "dist.all_gather([torch.empty_like(size)] * world, size)"},
    {"collective": "spread(size)"},
    {"collective": "net = DDP(net.cuda())"},
    {"between": "size = size + 1"},
    {"guard": "spread(size)\n        if rank == 0", "collective": "print(path)"},
    {"collective": "mean(size)"},
    {"between": "if path: torch.cuda.synchronize()"},
]
FLAG = {"guard": "if path", "inside": "n = 3"}
WRONG += [
    {"inside": "print(size)"},
    {"inside": "print(path, size.cpu().numpy())"},
    {**FLAG, "between": "size = torch.tensor(group > 3).cuda()"},
    {**FLAG, "between": "size = torch.tensor(1 if group > 3 else 0, device='cuda')"},
    {**FLAG, "between": "size = torch.tensor(float(group > 3 and not path), device='cuda')"},
    {**FLAG, "between": "size = torch.tensor(rank, device='cuda')"},
    {**FLAG, "inside": "steps = True", "between": "size = torch.tensor(group == steps).to('cuda')"},
]
FINE = [
    {**FLAG, "between": "size = torch.tensor([group > 3]).cuda()"},
    {**FLAG, "between": "size = torch.tensor(n, device='cuda')"},
    {**FLAG, "between": "size = torch.tensor(1.0, device='cuda')"},
    {**FLAG, "between": "done = torch.tensor(group > 3, device='cuda')"},
    {"guard": "if path is not None"},
    {"guard": "if world > 1"},
    {"between": "torch.cuda.synchronize()"},
    {"between": "dist.barrier()"},
    {"between": "if world > 1: dist.barrier()"},
    {"inside": "print(size.item())"},
    {"inside": "print((size * 2).sum().item())"},
    {"inside": "part = (size * 2).sum(); print(part.item())"},
    {"inside": "part = (size * 2).sum(); print(f'{part}')"},
    {"inside": "n = torch.zeros(3).sum()"},
    {"inside": "pass"},
    {"inside": "self.count = n"},
    {"inside": "self.kept = size"},
    {"inside": 'kept = {"net": net.state_dict()}; kept["size"] = size; torch.save(kept, path)'},
    {"inside": "rows = [size, size]; rows[0] = size; self.rows = rows"},
    {"guard": "if world > 1 and path", "inside": "size[0] = n"},
    {"collective": "print(path)"},
    {"guard": "mean(size)\n        if rank == 0", "collective": "print(path)"},
    {"collective": HOST_GROUP},
    {"inside": "size = size * 2", "other": "else: size = size * 2"},
    {
        "inside": "size = torch.tensor([n]).cuda()",
        "other": "else: size = torch.tensor([0]).cuda()",
        "guard": "if not rank",
    },
]


def written(folder: Path, changed: dict[str, str]) -> Path:
    (folder / "helpers.py").write_text(HELPERS.lstrip())
    path = folder / "draws.py"
    path.write_text(textwrap.dedent(SCRIPT.lstrip().format(**{**RIGHT, **changed})))
    return path


def reported(path: Path, code: str = "XLA314") -> list[int]:
    return [hit.line for hit in check_file(path, Config()) if hit.code == code]


@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_reported(changed: dict[str, str], tmp_path: Path) -> None:
    assert reported(written(tmp_path, changed))


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_parted_from_the_collective(changed: dict[str, str], style: Style, tmp_path: Path) -> None:
    path = written(tmp_path, changed)
    done = rewrite_source(parse(path.read_bytes(), path), options=RewriteOptions(style=style))
    sync = "torch_xla.sync()" if style == "native" else "shims.synchronize()"
    guard = changed.get("guard", RIGHT["guard"])
    test = guard.splitlines()[-1].strip().partition("dist.")[0]
    _, _, below = done.data.decode().partition("rank, world =")
    assert test in below
    assert sync in below
    path.write_bytes(done.data)
    assert reported(path) == []


@pytest.mark.parametrize("changed", FINE, ids=str)
def test_not_reported(changed: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, changed)
    assert reported(path) == []
    done = rewrite_source(parse(path.read_bytes(), path))
    assert [edit for edit in done.edits if edit.rule == "uneven-sync"] == []
    assert [note for note in done.findings if note.rule in ("XLA314", "uneven-sync")] == []


LOGGED = """
import torch
import torch.distributed as dist
import wandb


def show(stats, rank, step):
    if rank == 0:
        wandb.log({{"step": step, **stats}})


def watch(loader, rank):
    seen = torch.zeros(4, device="cuda")
    for step, x in enumerate(loader):
        x = x.cuda()
        dist.all_reduce(seen)
        stats = {{"mean": x.mean()}}
        {use}
"""


@pytest.mark.parametrize(
    ("use", "syncs"),
    [
        ("if rank == 0:\n            wandb.log({'step': step, **stats})", 1),
        ("show(stats, rank, step)", 1),
        ("show({'mean': stats['mean'].item()}, rank, step)", 0),
        ("if rank == 0:\n            print(stats['mean'].item())", 0),
        ("print(stats)\n        if rank == 0:\n            wandb.log(stats)", 0),
    ],
)
def test_what_the_first_replica_alone_logs_of_all(use: str, syncs: int) -> None:
    script = LOGGED.format(use="USE").replace("USE", use)
    done = rewrite_source(parse(script.encode(), Path("script.py")))
    assert done.data.decode().count("torch_xla.sync()") == syncs
    assert not [note for note in done.findings if note.rule == "uneven-sync"]
