"""Devices that a caller may give, and lists of devices for workers: what the rewrite must not decide."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.results import FileRewrite

ENCODER = """
    import torch


    class Encoder:
        def __init__(self, model):
            self.model = model.cuda()
            self.device = torch.device("cuda")

        def encode(self, batch, config, **kwargs):
            device = VALUE
            return self.model.to(device)(batch.to(device)).cpu()
"""
WORKERS = """
    import torch


    def move(model):
        return model.cuda()


    def workers(devices=None):
        if devices is None:
            if torch.cuda.is_available():
                devices = LIST
            else:
                devices = ["cpu"] * 4
        return devices
"""


def rewritten(folder: Path, text: str, style: Style) -> FileRewrite:
    (folder / "main.py").write_text(dedent(text).lstrip())
    (file,) = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1).files
    return file


@pytest.mark.parametrize(
    ("value", "native", "portable"),
    [
        ('kwargs.get("device", self.device)', "", ""),
        ('kwargs.pop("device", self.device)', "", ""),
        ('getattr(config, "device", self.device)', "", ""),
        ('kwargs.get("device", "cuda")', '"xla"', "shims.device()"),
        ('config.get("device", "cuda:0")', '"xla"', "shims.device()"),
        ('getattr(config, "device", "cuda")', '"xla"', "shims.device()"),
    ],
)
def test_who_gives_a_device_means_it(
    tmp_path: Path, value: str, native: str, portable: str
) -> None:
    for style, default in (("native", native), ("portable", portable)):
        text = ENCODER.replace("VALUE", value)
        after = (rewritten(tmp_path, text, style).after or b"").decode()  # type: ignore[arg-type]
        head, _, last = value.rpartition(", ")
        assert f"device = {head}, {default + ')' if default else last}\n" in after


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "made",
    [
        '["cuda:{}".format(i) for i in range(torch.cuda.device_count())]',
        '[f"cuda:{i}" for i in range(torch.cuda.device_count())]',
        'list(torch.device("cuda", i) for i in range(torch.cuda.device_count()))',
    ],
)
def test_the_devices_of_workers(tmp_path: Path, made: str, style: Style) -> None:
    file = rewritten(tmp_path, WORKERS.replace("LIST", made), style)
    after = (file.after or b"").decode()
    assert "if torch.cuda.is_available():\n" in after
    assert 'devices = ["cpu"] * 4\n' in after
    assert [(n.rule, n.line) for n in file.findings] == [
        ("cuda-available", 10),
        ("cuda-available", 11),
    ]


def test_check_does_not_call_the_list_needless(tmp_path: Path) -> None:
    made = '["cuda:{}".format(i) for i in range(torch.cuda.device_count())]'
    script = tmp_path / "main.py"
    script.write_text(dedent(WORKERS).lstrip().replace("LIST", made))
    _, found = findings_of([script], Config(root=tmp_path))
    messages = [one.message for one in found if one.code == "XLA704"]
    assert len(messages) == 2
    assert not any("not needed" in message for message in messages)


INDEX_AGAIN = """
    import os

    import torch
    import torch.distributed as dist


    def joined():
        rank, gpu = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
        dist.init_process_group("nccl", rank=rank, world_size=int(os.environ["WORLD_SIZE"]))
        return rank, gpu


    def main():
        _, device = joined()
        device = AGAIN
        model = torch.nn.Linear(4, 2).to(device)


    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    "again",
    ["torch.device(device)", 'torch.device("cuda", device)', 'torch.device(f"cuda:{device}")'],
)
def test_an_index_that_becomes_a_device_under_its_own_name(again: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(dedent(INDEX_AGAIN).replace("AGAIN", again))
    after = rewrite_folder(tmp_path, processes=1).files[0].after.decode()
    assert '    device = torch.device("xla")\n' in after
