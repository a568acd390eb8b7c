"""What one replica computes and gives to a logger: all compute and read it, one logs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import libcst as cst
import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.rewrite.plan import plan
from migrate.rewrite.rule import Edit
from migrate.rewrite.rules.ranks.together import Together
from migrate.rewrite.rules.step.uneven_sync import UnevenSync
from migrate.rewrite.workspace import Workspace
from migrate.syntax.source import parse

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


VALIDATED = b"""\
import os

import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

ddp = "RANK" in os.environ
if ddp:
    torch.distributed.init_process_group("nccl")
    rank = int(os.environ["RANK"])
    master = rank == 0
else:
    rank, master = 0, True
model = torch.nn.Linear(4, 4).cuda()
raw = model
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(raw.parameters(), lr=0.1)


@torch.no_grad()
def validate():
    losses = []
    for _ in range(3):
        x = torch.randn(2, 4).cuda()
        losses.append(F.mse_loss(raw(x), x).item())
    return sum(losses) / 3


@torch.no_grad()
def sample():
    return raw(torch.zeros(1, 4).cuda()).argmax(1).tolist()


for step in range(10):
    if step % 5 == 0 and master:
        val = validate()
        print(f"{val:.4f}")
        print(sample())
    x = torch.randn(2, 4).cuda()
    loss = F.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_all_run_a_function_that_computes_and_reads() -> None:
    """Before the first step it ended the broadcast of the weights on one replica only; nothing was said."""
    done = rewrite_source(parse(VALIDATED, Path("train.py")))
    text = done.data.decode()
    assert (
        """\
    if step % 5 == 0:
        with shims.together(tells=master):
            val = validate()
            if master:
                print(f"{val:.4f}")
            sample_read = sample()
            if master:
                print(sample_read)
"""
        in text
    )
    assert done.findings == ()


def test_a_save_beside_an_evaluation_stays_with_the_first_replica() -> None:
    script = VALIDATED.replace(
        b"        print(sample())\n",
        b"        best = max(best, val)\n"
        b"        torch.save({'w': raw.state_dict(), 'b': best}, open_at(step))\n",
    ).replace(b"for step in range(10)", b"best = 0.0\nfor step in range(10)")
    done = rewrite_source(parse(script, Path("train.py")))
    text = done.data.decode()
    assert (
        "with shims.together(tells=master):\n            val = validate()\n            if master:"
        in text
    )
    assert (
        "                xm.save({'w': raw.state_dict(), 'b': best}, open_at(step), master_only="
        in text
    )
    assert "    torch_xla.sync()\n    if step % 5 == 0:\n" in text
    assert done.findings == ()
    again = rewrite_source(parse(done.data, Path("train_xla.py")))
    assert again.data == done.data


def test_what_all_compute_after_the_step_is_read_by_all() -> None:
    """An accuracy in the text that one replica prints: it was told only, and twice."""
    script = SCRIPT.split(b"        if rank == 0")[0] + (
        b"        acc = (out.argmax(1) == y).float().mean()\n"
        b"        rms = loss.sqrt()\n"
        b"        if rank == 0 and step % 10 == 0:\n"
        b"            print(f'acc {acc:.3f}')\n"
        b"            print('rms', rms.cpu().numpy())\n"
        b"        if rank == 0:\n"
        b"            for name, p in model.named_parameters():\n"
        b"                writer.add_histogram(name, p.data.cpu().numpy(), step)\n"
    )
    done = rewrite_source(parse(script, Path("train.py")))
    text = done.data.decode()
    assert text[text.index("        if step % 10 == 0:") :] == (
        """\
        if step % 10 == 0:
            with shims.together(tells=rank == 0):
                acc_read = acc.cpu()
                if rank == 0:
                    print(f'acc {acc_read:.3f}')
                rms_read = rms.cpu().numpy()
                if rank == 0:
                    print('rms', rms_read)
        if rank == 0:
            for name, p in model.named_parameters():
                writer.add_histogram(name, p.data.cpu().numpy(), step)
"""
    )
    assert [(note.line, note.rule) for note in done.findings] == [(22, "XLA203")]


