"""A module that another file of the project makes or hands over is one, under whatever name it goes."""

from __future__ import annotations

import textwrap
from pathlib import Path

import libcst as cst
import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.model.calls.analysis import Analysis
from migrate.model.calls.kind import Kind
from migrate.model.facts import calls_of_file
from migrate.model.project.project import Project
from migrate.reading.script import Script
from migrate.syntax.source import parse
from migrate.syntax.tree import nodes_of

NETS = """
    import torch
    import torchvision
    from torch import nn

    class Block(nn.Module):
        def forward(self, x):
            return x

    class Deep(Block):
        pass

    class Plain:
        def __call__(self, x):
            return 3

    def build(deep):
        return Deep() if deep else Block()

    def wrapped():
        return nn.parallel.DistributedDataParallel(build(True))

    def bought():
        return torchvision.models.resnet18()

    def layers():
        return nn.Sequential(nn.Linear(3, 3))

    def either(plain):
        return Plain() if plain else Block()

    class Base:
        def __init__(self):
            self.f = Block()

    shared = Block()
"""


def kinds(folder: Path, files: dict[str, str]) -> list[Kind]:
    """Return the kinds of what `use.py` hands to `asked(…)`, as a file of the project `files`."""
    for name, text in {"nets.py": NETS, **files}.items():
        (folder / name).write_text(textwrap.dedent(text))
    analysis = Analysis(Project.of_files(folder, sorted(folder.rglob("*.py"))))
    path = folder / "use.py"
    script = Script(parse(path.read_bytes(), path), calls_of_file(analysis, path))
    calls = (one for one in nodes_of(script.module, cst.Call) if isinstance(one.func, cst.Name))
    values = [one.args[0].value for one in calls if script.references("asked") and is_asked(one)]
    assert values
    return [script.values.kind(value) for value in values]


def is_asked(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Name) and call.func.value == "asked"


MADE = {
    "returned": "from nets import build\nf = build(True)\nasked(f)",
    "wrapped": "from nets import wrapped\nf = wrapped()\nasked(f)",
    "of a library": "from nets import bought\nf = bought()\nasked(f)",
    "of torch": "from nets import layers\nasked(layers())",
    "a class": "from nets import Deep as D\nf = D()\nasked(f)",
    "a module's": "import nets\nasked(nets.shared)",
    "a star": "from nets import *\nasked(shared)",
    "a partial": "from functools import partial\nfrom nets import build\nf = partial(build, 1)()\nasked(f)",
    "an item": "from nets import build\nfs = [build(i) for i in (0, 1)]\nasked(fs[0])",
    "a base": """
        from nets import Base
        class Runner(Base):
            def run(self, x):
                asked(self.f)
    """,
    "a closure": """
        from nets import build
        def make():
            f = build(True)
            def inner(x):
                asked(f)
            return inner
    """,
}


@pytest.mark.parametrize("way", MADE)
def test_what_another_file_makes(tmp_path: Path, way: str) -> None:
    assert kinds(tmp_path, {"use.py": MADE[way]}) == [Kind.MODEL]


def test_parts_of_a_librarys_are_not_followed(tmp_path: Path) -> None:
    walk = (
        "from nets import bought\nm = bought()\nwhile m:\n    m = m.next\n    m = m.other\nasked(m)"
    )
    assert kinds(tmp_path, {"use.py": walk}) == [Kind.MODEL]


def test_what_another_file_passes(tmp_path: Path) -> None:
    main = "from nets import build\nfrom use import run\nrun(build(True), 3)"
    use = "def run(f, x):\n    y = f(x)\n    asked(f)\n    asked(y)"
    assert kinds(tmp_path, {"use.py": use, "main.py": main}) == [Kind.MODEL, Kind.ON_DEVICE]


@pytest.mark.parametrize("made", ["Plain()", "either(True)", "unknown()"])
def test_what_may_be_none(tmp_path: Path, made: str) -> None:
    assert kinds(tmp_path, {"use.py": f"from nets import *\nf = {made}\nasked(f)"}) == [
        Kind.UNKNOWN
    ]


def test_a_read_of_what_it_gives_is_told(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(textwrap.dedent(NETS))
    (tmp_path / "main.py").write_text(
        "from nets import build\nfrom use import train\ntrain(build(True), loader, optimizer)\n"
    )
    use = """
        import torch

        def train(f, loader, optimizer):
            for x in loader:
                loss = f(x)
                loss.backward()
                optimizer.step()
                if loss > 10:
                    break
    """
    (tmp_path / "use.py").write_text(textwrap.dedent(use))
    found = check_paths([tmp_path], Config()).findings
    assert [(one.path.name, one.line, one.code) for one in found] == [("use.py", 9, "XLA110")]
