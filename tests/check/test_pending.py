"""Which reads in some replicas only wait for a collective that has not run (XLA308)."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.hazard import Severity
from migrate.rewrite.pipeline import rewrite, rewrite_source
from migrate.syntax.source import parse

HEAD = """\
import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl


def reduced(x):
    dist.all_reduce(x)
    return x / dist.get_world_size()


def finished(x):
    dist.all_reduce(x)
    xm.rendezvous("finished")


def show(x, rank):
    if rank == 0:
        print(x.item())


def part(x, rank, world_size):
    return x[rank::world_size]


def run(x, y, losses, loader, rank, best, epoch):
"""


def lines(body: str) -> list[str]:
    """Return the lines of `body`, below `HEAD`, that are reported."""
    text = HEAD + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    found = check_source(parse(text.encode(), Path("script.py")), Config(select=("XLA308",)))
    return [text.splitlines()[one.line - 1].strip() for one in found]


@pytest.mark.parametrize(
    "read",
    [
        "if rank == 0: print(x)",
        "if rank == 0 and x > best: best = x",
        "best = x.item() if rank == 0 else best",
        'if rank == 0: print("%.3f" % x.mean())',
        "if rank == 0: best = float(x[0])",
        'if rank == 0: best = x.detach().to("cpu")',
        "if rank == 0: torch.save([x], 'x.pt')",
        "show(x, rank)",
        "show(rank=rank, x=x)",
    ],
)
def test_a_read(read: str) -> None:
    assert lines(f"dist.all_reduce(x)\n{read}") == [read]


@pytest.mark.parametrize(
    "made",
    [
        "x = reduced(y)",
        "x = 2 * xm.all_reduce('sum', y).mean()",
        "xm.all_reduce('sum', [x, y])",
        "dist.all_gather(losses, y)\nx = torch.stack(losses)",
        "for loss in (x, y):\n    dist.all_reduce(loss)",
        "[dist.all_reduce(loss) for loss in [x]]",
        "with torch.no_grad():\n    dist.all_reduce(x.data, async_op=True)",
        "if epoch:\n    dist.broadcast(x, src=0)",
        "losses.append(reduced(y))\nx = sum(losses)",
        # The read runs another graph: `x` itself waits on.
        "dist.all_reduce(x)\nx.sum().item()",
        "dist.all_reduce(y)\nx = y / 2\ny.tolist()",
        "dist.all_reduce(x)\nif rank == 0:\n    torch_xla.sync()",
        "dist.all_reduce(x)\nif epoch:\n    torch_xla.sync()",
    ],
)
def test_a_value_that_waits(made: str) -> None:
    assert lines(f"{made}\nif rank == 0:\n    print(x.item())") == ["print(x.item())"]


@pytest.mark.parametrize(
    "made",
    [
        "dist.all_reduce(x)\ntorch_xla.sync()",
        "dist.all_reduce(x)\nxm.save({}, 'path')",
        "dist.all_reduce(x)\nx.item()",
        "dist.all_reduce(x)\nx = x.item()",
        "dist.all_reduce(x)\nx = torch.ones(2)",
        "dist.all_reduce(y)",
        "dist.reduce(x, dst=0)",
        "dist.barrier()",
        "x = xm.mesh_reduce('x', x, sum)",
        "dist.all_reduce(x, group=dist.new_group(backend='gloo'))",
        "dist.all_reduce(x)\nfinished(y)",
        "with torch_xla.step():\n    dist.all_reduce(x)",
        "dist.all_reduce(x)\nfor y in pl.MpDeviceLoader(loader, 'xla'):\n    pass",
    ],
)
def test_a_value_that_is_there(made: str) -> None:
    assert lines(f"{made}\nif rank == 0:\n    print(x.item())") == []


@pytest.mark.parametrize(
    "read",
    [
        "print(x.item())",
        "if rank == 0: print(x.shape, len(x), x is None, x.numel())",
        "if rank == 0: print(best)",
        "if epoch == 0: print(x)",
        "if rank == 0: print(dict(x=3))",
        "dist.all_reduce(losses.latest())\nif rank == 0: print(losses)",
    ],
)
def test_no_read_of_some_replicas(read: str) -> None:
    assert lines(f"dist.all_reduce(x)\n{read}") == []


@pytest.mark.parametrize(
    "read",
    [
        "y = x[rank * 2 : rank * 2 + 2]",
        "y = x[rank::world_size]",
        "y = x.chunk(world_size)[rank]",
        "y = x.tensor_split(world_size, dim=0)[rank]",
        "y = x.narrow(0, rank * 2, 2)",
        "y = torch.narrow(x, 0, rank * 2, 2)",
        "y = x.sum() * (rank + 1)",
        "y = part(x, rank, world_size)",
        "if epoch: y = x[dist.get_rank()]",
    ],
)
def test_each_replica_takes_its_own_part(read: str) -> None:
    """The collective would run in a graph that differs between the replicas."""
    made = "world_size = dist.get_world_size()\ndist.broadcast(x, src=0)\n"
    assert lines(made + read) == [read]


@pytest.mark.parametrize(
    "read",
    [
        "torch_xla.sync()\ny = x[rank::world_size]",
        "x = x.cpu()\ny = x[rank::world_size]",
        "x = x.tolist()\ny = x[rank::world_size]",
        "y = losses[rank::world_size]",
        "y = x[epoch * 2 : epoch * 2 + 2]",
        "y = x.to(rank)",
        "y = torch.linalg.svd(x)[0][:, :epoch]",
        "best.keep(x, rank)",
    ],
)
def test_all_replicas_take_the_same(read: str) -> None:
    made = "world_size = dist.get_world_size()\ndist.broadcast(x, src=0)\n"
    assert lines(made + read) == []


@pytest.mark.parametrize(
    ("made", "reported"),
    [
        ("MeanMetric().cuda()", True),
        ('torchmetrics.Accuracy(task="binary").to("xla")', True),
        ("MeanMetric(sync_on_compute=False)", False),
        ("Mean()", False),
    ],
)
def test_metrics_of_torchmetrics_gather_when_they_compute(made: str, reported: bool) -> None:
    text = f"""\
