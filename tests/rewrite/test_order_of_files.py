"""A file that a turn writes and reads again: the write never moves below the read."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

EVALUATION = """
import torch
from PIL import Image


def score(path):
    return Image.open(path).size


def given(path, sizes):
    sizes.append(path)


@torch.no_grad()
def sample(vae, judge, loader, prepare, sizes):
    vae.cuda().eval()
    judge.cuda().eval()
    rewards = []
    for index, x in enumerate(loader):
        x = x.cuda()
        images = vae(x)
        path = f"out/{{index}}.png"
        {statement}
        {reader}
        rewards.append(judge(prepare(images)).mean())
    return rewards
"""
TRAINING = """
import torch
from PIL import Image


def train(model, loader, optimizer, loss_fn):
    model.cuda()
    for index, (x, y) in enumerate(loader):
        x, y = x.cuda(), y.cuda()
        features = model(x)
        {statement}
        weight = Image.open("last.png").size[0]
        loss = loss_fn(features, y) * weight
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
WRITES = ("images[0].cpu().save(path)", "save_image(images.cpu(), path)")
READS = ("picture = Image.open(path)", "sizes.append(score(path))", "given(path, sizes)")


def rewritten(text: str, **parts: str) -> list[str]:
    source = parse(textwrap.dedent(text.format(**parts)).encode(), Path("sample.py"))
    return [line.strip() for line in rewrite_source(source).data.decode().splitlines()]


@pytest.mark.parametrize("reader", READS)
@pytest.mark.parametrize("statement", WRITES)
def test_what_reads_the_file_stays_below_its_write(statement: str, reader: str) -> None:
    lines = rewritten(EVALUATION, statement=statement, reader=reader)
    assert "with torch_xla.step():" in lines
    assert lines.index(statement) < lines.index(reader)


def test_a_write_that_nothing_reads_moves_below_the_step() -> None:
    lines = rewritten(EVALUATION, statement=WRITES[1], reader="sizes.append(index)")
    assert lines.index("rewards.append(judge(prepare(images)).mean())") < lines.index(WRITES[1])


def test_a_training_step_is_not_divided_so_either() -> None:
    statement = 'features[0].detach().cpu().save("last.png")'
    lines = rewritten(TRAINING, statement=statement)
    assert lines.index(statement) < lines.index('weight = Image.open("last.png").size[0]')


@pytest.mark.parametrize(
    ("body", "is_above"),
    [("return Image.open(f'out/{index}.png').size", True), ("return index + 1", False)],
)
@pytest.mark.parametrize("name", ["shape_of", "load_image"])
def test_what_a_function_of_another_file_reads(
    tmp_path: Path, name: str, body: str, is_above: bool
) -> None:
    (tmp_path / "files.py").write_text(
        f"from PIL import Image\n\n\ndef {name}(index):\n    {body}\n"
    )
    reader = f"sizes.append({name}(index))"
    text = EVALUATION.format(statement=WRITES[1], reader=reader)
    (tmp_path / "sample.py").write_text(f"from files import {name}\n{text}")
    done = rewrite_folder(tmp_path, processes=1)
    after = {file.name.as_posix(): file.after.decode() for file in done.files}["sample.py"]
    lines = [line.strip() for line in after.splitlines()]
    computed = lines.index("rewards.append(judge(prepare(images)).mean())")
    assert (lines.index(WRITES[1]) < computed) is is_above
