"""A project uses several processes where it uses torch.distributed or DDP, not where it only imports them."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder

TRAIN = """
{imports}
import torch


def main(model, loader, best=0.0):
    model = model.cuda()
    accuracy = sum((model(x.cuda()).argmax(-1) == y.cuda()).sum().item() for x, y in loader)
    if accuracy > best:
        torch.save(model.state_dict(), "best.pth")
{use}
"""


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"imports": "", "use": ""}, False),
        (
            {"imports": "from torch.nn.parallel import DistributedDataParallel as DDP", "use": ""},
            False,
        ),
        ({"imports": "import torch.distributed as dist  # some day", "use": ""}, False),
        (
            {
                "imports": "from torch.nn.parallel import DistributedDataParallel as DDP",
                "use": "    return DDP(model)",
            },
            True,
        ),
        ({"imports": "import torch.distributed as dist", "use": "    dist.barrier()"}, True),
        ({"imports": "from torch.distributed import *", "use": "    barrier()"}, True),
        ({"imports": "from helpers import dist", "use": "    dist.barrier()"}, True),
    ],
)
def test_an_import_that_nothing_uses_makes_no_replicas(
    tmp_path: Path, files: dict[str, str], told: bool
) -> None:
    (tmp_path / "helpers.py").write_text(
        "import torch.distributed as dist\n" if "helpers" in files["imports"] else "x = 1\n"
    )
    (tmp_path / "train.py").write_text(TRAIN.format(**files))
    done = rewrite_folder(tmp_path)
    findings = [note for file in done.files for note in file.findings]
    assert any("may differ between the replicas" in note.message for note in findings) is told