import torch.distributed as dist
import torchmetrics
from torchmetrics import MeanMetric
from stats import Mean


def run(losses, rank):
    dist.init_process_group("xla")
    metric = {made}
    for loss in losses:
        metric.update(loss)
    mean = metric.compute()
    if rank == 0:
        print(mean.item())
"""
    found = check_source(parse(text.encode(), Path("a.py")), Config(select=("XLA308",)))
    assert [one.line for one in found] == [14] * reported


def test_a_parametrization_takes_its_part_of_the_weight() -> None:
    text = """\
import torch


class Sharded(torch.nn.Module):
    def __init__(self, group):
        super().__init__()
        self.rank, self.world_size = group.rank(), group.size()

    def forward(self, x):
        return x

    def right_inverse(self, weight):
        return weight.tensor_split(self.world_size)[self.rank]


class Table:
    def right_inverse(self, rows, rank, world_size):
        return rows[rank::world_size]
"""
    found = check_source(parse(text.encode(), Path("a.py")), Config(select=("XLA307",)))
    assert [one.line for one in found] == [13]


def test_a_turn_of_the_loop_reads_what_the_one_before_left() -> None:
    body = """
        for y in loader:
            if rank == 0:
                print(x.item())
            dist.all_reduce(x)
    """
    assert lines(body) == ["print(x.item())"]


def test_a_script_for_cuda_whose_barrier_becomes_a_rendezvous() -> None:
    text = """\
import torch.distributed as dist


def run(x, rank):
    dist.all_reduce(x.cuda())
    dist.barrier()
    if rank == 0:
        print(x.item())
"""
    assert check_source(parse(text.encode(), Path("a.py")), Config(select=("XLA308",))) == ()


def test_one_line_below_the_loop_of_the_collectives() -> None:
    text = """\
import torch.distributed as dist
import torch_xla


def run(losses, x, rank):
    dist.all_reduce(x)
    scale = 3
    for loss in losses:
        dist.all_reduce(loss)
    if rank == 0:
        print(x.item(), losses[0].item())
    return scale
"""
    done = rewrite_source(parse(text.encode(), Path("a.py"))).data.decode()
    assert done == text.replace("    if rank", "    torch_xla.sync()\n    if rank")


def test_a_function_of_another_file_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "meters.py").write_text(
        "import torch.distributed as dist\n\n\ndef reduced(x):\n    dist.all_reduce(x)\n    return x\n"
    )
    script = tmp_path / "script.py"
    script.write_text(
        "from meters import reduced\n\n\ndef run(x, rank):\n    x = reduced(x.cuda())\n"
        "    if rank == 0:\n        print(x.item())\n"
    )
    found = check_source(parse(script.read_bytes(), script), Config(select=("XLA308",)))
    assert [(one.line, one.severity) for one in found] == [(7, Severity.WARNING)]
    assert "XLA308" in {note.rule for note in rewrite(script).findings}


def test_what_is_run_in_the_function_that_makes_it_is_there_for_its_caller() -> None:
    text = """\
import torch.distributed as dist
import torch_xla


