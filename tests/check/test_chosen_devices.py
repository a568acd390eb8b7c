"""Libraries that choose their device themselves, by way of parameters and other files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

ENCODER = """
    from sentence_transformers import SentenceTransformer as ST


    class Encoder:
        def __init__(self, path, device=None):
            self.model = ST(path, device=device)
"""
MAIN = """
    import torch
    from encoder import Encoder

    if __name__ == "__main__":
        model = torch.nn.Linear(2, 2).cuda()
        Encoder("some/model"DEVICE)
"""
WRAPPED = """
    import torch
    from sentence_transformers import SentenceTransformer


    class Wrapped(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model


    def evaluate(loader):
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in loader:
            loss = model(x.cuda()).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        SentenceTransformer(modules=torch.nn.Sequential(Wrapped(model)))
"""


@pytest.mark.parametrize(
    ("device", "reported"),
    [("", True), (', device="cuda"', False), (', device="cpu"', False), (", None", True)],
)
def test_a_device_that_is_handed_on(tmp_path: Path, device: str, reported: bool) -> None:
    (tmp_path / "encoder.py").write_text(dedent(ENCODER).lstrip())
    (tmp_path / "main.py").write_text(dedent(MAIN).lstrip().replace("DEVICE", device))
    findings = check_paths([tmp_path], Config()).findings
    assert any(f.code == "XLA418" for f in findings) is reported


@pytest.mark.parametrize(
    ("style", "device"), [("native", 'device="xla"'), ("portable", "device=shims.device()")]
)
def test_the_model_that_is_trained(tmp_path: Path, style: Style, device: str) -> None:
    (tmp_path / "main.py").write_text(dedent(WRAPPED).lstrip())
    (file,) = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1).files
    (message,) = (n.message for n in file.findings if n.rule == "XLA418")
    assert "moves `torch.nn.Sequential(Wrapped(model))` to the CPU" in message
    assert device in message
