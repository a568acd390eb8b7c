"""Models and batches that another function, or another file, moves to the device: no finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.rules.step.inputs import NOT_SHOWN

TRAIN = """\
import torch
import torch.distributed as dist

from builders import create
from engine import train


def main(args, loader):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model, average = create(args)
    model = torch.nn.parallel.DistributedDataParallel(model)
    train(model, loader, torch.optim.SGD(model.parameters(), lr=0.1))
"""
BUILDERS = """\
import torch


def create(args):
    model = torch.nn.Linear(4, 1)
    MOVE
    return model, {n: p.clone().detach() for n, p in model.named_parameters()}
"""
ENGINE = """\
import torch


def moved(batch, device):
    return {k: v.to(device, non_blocking=True) for k, v in batch.items()}


def each(loader):
    for batch in loader:
        YIELD


def train(model, loader, optimizer):
    for step, batch in enumerate(each(loader)):
        loss = model(batch["x"]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def findings(folder: Path, move: str, yields: str) -> list[tuple[str, str]]:
    (folder / "train.py").write_text(TRAIN)
    (folder / "builders.py").write_text(BUILDERS.replace("MOVE", move))
    (folder / "engine.py").write_text(ENGINE.replace("YIELD", yields))
    done = rewrite_folder(folder, processes=1)
    notes = [(file.name.name, note.rule) for file in done.files for note in file.findings]
    return [note for note in notes if note[1] in ("ddp", "step")]


YIELDS = (
    'batch = moved(batch, torch.device("cuda"))\n        yield batch',
    'yield moved(batch, "cuda")',
    "yield {k: v.cuda() for k, v in batch.items()}",
)


@pytest.mark.parametrize("yields", YIELDS)
@pytest.mark.parametrize("move", ["model.cuda()", 'model = model.to("cuda")'])
def test_a_move_in_another_function(tmp_path: Path, move: str, yields: str) -> None:
    assert findings(tmp_path, move, yields) == []


def test_no_move_is_reported(tmp_path: Path) -> None:
    assert ("train.py", "ddp") in findings(tmp_path, "pass", YIELDS[0])
    assert ("engine.py", "step") in findings(tmp_path, "model.cuda()", "yield batch")


HELPERS = """
import dataclasses

import torch


def put(value):
    try:
        value = value.float().cuda()
    except AttributeError:
        pass
    return value


def put_fields(batch):
    for field in dataclasses.fields(batch):
        setattr(batch, field.name, put(getattr(batch, field.name)))
    return batch


def shown(batch, name):
    for field in dataclasses.fields(batch):
        print(name(getattr(batch, field.name)))
"""
FED = """
import torch
import torch.distributed as dist

from helpers import put_fields, shown


def losses(batch, model):
    return {"flow": model(batch.video).mean()}


def main(loader):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in loader:
        MOVE
        loss = losses(batch, model)["flow"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("move", "reported"),
    [
        ("put_fields(batch)", False),
        ("batch = put_fields(batch)", False),
        ("shown(batch, str)", True),
    ],
)
def test_a_function_that_hands_the_fields_of_a_batch_to_a_mover(
    tmp_path: Path, move: str, reported: bool
) -> None:
    (tmp_path / "helpers.py").write_text(HELPERS)
    (tmp_path / "train.py").write_text(FED.replace("MOVE", move))
    done = rewrite_folder(tmp_path, processes=1)
    messages = [note.message for _, note in done.left_to_do]
    assert any(f"{NOT_SHOWN} batch" in message for message in messages) is reported


TRAINER = """\
import torch


class Trainer:
    def __init__(self, net):
        self.net = torch.nn.parallel.DistributedDataParallel(net.cuda())
        self.opt = torch.optim.AdamW(self.net.parameters())

    def turn(self, data):
        for key, value in data.items():
            if isinstance(value, torch.Tensor):
                data[key] = value.cuda(non_blocking=True)
        loss = self.net(data)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
"""


def test_a_method_of_another_file_that_moves_and_trains(tmp_path: Path) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "main.py").write_text(
        "from trainer import Trainer\n\n\ndef main(net, loader):\n    trainer = Trainer(net)\n"
        "    for data in loader:\n        trainer.turn(data)\n"
    )
    files = rewrite_folder(tmp_path, processes=1).files
    assert any(b"with torch_xla.step():" in file.after for file in files)
    assert [note.message for file in files for note in file.findings if note.rule == "step"] == []


PACKED = """\
class Packed:
    def __init__(self, samples):
        self.x = samples[0]

    def cuda(self, device):
        self.x = self.x.to(device)
        return self

    def inputs(self):
        return {"x": self.x}


def wrapped():
    def collate(samples):
        return Packed(samples)

    return collate


class Collate:
    def __call__(self, samples):
        return Packed(samples)
"""
OF_PACKED = """\
import torch
from torch.utils.data import DataLoader

from packed import Collate, Packed, wrapped


def main(dataset):
    device = torch.device("cuda")
    model = torch.nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(dataset, batch_size=1, collate_fn=COLLATE)
    for step, batch in enumerate(loader):
        batch = batch.cuda(device).inputs()
        model(batch["x"]).mean().backward()
        optimizer.step()
"""


@pytest.mark.parametrize("collate", ["wrapped()", "Collate()", "Packed", "lambda x: Packed(x)"])
def test_a_batch_of_a_class_of_the_project_moves_by_its_own_method(
    collate: str, tmp_path: Path
) -> None:
    """`batch.to("xla")` was written, a method that the class does not have."""
    (tmp_path / "packed.py").write_text(PACKED)
    (tmp_path / "train.py").write_text(OF_PACKED.replace("COLLATE", collate))
    done = rewrite_folder(tmp_path)
    texts = {file.name.stem: file.after.decode() for file in done.files}
    assert "batch.cuda(device)" in texts["train"]
    assert not [f.message for file in done.files for f in file.findings if f.rule == "step"]
