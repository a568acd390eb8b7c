"""A function of another file in which all replicas meet, called by some of them only."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file

UTIL = """
import torch
import torch.distributed as dist


def shared(path):
    data = [torch.load(path) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(data)
    return data[0]


def plain(path):
    return torch.load(path)
"""
TRAIN = """
import torch.distributed as dist

from util import plain, shared


def resume(model, path, rank):
    if rank == 0:
        model.load_state_dict(shared(path))
    state = shared(path)
    if rank == 0:
        model.load_state_dict(plain(path))
    else:
        state = None
    return state
"""


def test_a_collective_in_another_file_is_reported_at_the_call(tmp_path: Path) -> None:
    (tmp_path / "util.py").write_text(UTIL)
    train = tmp_path / "train.py"
    train.write_text(TRAIN)
    found = [one for one in check_file(train, Config()) if one.code == "XLA302"]
    assert [one.line for one in found] == [9]
    assert "shared (util.py:6) makes a collective" in found[0].message


TASK = """
import torch
import torch.distributed as dist


class Task(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.compiled = None

    def forward(self, batch):
        if not self.training:
            run = self.compiled or self.only_forward
        else:
            run = self.compiled or self.with_loss
        return run(batch)

    def only_forward(self, batch):
        return self.inner(batch)

    def with_loss(self, batch):
        out = self.inner(batch)
        dist.all_reduce(out)
        return out.sum()

    def again(self, batch):
        if self.training:
            return self.with_loss(batch)
        return self.only_forward(batch)

    def joined(self, batch):
        out = self.inner(batch)
        if self.training and dist.is_initialized():
            dist.all_reduce(out)
        if not self.training or not dist.is_initialized():
            return out
        else:
            dist.all_reduce(out)
        return out
"""
EVALUATE = """
import torch

from task import Task


def evaluate(batches, rank):
    task = Task(torch.nn.Linear(2, 2))
    if rank != 0:
        return
    task.eval()
    for batch in batches:
        task(batch)
        task.again(batch)
        task.joined(batch)
        task.with_loss(batch)
"""


def test_a_collective_of_training_is_none_of_the_evaluation(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text(TASK)
    evaluate = tmp_path / "evaluate.py"
    evaluate.write_text(EVALUATE)
    found = [one.line for one in check_file(evaluate, Config()) if one.code == "XLA302"]
    assert found == [16]


LOADERS = """
import contextlib

import torch.distributed as dist
import torch_xla.core.xla_model as xm


@contextlib.contextmanager
def first_alone(rank):
    if rank not in [-1, 0]:
        xm.rendezvous("first_alone")
    yield
    if rank == 0:
        xm.rendezvous("first_alone")


def loader(path, rank=-1):
    with first_alone(rank):
        return open(path).read()


def gathered(rows):
    if dist.is_initialized():
        dist.all_gather_object([None, None], rows)
"""
VALIDATE = """
import torch
from loaders import gathered, loader


def validate(path, rank):
    if rank == 0:
        rows = loader(path, rank=-1)
        gathered(rows)
"""


def test_a_rank_that_is_nobody_s_waits_for_nobody(tmp_path: Path) -> None:
    """YOLO's loaders: `rank=-1` says that this replica is alone."""
    (tmp_path / "loaders.py").write_text(LOADERS)
    validate = tmp_path / "validate.py"
    validate.write_text(VALIDATE)
    found = [one.line for one in check_file(validate, Config()) if one.code == "XLA302"]
    assert found == [9]


MODEL = """
import torch
import torch.distributed as dist


class Scale(torch.nn.Module):
    def forward(self, x):
        dist.all_reduce(x)
        return x
"""
TRAINER = """
import torch.distributed as dist
from model import Scale


class Trainer:
    def __init__(self, net):
        self.models = self.make(net)
        self.models = {"model": net, **{k: v for k, v in self.models.items() if k != "model"}}

    def make(self, net):
        return {"scale": Scale().cuda(), "model": net}

    def evaluate(self, model, loader, *, first, **more):
        if dist.get_rank() == 0:
            found = loader(model)
            again = first(model)
        return more

    def run(self, loader):
        models = self.models
        self.evaluate(loader=loader, first=loader, **models)
"""


def test_a_mapping_fills_no_parameter_that_is_given_by_name(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    train = tmp_path / "train.py"
    train.write_text(TRAINER)
    assert not [one for one in check_file(train, Config()) if one.code == "XLA302"]


SHARES = """
import torch.distributed as dist
import torch_xla.core.xla_model as xm
from mpi4py import MPI


def by_mpi(path):
    if MPI.COMM_WORLD.Get_rank() == 0:
        data = open(path, "rb").read()
        MPI.COMM_WORLD.bcast(data)
    else:
        data = MPI.COMM_WORLD.bcast(None)
    return data


def by_xla(path):
    if dist.get_rank() == 0:
        data = open(path, "rb").read()
        xm.mesh_reduce("share", data, lambda values: values[0])
    else:
        data = xm.mesh_reduce("share", None, lambda values: values[0])
    return data


def some(path):
    if path is not None:
        xm.rendezvous("some")
"""
SHARED = """
import torch.distributed as dist
from shares import by_mpi, by_xla, some


def load(path, rank):
    everywhere = by_mpi(path), by_xla(path)
    if rank == 0:
        first = by_mpi(path)
    if dist.get_rank() == 0:
        second = by_xla(path)
        some(path)
    if rank == 0:
        both = by_xla(path)
    else:
        both = by_xla(path)
    return everywhere
"""


def test_a_root_that_sends_and_others_that_receive_meet(tmp_path: Path) -> None:
    """guided-diffusion's `load_state_dict`, which MDT calls on the first replica alone."""
    (tmp_path / "shares.py").write_text(SHARES)
    train = tmp_path / "train.py"
    train.write_text(SHARED)
    found = [one for one in check_file(train, Config()) if one.code == "XLA302"]
    assert [one.line for one in found] == [9, 11]


ONE_FILE = """
import torch.distributed as dist
from mpi4py import MPI


def share(path):
    if dist.get_rank() == 0:
        data = MPI.COMM_WORLD.bcast(open(path).read())
    else:
        data = MPI.COMM_WORLD.bcast(None)
    return data


def load(path):
    CALL
"""


def test_the_same_in_one_file(tmp_path: Path) -> None:
    for call, lines in (("if dist.get_rank() == 0: share(path)", [8, 10]), ("share(path)", [])):
        train = tmp_path / "train.py"
        train.write_text(ONE_FILE.replace("CALL", call))
        found = [one.line for one in check_file(train, Config()) if one.code == "XLA302"]
        assert found == lines


SHOWN = """
import torch
import torch.distributed as dist


def show(video, everywhere=False):
    video = video.cpu()
    if dist.is_initialized() and everywhere:
        videos = [torch.empty_like(video) for _ in range(dist.get_world_size())]
        dist.all_gather(videos, video)
        video = torch.cat(videos)
    return video


def show_first(video):
    return show(video[:1], everywhere=False)
"""


@pytest.mark.parametrize(
    ("call", "is_reported"),
    [
        ("show(video)", False),
        ("show(video, False)", False),
        ("show_first(video)", False),
        ("show(video, True)", True),
        ("show(video, everywhere=wide)", True),
    ],
)
def test_an_argument_may_switch_the_collective_off(
    tmp_path: Path, call: str, is_reported: bool
) -> None:
    (tmp_path / "shown.py").write_text(SHOWN)
    train = tmp_path / "train.py"
    train.write_text(
        "import torch.distributed as dist\n\nfrom shown import show, show_first\n\n\n"
        f"def log(video, wide):\n    if dist.get_rank() == 0:\n        print({call})\n"
    )
    findings = check_file(train, Config())
    assert ("XLA302" in {finding.code for finding in findings}) is is_reported


COUNTED = """
import torch
import torch.distributed as dist


class Rows:
    def __init__(self):
        self.world = dist.get_world_size()

    def collect(self, x, world=None):
        if world is None:
            world = self.world
        self.add(x, world=world)

    def add(self, x, world=1):
        if world > 1:
            parts = [torch.empty_like(x) for _ in range(world)]
            dist.all_gather(parts, x)

    def alone(self, x):
        self.collect(x, CALL)

    def together(self, x):
        self.collect(x)


def log(rows: Rows, x):
    rows.together(x)
    if dist.get_rank() == 0:
        rows.alone(x)
"""


@pytest.mark.parametrize("name", ["world", "many"])
@pytest.mark.parametrize(
    ("argument", "is_reported"),
    [
        ("1", False),
        ("world=1", False),
        ("world=2", True),
        ("world=None", True),
        ("x.size(0)", True),
    ],
)
def test_an_argument_that_is_handed_on_may_switch_the_collective_off(
    tmp_path: Path, argument: str, is_reported: bool, name: str
) -> None:
    train = tmp_path / "train.py"
    text = COUNTED.replace("CALL", argument).replace("world", name)
    train.write_text(text.replace(f"get_{name}_size", "get_world_size"))
    codes = {finding.code for finding in check_file(train, Config())}
    assert ("XLA302" in codes) is is_reported


HOLDER = """
import torch
from torch.nn.parallel import DistributedDataParallel


class Holder:
    def __init__(self, net):
        self.net = DistributedDataParallel(net)

    @torch.no_grad()
    def listen(self, x):
        return self.net(x)

    def tell(self, x):
        return self.listen(x).sum()

    def quiet(self, x):
        return self.net.module(x)
"""
LISTENS = """
import torch.distributed as dist
from holder import Holder


def show(net, x):
    holder = Holder(net)
    holder.listen(x)
    if dist.get_rank() == 0:
        holder.CALL(x)
"""


@pytest.mark.parametrize(("call", "count"), [("listen", 1), ("tell", 1), ("quiet", 0)])
def test_a_wrapped_model_that_a_method_of_another_file_runs(
    tmp_path: Path, call: str, count: int
) -> None:
    (tmp_path / "holder.py").write_text(HOLDER)
    train = tmp_path / "train.py"
    train.write_text(LISTENS.replace("CALL", call))
    found = [one for one in check_file(train, Config()) if one.code == "XLA304"]
    assert [one.line for one in found] == [10] * count
    assert all("(holder.py:12)" in one.message for one in found)
