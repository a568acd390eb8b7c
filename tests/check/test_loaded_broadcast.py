"""Weights that one replica loads, before a broadcast hands them to the others."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from checkpoints import restore_model


    class Trainer:
        def load(self, path):
            self.model.load_state_dict(torch.load(path, map_location="cpu"))

        def start(self, path, optimizer):
            self.model = nn.Linear(3, 2).cuda()
            rank = dist.get_rank()
            {guard}:
                {load}
            {between}
            for p in self.model.parameters():
                {broadcast}


    def main():
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        Trainer().start("model.pt", None)


    main()
"""
RIGHT = {
    "guard": "if rank == 0",
    "load": "self.load(path)",
    "between": "pass",
    "broadcast": "dist.broadcast(p.data, src=0)",
}
WRONG = [
    {},
    {"guard": "if dist.get_rank() == 0"},
    {"guard": "if not rank"},
    {"load": 'self.model.load_state_dict(torch.load(path, map_location="cpu"))'},
    {"load": "restore_model(self.model, path)"},
    {"broadcast": "dist.broadcast(p, 0)"},
    {"broadcast": "dist.all_reduce(p.data)"},
]
FINE = [
    {"guard": "if path is not None"},
    {"between": "torch.cuda.synchronize()"},
    {"load": "print(path)"},
    {"load": "optimizer.load_state_dict(torch.load(path))"},
    {"broadcast": "print(p.shape)"},
]


def written(folder: Path, changed: dict[str, str]) -> Path:
    (folder / "checkpoints.py").write_text(
        "import torch\n\n\ndef restore_model(net, path):\n"
        '    net.load_state_dict(torch.load(path, map_location="cpu"))\n'
    )
    path = folder / "train.py"
    path.write_text(textwrap.dedent(SCRIPT.format(**{**RIGHT, **changed})))
    return path


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_reported(changed: dict[str, str], style: Style, tmp_path: Path) -> None:
    path = written(tmp_path, changed)
    assert [hit.line for hit in check_file(path, Config()) if hit.code == "XLA314"] == [15]
    source = parse(path.read_bytes(), path)
    done = rewrite_source(source, options=RewriteOptions(style=style))
    assert [note.line for note in done.findings if note.rule == "XLA314"] == [15]


@pytest.mark.parametrize("changed", FINE, ids=str)
def test_not_reported(changed: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, changed)
    assert [hit for hit in check_file(path, Config()) if hit.code == "XLA314"] == []
    done = rewrite_source(parse(path.read_bytes(), path))
    assert [note for note in done.findings if note.rule == "XLA314"] == []