def evaluate(x, rank):
    dist.all_reduce(x)
    if rank == 0:
        print(x.item())
    return x


def run(x, rank, best):
    x = evaluate(x, rank)
    if rank == 0 and x > best:
        print("best")
"""
    done = rewrite_source(parse(text.encode(), Path("a.py"))).data.decode()
    assert done == text.replace("e(x)\n", "e(x)\n    torch_xla.sync()\n")


LOGS = """
import torch.distributed as dist


def log_image(sample, rank):
    if dist.get_rank() == 0:
        print(sample.cpu())


def log_first(sample, rank):
    if rank != 0:
        return
    print(sample.mean())


def log_all(sample, rank):
    value = sample.item()
    if rank == 0:
        print(value, sample.shape)


def grid(sample):
    return sample.cpu().numpy()


def log_grid(sample, rank):
    if rank == 0:
        sample = grid(sample)
        print(sample)


def is_here():
    return not dist.is_initialized() or dist.get_rank() == 0


class Log:
    def __init__(self):
        self.writes = is_here()

    def rest(self, *values):
        if not self.writes:
            return
        print([value.item() for value in values])

    def later(self, sample, rank):
        mean = sample.mean()
        if self.writes:
            print(mean)

    def described(self, sample, rank):
        if self.writes:
            print(sample.shape)
"""
TRAIN = """
def run(model, rank, x):
    samples = model(x)
    dist.all_reduce(samples)
    {call}(samples, rank)
    grid(x)
"""


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("name", "waits"),
    [
        ("log_image", True),
        ("log_first", True),
        ("log_grid", True),
        ("log_all", False),
        ("Log().rest", True),
        ("Log().later", True),
        ("Log().described", False),
    ],
)
def test_a_function_reads_its_argument_in_some_replicas(
    tmp_path: Path, name: str, waits: bool, apart: bool
) -> None:
    script = tmp_path / "train.py"
    train = TRAIN.format(call=name)
    if apart:
        (tmp_path / "logs.py").write_text(LOGS)
        script.write_text(
            f"import torch.distributed as dist\nfrom logs import {name.partition('(')[0]}, grid\n{train}"
        )
    else:
        script.write_text(f"{LOGS}\n{train}")
    text = rewrite(script).data.decode()
    assert (f"torch_xla.sync()\n    {name}(" in text) is waits
    assert text.count("torch_xla.sync()") == int(waits)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("parameters", "passed", "waits"),
    [
        ("step, **kv", "3, loss=x", True),
        ("step, *, loss=0.0, **kv", "3, loss=x", False),
        ("step, *, kv", "3, kv={'loss': x}", True),
        ("step, **kv", "3, **{'loss': x}", True),
        ("kv", "{'loss': x}", True),
    ],
)
def test_what_a_mapping_of_arguments_holds(
    tmp_path: Path, parameters: str, passed: str, waits: bool, apart: bool
) -> None:
    log = (
        f"import torch\n\n\ndef log(rank, {parameters}):\n    if rank != 0:\n        return\n"
        "    print({k: v.item() if torch.is_tensor(v) else v for k, v in kv.items()})\n"
    )
    run = f"\n\ndef run(x, rank):\n    dist.all_reduce(x)\n    log(rank, {passed})\n"
    script = tmp_path / "script.py"
    if apart:
        (tmp_path / "logs.py").write_text(log)
        log = "from logs import log"
    # What the rewrite imports of shims for other purposes changes nothing.
    names = "import torch.distributed as dist\nimport torch_xla\nimport shims\n"
    script.write_text(f"{names}{log}{run}")
    found = check_source(parse(script.read_bytes(), script), Config(select=("XLA308",)))
    assert len(found) == int(waits)


def test_a_function_reads_an_attribute_that_another_leaves_pending() -> None:
    source = """
import torch
import torch.distributed as dist


def sync_meter(m):
    t = torch.tensor(m.values, device="cuda")
    dist.all_reduce(t)
    m.count = int(t[0].cpu().item())
    m.values = list(t[1:])


def dump(m):
    if dist.get_rank() != 0:
        return
    print(torch.tensor(m.values).median())


def count(m):
    if dist.get_rank() == 0:
        print(m.count)


def run(meter):
    sync_meter(meter)
    {call}(meter)
"""

    def rewritten(call: str) -> str:
        source_of = parse(source.replace("{call}", call).encode(), Path("script.py"))
        return rewrite_source(source_of).data.decode()

    assert "sync_meter(meter)\n    torch_xla.sync()\n    dump(meter)" in rewritten("dump")
    assert "torch_xla.sync()" not in rewritten("count")
