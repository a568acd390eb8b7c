"""Batches that DistributedDataParallel moved to the GPU, where another file wraps the model."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.results import FolderRewrite

MAIN = """\
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

import trainer


def main(rank, loader):
    model = torch.nn.Linear(3, 3).cuda()
    model = DDP(model{devices})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer.train(model, loader, optimizer)
"""
TRAINER = """\
import torch


def train(model, loader, optimizer):
    for images, target in loader:
        outputs = model({given})
        target = target.cuda()
        loss = torch.nn.functional.mse_loss(outputs, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


def rewritten(folder: Path, devices: str, given: str) -> tuple[str, FolderRewrite]:
    (folder / "main.py").write_text(MAIN.format(devices=devices))
    (folder / "trainer.py").write_text(TRAINER.format(given=given))
    done = rewrite_folder(folder)
    return next(one.after.decode() for one in done.files if one.name == Path("trainer.py")), done


def messages(done: FolderRewrite) -> list[str]:
    return [found.message for one in done.files for found in one.findings if found.rule == "step"]


def test_a_batch_that_the_model_moved_is_moved(tmp_path: Path) -> None:
    text, done = rewritten(tmp_path, ", device_ids=[rank]", "images")
    assert '            images = images.to("xla")\n            outputs = model(images)' in text
    assert not messages(done)


@pytest.mark.parametrize("given", ["images[:, :-1]", "images.reshape(2, 3)"])
def test_a_part_of_a_batch_that_the_model_moved_is_moved(tmp_path: Path, given: str) -> None:
    text, done = rewritten(tmp_path, ", device_ids=[rank]", given)
    assert f'            images = images.to("xla")\n            outputs = model({given})' in text
    assert not messages(done)


def test_a_size_of_a_batch_is_moved_by_nothing(tmp_path: Path) -> None:
    text, done = rewritten(tmp_path, ", device_ids=[rank]", "images.size(0)")
    assert "images.to(" not in text
    assert not messages(done)


@pytest.mark.parametrize("devices", ["", ", device_ids=None"])
def test_a_model_that_moves_no_inputs_is_given_what_the_script_gives_it(
    tmp_path: Path, devices: str
) -> None:
    text, done = rewritten(tmp_path, devices, "images")
    assert "images.to(" not in text
    assert not messages(done)


def test_what_comes_with_a_moved_input_may_be_no_tensor_and_is_told(tmp_path: Path) -> None:
    text, done = rewritten(tmp_path, ", device_ids=[rank]", "target, images")
    assert "images.to(" not in text
    assert [one for one in messages(done) if "images: DistributedDataParallel moved it" in one]


def test_a_tensor_made_for_the_model_is_moved(tmp_path: Path) -> None:
    text, _ = rewritten(tmp_path, ", device_ids=[rank]", "torch.ones(2, 3)")
    assert 'model(torch.ones(2, 3).to("xla"))' in text


def test_what_is_taken_apart_may_be_a_list_and_is_told(tmp_path: Path) -> None:
    """The crops of swav: a list, which has no `to`."""
    trainer = TRAINER.replace(
        "target = target", "size = images[0].size(0)\n        target = target"
    )
    (tmp_path / "main.py").write_text(MAIN.format(devices=", device_ids=[rank]"))
    (tmp_path / "trainer.py").write_text(trainer.format(given="images"))
    done = rewrite_folder(tmp_path)
    assert not any(b"images.to(" in file.after for file in done.files)
    assert [one for one in messages(done) if "images: DistributedDataParallel moved it" in one]


PARTS = """\
import torch


class Objective:
    def losses(self, model, x, extra=None, **kwargs):
        return model(x, **(extra or kwargs)).mean()


def train(model, loader, optimizer):
    objective = Objective()
    for batch in loader:
        x = batch["x"].cuda()
{lines}
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
LEFT = {
    "by a keyword": 'loss = model(x, y=batch["y"]).mean()',
    "by a name": 'y = batch["y"]\nloss = model(x, y).mean()',
    "in a dict": 'extra = dict(y=batch["y"])\nloss = model(x, **extra).mean()',
    "by a function": 'y = batch["y"]\nextra = {"y": y}\nloss = objective.losses(model, x, extra)',
    "in one of two dicts": 'if loader:\n    extra = dict(y=batch["y"])\nelse:\n    extra = dict(y=None)\n'
    "loss = objective.losses(model, x, extra)",
    "put into a dict": 'extra = {}\nextra["y"] = batch["y"]\nloss = objective.losses(model, x, extra)',
    "by a function's keyword": 'loss = objective.losses(model, x, y=batch["y"])',
}
RIGHT = {
    "moved by its name": 'y = batch["y"]\ny = y.cuda()\nloss = objective.losses(model, x, y=y)',
    "moved in the dict": 'extra = {"y": batch["y"].cuda()}\nloss = objective.losses(model, x, extra)',
    "the dict moved": 'extra = {"y": batch["y"]}\nextra = {k: v.cuda() for k, v in extra.items()}\n'
    "loss = objective.losses(model, x, extra)",
    "not for the model": 'print(batch["y"])\nloss = model(x).mean()',
    "moved into the batch": "for key in batch:\n    batch[key] = batch[key].cuda()\n"
    'loss = objective.losses(model, x, y=batch["y"])',
    "all moved": "batch = {k: v.cuda() for k, v in batch.items()}\n"
    'loss = objective.losses(model, x, y=batch["y"])',
}


def told_parts(folder: Path, lines: str, devices: str = ", device_ids=[rank]") -> list[str]:
    (folder / "main.py").write_text(MAIN.format(devices=devices))
    (folder / "trainer.py").write_text(PARTS.format(lines=textwrap.indent(lines, " " * 8)))
    done = rewrite_folder(folder)
    findings = [found for one in done.files for found in one.findings]
    return [found.message for found in findings if found.rule == "ddp-inputs"]


@pytest.mark.parametrize("lines", LEFT.values(), ids=LEFT)
def test_a_part_of_a_batch_that_only_the_model_moved_is_told(tmp_path: Path, lines: str) -> None:
    (message,) = told_parts(tmp_path, lines)
    assert message.startswith('batch["y"] is a part of the batch that nothing moves')
    assert told_parts(tmp_path, lines, "") == []


@pytest.mark.parametrize("lines", RIGHT.values(), ids=RIGHT)
def test_a_part_of_a_batch_that_is_moved_is_not_told(tmp_path: Path, lines: str) -> None:
    assert told_parts(tmp_path, lines) == []


FORWARD = """\
import torch


def sampled(batch, device):
    return batch["x"].to(device)


def forward(model, batch, device, known):
    for _ in range(2):
        out = model(x=batch["x"].to(device), y=batch["y"], z=batch["z"] if known else None)
    return out.mean() + sampled(batch, device).mean()


def train(model, loader, optimizer):
    for batch in loader:
        loss = forward(model, batch, torch.device("cuda"), True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_part_of_a_batch_that_a_function_is_given_is_told(tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(MAIN.format(devices=", device_ids=[rank]"))
    (tmp_path / "trainer.py").write_text(FORWARD)
    done = rewrite_folder(tmp_path, processes=1)
    told = [found for one in done.files for found in one.findings if found.rule == "ddp-inputs"]
    assert [found.message.partition(" ")[0] for found in told] == ['batch["y"]', 'batch["z"]']


def test_a_part_of_a_batch_that_the_function_moves_as_a_whole_is_not(tmp_path: Path) -> None:
    lines = "    batch = {key: value.to(device) for key, value in batch.items()}\n    for _"
    (tmp_path / "main.py").write_text(MAIN.format(devices=", device_ids=[rank]"))
    (tmp_path / "trainer.py").write_text(FORWARD.replace("    for _", lines, 1))
    done = rewrite_folder(tmp_path, processes=1)
    assert not [found for one in done.files for found in one.findings if found.rule == "ddp-inputs"]


IN_PARTS = """\
import torch


def train(model, loader, optimizer):
    for batch in loader:
        {before}
        rows = list(range(len(batch["x"])))
        for turn in range(2):
            part = {{key: batch[key][rows[turn::2]] for key in batch}}
            {inside}
            out = model(part)
            {test}
            out["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def in_parts(folder: Path, script: str, devices: str) -> list[str]:
    (folder / "main.py").write_text(MAIN.format(devices=devices))
    (folder / "trainer.py").write_text(script)
    told = messages(rewrite_folder(folder))
    return [message for message in told if "DistributedDataParallel moved it" in message]


@pytest.mark.parametrize("test", ["pass", "if float(out['loss']) > 9: break"])
def test_a_batch_that_runs_in_parts_and_only_the_model_moved_is_told(
    tmp_path: Path, test: str
) -> None:
    script = IN_PARTS.format(before="pass", inside="pass", test=test)
    (message,) = in_parts(tmp_path, script, ", device_ids=[rank]")
    assert message.startswith("part: ")


@pytest.mark.parametrize(
    ("before", "inside", "devices"),
    [
        ("batch = {key: value.cuda() for key, value in batch.items()}", "pass", True),
        ("pass", "part = {key: value.cuda() for key, value in part.items()}", True),
        ("pass", "pass", False),
    ],
)
def test_a_batch_that_runs_in_parts_and_is_moved_or_stays_is_not_told(
    tmp_path: Path, before: str, inside: str, devices: bool
) -> None:
    script = IN_PARTS.format(before=before, inside=inside, test="pass")
    assert not in_parts(tmp_path, script, ", device_ids=[rank]" if devices else "")
