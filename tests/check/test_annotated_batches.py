"""A batch that a forward calls a `dict` is a batch all the same, and settings are none."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file

SCRIPT = """
    import typing
    from typing import Any, Dict, Mapping

    import torch


    class Wrapper(torch.nn.Module):
        def forward(self, data: {annotation}, settings: {annotation}):
            counts = [one.item() for one in data["info"]["counts"]]
            most = max(counts)
            first = data["frames"][:, :most]
            return first[:, : settings["width"]].mean()


    def train(loader, optimizer):
        model = Wrapper().cuda()
        for data in loader:
            loss = model({data}, {{"width": 3}})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


def lengths(folder: Path, annotation: str, data: str) -> list[int]:
    text = dedent(SCRIPT).format(annotation=annotation, data=data).lstrip()
    (folder / "script.py").write_text(text)
    found = check_file(folder / "script.py", Config())
    return [finding.line for finding in found if finding.code == "XLA107"]


@pytest.mark.parametrize(
    "annotation", ["dict", "Dict", "Dict[str, Any]", "typing.Mapping[str, Any]", "dict | None"]
)
def test_a_length_read_from_an_annotated_batch_is_reported(tmp_path: Path, annotation: str) -> None:
    assert lengths(tmp_path, annotation, "data") == [11]


def test_settings_are_no_batch(tmp_path: Path) -> None:
    assert lengths(tmp_path, "dict", '{"info": {"counts": []}, "frames": None}') == []
