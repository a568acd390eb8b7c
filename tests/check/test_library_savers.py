"""Savers of libraries that call torch.save, by whatever import they come."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.check import check_source
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

CODE = Config(select=("XLA855",))
TRAIN = """
    import torch
    {imports}


    def train(model, optimizer, epochs, run_epoch):
        model.cuda()
        saver = {saver}(model, optimizer, checkpoint_dir="out")
        for epoch in range(epochs):
            run_epoch(model, optimizer)
            saver.save_checkpoint(epoch)
"""


def train(imports: str, saver: str = "CheckpointSaver") -> str:
    return textwrap.dedent(TRAIN).format(imports=imports, saver=saver)


@pytest.mark.parametrize(
    ("imports", "saver"),
    [
        ("from timm.utils import CheckpointSaver", "CheckpointSaver"),
        ("from timm import utils", "utils.CheckpointSaver"),
        ("from timm.utils import *", "CheckpointSaver"),
    ],
)
def test_a_saver_is_reported(imports: str, saver: str) -> None:
    """It had no finding: its torch.save is in the library."""
    source = parse(train(imports, saver).encode(), Path("train.py"))
    assert [f.line for f in check_source(source, CODE)] == [8]
    done = rewrite_source(source)
    assert any("timm.utils.CheckpointSaver" in note.message for note in done.findings)


def test_a_name_that_two_libraries_may_bring_is_unknown() -> None:
    text = train("from timm.utils import *; from savers import *")
    assert not check_source(parse(text.encode(), Path("train.py")), CODE)


@pytest.mark.parametrize("own", ["class CheckpointSaver:\n    ...\n", "def other(): ...\n"])
def test_a_class_of_the_project_hides_that_of_the_library(tmp_path: Path, own: str) -> None:
    (tmp_path / "own.py").write_text(own)
    (tmp_path / "train.py").write_text(train("from timm.utils import *; from own import *"))
    hits = check_paths([tmp_path], CODE).findings
    assert len(hits) == ("other" in own)
