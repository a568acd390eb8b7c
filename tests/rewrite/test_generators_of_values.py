"""Loops that yield: no step is open while who takes the value works."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent, indent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

HEAD = """
    import torch


    def run(model, optimizer, loader):
"""
EVALUATIONS = [
    """
    image = torch.zeros(2, 4).cuda()
    for x in loader:
        t = torch.tensor([x]).cuda()
        with torch.no_grad():
            out = model(image, t)
            yield out
            image = out["sample"] * 2
    """,
    """
    for x in loader:
        with torch.no_grad():
            out = model(x.cuda())
            yield out
            print("taken")
    """,
    """
    with torch.no_grad():
        for x in loader:
            yield model(x.cuda())
    """,
    """
    for x in loader:
        with torch.no_grad():
            out = model(x.cuda())
            yield from out
            print("taken")
    """,
    """
    with torch.no_grad():
        for x in loader:
            out = model(x.cuda())
            yield out
            print("taken")
    """,
]
TRAININGS = [
    """
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.cuda()).mean()
        yield loss
        loss.backward()
        optimizer.step()
    """,
    """
    for x in loader:
        with torch.autocast("cuda"):
            optimizer.zero_grad()
            loss = model(x.cuda()).mean()
            loss.backward()
            optimizer.step()
            yield loss
    """,
    """
    for x in loader:
        optimizer.zero_grad()
        loss = model(x.cuda()).mean()
        loss.backward()
        optimizer.step()
        yield loss
    """,
]


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize("body", [*EVALUATIONS, *TRAININGS])
def test_no_step_holds_a_yield(tmp_path: Path, style: Style, body: str) -> None:
    text = dedent(HEAD).lstrip() + indent(dedent(body).lstrip("\n"), "    ")
    (tmp_path / "main.py").write_text(text)
    (file,) = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1).files
    lines = (file.after or b"").decode().splitlines()
    steps = [number for number, line in enumerate(lines) if line.endswith(".step():")]
    for number in steps:
        deeper = " " * (len(lines[number]) - len(lines[number].lstrip()) + 1)
        end = next(
            (i for i, line in enumerate(lines[number + 1 :]) if not line.startswith(deeper)), None
        )
        inside = lines[number + 1 :][:end]
        assert inside
        assert not any("yield" in line for line in inside)
    assert steps or any(
        note.rule in ("step", "evaluation-loop", "XLA116") for note in file.findings
    )


def test_the_block_goes_inside_above_the_yield(tmp_path: Path) -> None:
    text = dedent(HEAD).lstrip() + indent(dedent(EVALUATIONS[0]).lstrip("\n"), "    ")
    (tmp_path / "main.py").write_text(text)
    (file,) = rewrite_folder(tmp_path, processes=1).files
    after = (file.after or b"").decode()
    assert (
        "            with torch_xla.step():\n"
        "                out = model(image, t)\n"
        "            yield out\n"
    ) in after
