"""The type of a device that a choice takes, where its question becomes one about XLA."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.file import rewrite_file
from migrate.rewrite.options import RewriteOptions, Style

SCRIPT = """
import torch

dev = torch.device("cuda")
device = "cuda:0"


def train(model, x, args):
    USE
        return model(x)
"""
CHOICES = [
    '"cuda" if "cuda" in device else "cpu"',
    '"cuda" if dev.type == "cuda" else "cpu"',
    '"cpu" if dev.type != "cuda" else "cuda"',
    '"cuda" if device.startswith("cuda") else "cpu"',
    '"cuda" if str(device).startswith("cuda") and args.amp else "cpu"',
    '"cuda" if dev.type in ("cuda", "cpu") else "cpu"',
]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize(
    "use",
    [
        "with torch.autocast(CHOICE, dtype=torch.float16, enabled=args.amp):",
        "with torch.amp.autocast(device_type=CHOICE, dtype=torch.bfloat16):",
        "kind = CHOICE\n    with torch.autocast(kind):",
        "scaler = torch.amp.GradScaler(CHOICE)\n    with scaler:",
        "with torch.device(CHOICE):",
    ],
)
def test_what_is_chosen_is_no_longer_cuda(
    tmp_path: Path, use: str, choice: str, style: Style
) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("USE", use.replace("CHOICE", choice)))
    made = rewrite_file(path, RewriteOptions(style=style))
    assert b"cuda" not in made.data
    assert [note for note in made.findings if "cuda" in note.message] == []


def test_what_another_question_chooses_stays(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text('def name(x):\n    return "cuda" if x.backend == "cuda" else "cpu"\n')
    made = rewrite_file(path)
    assert not made.changed