EVALUATED = b"""\
import torch
import torch.distributed as dist


def accuracy(out, y):
    return (out.argmax(1) == y).float().mean()


def train(model, loader, held_out, optimizer, meter):
    model = torch.nn.parallel.DistributedDataParallel(model.cuda())
    for epoch in range(3):
        for x, y in loader:
            loss = model(x.cuda(), y.cuda())
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            meter.reset()
            with torch.no_grad():
                for x, y in held_out:
                    x, y = x.cuda(), y.cuda()
                    out = model(x)
                    good = accuracy(out, y)
                    meter.update(good.item(), len(x))
            print(meter)
"""


def test_a_number_that_takes_the_name_of_its_tensor_is_read_by_all() -> None:
    branch = b"""\
        acc = (out.argmax(1) == y).float().mean()
        if rank == 0:
            acc = acc.item()
            print(acc)
"""
    start = SCRIPT.index(b"        if rank == 0")
    done = rewrite_source(parse(SCRIPT[:start] + branch, Path("train.py")))
    assert """
        with shims.together(tells=rank == 0):
            acc = acc.item()
            if rank == 0:
                print(acc)
""" in done.data.decode()


def test_all_run_the_steps_of_an_evaluation_in_place() -> None:
    """Barlow Twins: the first replica's evaluation had steps of its own, and nothing was said."""
    done = rewrite_source(parse(EVALUATED, Path("train.py")))
    text = done.data.decode()
    block = text[text.index("        with shims.together(") :]
    assert "with torch_xla.step():" in block
    assert (
        "if dist.get_rank() == 0:\n                        meter.update(good.item(), len(x))"
        in block
    )
    assert done.findings == ()


ENGINE = """\
import torch
from torch.nn import functional as F


def train_one_epoch(model, opt, loader, device):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()


@torch.no_grad()
def evaluate(model, loader, device):
    total = 0.0
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        total += F.cross_entropy(model(x), y).item()
    return total
"""
MAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from engine import evaluate, train_one_epoch


def work(rank, loader, opt, model):
    device = torch.device("cuda", rank)
    model = DDP(model.to(device), device_ids=[rank])
    for epoch in range(2):
        train_one_epoch(model, opt, loader, device)
        if rank == 0:
            loss = evaluate(model.module, loader, device)
            print(epoch, loss)
"""


def test_all_run_an_evaluation_of_another_file(tmp_path: Path) -> None:
    """The loop that trains is in the other file, too: neither a word nor an edit."""
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "train.py").write_text(MAIN)
    done = rewrite_folder(tmp_path, processes=1)
    file = next(one for one in done.files if one.name == Path("train.py"))
    assert """\
        with shims.together(tells=rank == 0):
            loss = evaluate(model.module, loader, device)
            if rank == 0:
                print(epoch, loss)
""" in file.after.decode()


RETURNED = """\
import torch
import torch.distributed as dist
import torch.nn as nn
from library import show


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x):
        y = self.lin(x)
        return y.mean() if self.training else [{"image": y}]


def summary(model, x):
    return model(x)


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    model, ema = Net().cuda(), Net().cuda().eval()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        x = torch.randn(4, 8).cuda()
        loss = model(x)
        loss.backward()
        opt.step()
        if rank == 0 and step == 0:
            made = ema(x)
            one = ema(x)
            print(x.mean().item())
            SHOW


main()
"""


@pytest.mark.parametrize(
    ("shown", "read"),
    [
        ("show(made, step)", "made_read = shims.on_host(made)"),
        ("show(step, logs=made)", "made_read = shims.on_host(made)"),
        ("show(made[0])", "made_read = shims.on_host(made[0])"),
        ("show(ema(x), step)", "ema_read = shims.on_host(ema(x))"),
        ("show(summary(ema, x))", "summary_read = shims.on_host(summary(ema, x))"),
        ("show([made])", "made_read = shims.on_host(made)"),
        ("show(torch.max(made, 1))", "max_read = shims.on_host(torch.max(made, 1))"),
        ("show(one, one.detach().mean())", "one_read = one.cpu()"),
        ("show(one[0], torch.relu(one))", "one_read = one[0].cpu()"),
    ],
)
def test_what_may_be_a_list_of_tensors_is_copied_as_one(shown: str, read: str) -> None:
    """A model returns a list of dicts: `.cpu()` of it raised on all ranks."""
    done = rewrite_source(parse(RETURNED.replace("SHOW", shown).encode(), Path("train.py")))
    text = done.data.decode()
    assert "with shims.together(tells=rank == 0):" in text
    assert read in text
    assert rewrite_source(parse(done.data, Path("train_xla.py"))).data == done.data


def test_the_message_quotes_one_line_of_a_block() -> None:
    block = b"""\
            try:
                # how far off
                error = F.l1_loss(out, y)
                writer.add_scalar("error", error, step)
            except ValueError:
                pass
