"""A batch that a forward calls a `dict` is a batch all the same, and settings are none."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.check.project import check_paths

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


DECLARED = """
    from __future__ import annotations

    import typing
    from dataclasses import dataclass

    import torch


    {decorator}
    class Rows{base}:
        values: torch.Tensor
        kept: {declared}
        count: int
"""
NET = """
    import torch
    from rows import Rows


    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 4)

        def forward(self, rows: {annotation}):
            kept = rows.kept[:, 0]
            if rows.values.isnan().any():
                raise ValueError("not a number")
            return self.layer(rows.values)[kept].mean() * rows.count
"""
TRAIN = """
    from net import Net


    def train(loader, optimizer):
        net = Net().cuda()
        for rows in loader:
            loss = net(rows.to("cuda"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""


@pytest.mark.parametrize(
    ("declared", "base", "annotation", "codes"),
    [
        ("torch.BoolTensor", "", "Rows", ["XLA110", "XLA103"]),
        ("torch.BoolTensor | None", "", "Rows | None", ["XLA110", "XLA103"]),
        ('Bool[torch.Tensor, "b n"]', "", "Rows", ["XLA110", "XLA103"]),
        (
            '"typing.Optional[torch.BoolTensor]"',
            "(typing.NamedTuple)",
            "Rows",
            ["XLA110", "XLA103"],
        ),
        ("torch.LongTensor", "", "Rows", ["XLA110"]),  # positions, as many as before
        ("slice", "", "Rows", ["XLA110"]),
    ],
)
def test_an_attribute_is_the_tensor_that_its_class_declares(
    tmp_path: Path, declared: str, base: str, annotation: str, codes: list[str]
) -> None:
    texts = {
        "rows": DECLARED.format(
            decorator="" if base else "@dataclass", base=base, declared=declared
        ),
        "net": NET.format(annotation=annotation),
        "train": TRAIN,
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(dedent(text).lstrip())
    checked = check_paths([tmp_path], Config())
    assert [f.code for f in checked.findings if f.path.name == "net.py"] == codes
