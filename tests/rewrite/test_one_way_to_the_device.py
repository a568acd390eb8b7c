"""One way to the device in a file: `.cuda()` beside `.to(device)` moves to that variable, if it is sure."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.catalogue.target import TARGETS, Target
from migrate.check.config import Config
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

MADE = "device = torch.device('cuda', rank)"
# The code above a move, and whether the move may name `device`.
SCRIPTS = {
    "bound once": (f"def run(x, rank):\n    {MADE}\n    MOVE\n", True),
    "in a loop": (f"def run(x, rank):\n    {MADE}\n    for _ in range(3):\n        MOVE\n", True),
    "module, read in the function": (
        f"rank = 0\n{MADE}\n\n\ndef run(x):\n    print(device)\n    MOVE\n",
        True,
    ),
    "module, not read in the function": (f"rank = 0\n{MADE}\n\n\ndef run(x):\n    MOVE\n", False),
    "a parameter": (f"rank = 0\n{MADE}\n\n\ndef run(x, device):\n    MOVE\n", False),
    "in a branch": (f"def run(x, rank):\n    if rank:\n        {MADE}\n    MOVE\n", False),
    "bound again": (
        f"def run(x, rank):\n    {MADE}\n    device = torch.device('cpu')\n    MOVE\n",
        False,
    ),
    "bound below": (f"def run(x, rank):\n    MOVE\n    {MADE}\n    return device\n", False),
    "the CPU": ("def run(x, rank):\n    device = torch.device('cpu')\n    MOVE\n", False),
    "a choice": (
        "def run(x, rank):\n    device = torch.device('cuda' if rank else 'cpu')\n    MOVE\n",
        False,
    ),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_move_names_the_variable_of_the_device(name: str, target: Target) -> None:
    text, is_named = SCRIPTS[name]
    after = written(text, target, "native")
    literal = "'xla'" if target == "torch_xla" else "'tpu'"
    assert (".to(device)" in after, f".to({literal})" in after) == (is_named, not is_named), after


def test_portable_code_names_it_too() -> None:
    after = written(SCRIPTS["bound once"][0], "torch_xla", "portable")
    assert "device = shims.device()\n    x.to(device).sum()" in after


def written(text: str, target: Target, style: Style) -> str:
    source = parse(
        f"import torch\n\n\n{text.replace('MOVE', 'x.cuda().sum()')}".encode(), Path("t.py")
    )
    options = RewriteOptions(style=style, config=Config(target=target))
    return rewrite_source(source, options=options).data.decode()