"""
    start = SCRIPT.index(b"            error =")
    done = rewrite_source(parse(SCRIPT[:start] + block, Path("train.py")))
    (note,) = [note for note in done.findings if "not rewritten" in note.message]
    assert note.message.endswith("; not rewritten: `try:` cannot be followed")


def test_a_sync_around_a_branch_yields_to_all_replicas_running_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both edits of one test were withdrawn, with a finding for each line of the branch."""

    def find(self: UnevenSync, node: cst.CSTNode, context: Workspace) -> Iterator[Edit]:
        yield self.edit(
            context.all_of(cst.If)[0], lambda updated: updated, "torch_xla.sync() above"
        )

    monkeypatch.setattr(UnevenSync, "find", find)
    made = plan(Workspace(parse(SCRIPT, Path("train.py"))), [UnevenSync(), Together()], rest=False)
    assert {edit.rule for edit in made.edits} == {"together"}


TAKEN = """
    import torch
    import torch.nn.functional as F


    def estimate(model, batches):
        with torch.no_grad():
            source = batches
            TAKES
            return F.cross_entropy(model(x.cuda()), y.cuda()).item()


    def train(model, loader, optimizer, rank):
        batches = MADE
        for step in range(1000):
            x, y = next(iter(loader))
            loss = F.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                error = estimate(model, batches)
                print(step, error)
"""
HERE = """
    def train(model, loader, optimizer, rank):
        batches = MADE
        for step in range(1000):
            x, y = next(iter(loader))
            loss = F.cross_entropy(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if rank == 0:
                for a, b in TAKES:
                    error = F.cross_entropy(model(a.cuda()), b.cuda()).item()
                    print(step, error)
                    break
"""
LOOP = "for x, y in {}: break"


@pytest.mark.parametrize(
    ("takes", "made", "moves"),
    [
        ("x, y = next(source)", "iter(loader)", False),
        (LOOP.format("batches"), "iter(loader)", False),
        (LOOP.format("source"), "enumerate(loader)", False),
        (LOOP.format("zip(batches, range(2))"), "itertools.cycle(loader)", False),
        ("x, y = list(source)[0]", "iter(loader)", False),
        (LOOP.format("source"), "loader", True),
        ("x, y = next(iter(source))", "loader", True),
    ],
)
def test_a_function_that_takes_from_an_iterator_of_its_caller_stays_with_one_replica(
    takes: str, made: str, moves: bool
) -> None:
    text = textwrap.dedent(TAKEN).replace("TAKES", takes).replace("MADE", made)
    done = rewrite_source(parse(f"import itertools\n{text}".encode(), Path("train.py")))
    assert any(note.rule == "together" for note in done.edits) is moves
    assert any("does more than compute" in note.message for note in done.findings) is not moves


@pytest.mark.parametrize(
    ("takes", "made", "moves"),
    [
        ("batches", "iter(loader)", False),
        ("list(batches)", "iter(loader)", False),
        ("batches", "loader", True),
        ("list(batches)", "loader", True),
    ],
)
def test_a_block_that_runs_through_an_iterator_stays_with_one_replica(
    takes: str, made: str, moves: bool
) -> None:
    head = textwrap.dedent(TAKEN).partition("def estimate")[0]
    text = head + textwrap.dedent(HERE).replace("TAKES", takes).replace("MADE", made)
    done = rewrite_source(parse(text.encode(), Path("train.py")))
    assert any(note.rule == "together" for note in done.edits) is moves
    taken = any("takes from the iterator" in note.message for note in done.findings)
    assert taken is not moves
