"""What the rewrite of either style says of CLIP's labels and of a checkpointed model of a library."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite

SCRIPT = """\
import torch
import torch.distributed as dist
import torch.nn.functional as F
from transformers import AutoModel


def loss_of(a, b):
    labels = torch.arange(a.shape[0], device=a.device)
    labels = labels + dist.get_rank() * a.shape[0]
    return F.cross_entropy(a @ b.T, labels)


def main(loader):
    dist.init_process_group("nccl")
    torch.cuda.set_device(dist.get_rank())
    model = AutoModel.from_pretrained("bert").cuda()
    model.gradient_checkpointing_enable()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in loader:
        out = model(x.cuda())
        loss = loss_of(out, out.detach())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main([])
"""


@pytest.mark.parametrize(
    ("style", "checkpoint"),
    [
        ("native", "torch_xla.utils.checkpoint.checkpoint"),
        ("portable", "shims.checkpoint_activations"),
    ],
)
def test_what_each_style_leaves_to_do(style: Style, checkpoint: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    done = rewrite(tmp_path / "train.py", options=RewriteOptions(style=style))
    said = {finding.rule: finding for finding in done.findings}
    lines = SCRIPT.splitlines()
    assert "get_rank() *" in lines[said["XLA307"].line - 1]
    assert "checkpointing_enable" in lines[said["activation-checkpointing"].line - 1]
    assert checkpoint in said["activation-checkpointing"].message
