"""`fused` in the saved state of an optimizer that was fused on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite

SCRIPT = """import torch


def resume(model, saved, loader):
    model = model.to("cuda")
    optimizer = MADE
    LOAD
    for x in loader:
        optimizer.zero_grad()
        model(x.to("cuda")).sum().backward()
        optimizer.step()
"""
FUSED = "torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)"
LOAD = 'optimizer.load_state_dict(saved["optimizer"])'
SETS = 'group["fused"] = None'


def rewritten(folder: Path, made: str = FUSED, load: str = LOAD, style: Style = "native") -> str:
    path = folder / "train.py"
    path.write_text(SCRIPT.replace("MADE", made).replace("LOAD", load))
    return rewrite(path, options=RewriteOptions(style=style)).data.decode()


def test_the_groups_of_a_loaded_state_lose_it(tmp_path: Path) -> None:
    after = rewritten(tmp_path)
    lines = [line.strip() for line in after.splitlines()]
    at = lines.index(LOAD)
    assert lines[at + 1] == "for group in optimizer.param_groups:"
    assert lines[at + 2].startswith(SETS)
    (tmp_path / "train.py").write_text(after)
    assert rewrite(tmp_path / "train.py").data.decode() == after


def test_the_portable_form_keeps_it_on_cuda(tmp_path: Path) -> None:
    assert 'group["fused"] = shims.device_type() == "cuda"' in rewritten(tmp_path, style="portable")


def test_a_load_in_another_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "optim.py").write_text(f"import torch\n\n\ndef make(model):\n    return {FUSED}\n")
    (tmp_path / "train.py").write_text(
        "from optim import make\n\n\ndef main(model, saved, loader):\n    model = model.to('cuda')\n"
        f"    optimizer = make(model)\n    {LOAD}\n    for x in loader:\n"
        "        model(x.to('cuda')).sum().backward()\n        optimizer.step()\n"
    )
    files = {Path(one.name).name: one.after for one in rewrite_folder(tmp_path, processes=1).files}
    assert SETS.replace('"', "'") in files["train.py"].decode().replace('"', "'")


def test_a_load_within_another_statement_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    load = f"done = {LOAD}"
    path.write_text(SCRIPT.replace("MADE", FUSED).replace("LOAD", load))
    (found,) = [one for one in rewrite(path).findings if one.rule == "fused-optimizer"]
    assert 'for group in optimizer.param_groups: group["fused"] = None' in found.message


@pytest.mark.parametrize(
    ("made", "load"),
    [
        ("torch.optim.AdamW(model.parameters(), lr=0.1)", LOAD),
        ("torch.optim.AdamW(model.parameters(), lr=0.1, fused=False)", LOAD),
        ("torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True)", LOAD),
        (FUSED, 'model.load_state_dict(saved["model"])'),
    ],
)
def test_what_has_no_fused_state_is_left_alone(tmp_path: Path, made: str, load: str) -> None:
    assert "param_groups" not in rewritten(tmp_path, made, load)
