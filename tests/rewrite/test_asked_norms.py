"""Tests for SyncBatchNorm: kept where no file of the project makes such a layer."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

MODEL = """
    import torch.nn as nn
    from torch.nn import SyncBatchNorm


    def reset(model):
        for m in model.modules():
            if TEST:
                m.weight.data.fill_(1.0)
        return model.cuda()
"""
TESTS = [
    "isinstance(m, (nn.LayerNorm, nn.SyncBatchNorm))",
    "isinstance(m, SyncBatchNorm)",
    "type(m) in (nn.BatchNorm2d, nn.SyncBatchNorm)",
]


def model(folder: Path, style: Style, test: str, other: str) -> tuple[str, list[str]]:
    (folder / "model.py").write_text(dedent(MODEL).lstrip().replace("TEST", test))
    (folder / "other.py").write_text(f"from torch import nn\n\n\n{other}\n")
    done = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1)
    (file,) = (one for one in done.files if one.name.stem == "model")
    return (file.after or b"").decode(), [note.rule for note in file.findings]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("test", TESTS)
def test_without_such_a_layer(tmp_path: Path, style: Style, test: str) -> None:
    after, findings = model(tmp_path, style, test, "norm = nn.BatchNorm2d")
    assert f"if {test}:" in after
    assert "batch_norm" not in after
    assert findings == []


@pytest.mark.parametrize(
    "other",
    [
        "def make(m): return nn.SyncBatchNorm.convert_sync_batchnorm(m)",
        "norm = nn.SyncBatchNorm",
        "def make(m): return getattr(nn, 'SyncBatchNorm')(4)",
    ],
)
def test_with_such_a_layer_in_another_file(tmp_path: Path, other: str) -> None:
    after, _ = model(tmp_path, "native", TESTS[0], other)
    assert "isinstance(m, (nn.LayerNorm, shims.batch_norm.SyncBatchNorm))" in after


@pytest.mark.parametrize(
    ("loop", "stays"),
    [
        (
            "for c in (nn.Linear, nn.SyncBatchNorm):\n        setattr(c, 'reset_parameters', None)",
            True,
        ),
        ("setattr(nn.SyncBatchNorm, 'reset_parameters', None)", True),
        ("layers = [c(4) for c in (nn.BatchNorm1d, nn.SyncBatchNorm)]", False),
        ("for c in (nn.BatchNorm1d, nn.SyncBatchNorm):\n        layers = c(4)", False),
        ("for c in (nn.Linear, nn.SyncBatchNorm):\n        model.append(c)", False),
    ],
)
def test_a_class_that_is_only_given_attributes(tmp_path: Path, loop: str, stays: bool) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        f"from torch import nn\n\n\ndef build(model):\n    {loop}\n    return model.cuda()\n"
    )
    (file,) = rewrite_folder(tmp_path, processes=1).files
    assert (loop in (file.after or b"").decode()) is stays
