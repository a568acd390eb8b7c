"""The Python in the pages on shapes and checkpoints runs, block after block, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

PAGES = Path(__file__).parents[3] / "docs" / "shims"


@pytest.mark.parametrize("name", ["static-shapes.md", "checkpoints.md"])
def test_the_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (PAGES / name).read_text(), re.M | re.S)
    assert len(blocks) == 3
    with torch.random.fork_rng():
        exec(compile("\n".join(blocks), name, "exec"), {"__name__": "page"})
    shown = capsys.readouterr().out
    assert ("distinct shapes in 25 batches" if name == "static-shapes.md" else "step 15: ") in shown
