"""A script that is rewritten for a run together with what it imports from its own folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.place import Place
from migrate.rewrite.original import at_originals
from migrate.rewrite.temporary import (
    NotInFolderError,
    rewritten_in,
    rewritten_with_imports,
    written_apart,
)
from shims._started import stand_in

MAIN = """\
import sys

sys.path.append("..")
from engine.loop import train
from net import Net

if __name__ == "__main__":
    train(Net())
"""
LOOP = """\
import torch
import torch.distributed as dist


def train(net):
    dist.init_process_group("nccl")
    net.to("cuda")
    return net
"""
NET = """\
class Net:
    def to(self, device):
        return self
"""
UNREACHED = """\
import torch

torch.ones(1).cuda()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name, text in (
        ("scripts/main.py", MAIN),
        ("engine/__init__.py", ""),
        ("engine/loop.py", LOOP),
        ("net.py", NET),
        ("other.py", UNREACHED),
        ("pyproject.toml", ""),
        ("data.txt", "1"),
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_what_it_imports_is_rewritten_and_nothing_else(project: Path) -> None:
    done = rewritten_with_imports(project / "scripts" / "main.py")
    assert "engine/loop.py" in done.changed
    assert project / "other.py" not in done.contents
    assert project / "net.py" not in done.contents
    assert b'"xla"' in done.contents[project / "engine" / "loop.py"]
    with written_apart(done) as script:
        (path,) = [path for path in stand_in.files(script) if path.name == "loop.py"]
        file = stand_in.files(script)[path]
        line = next(
            number
            for number, text in enumerate(file.read_text().splitlines(), 1)
            if "net.to(" in text
        )
        places = at_originals(project / "scripts" / "main.py", script)
        assert places(f"{file}:{line}").endswith("engine/loop.py:7")
        assert stand_in.stands_for(script) == project / "scripts" / "main.py"
    assert not file.exists()


def test_a_script_that_imports_nothing_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(UNREACHED)
    done = rewritten_with_imports(tmp_path / "train.py")
    assert done.changed == (str(tmp_path / "train.py"),)
    assert set(done.contents) == {tmp_path / "train.py"}


def test_a_rewritten_copy_of_the_project(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for name, text in (
        ("scripts/main.py", "import extra\n"),
        ("engine/loop.py", LOOP),
        ("extra.py", "NEW = True\n"),
        ("data.txt", "2"),
    ):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text)
    script = project / "scripts" / "main.py"
    done = rewritten_in(copy, script)
    names = ["data.txt", "extra.py", "scripts/main.py"]
    assert sorted(str(path.relative_to(project)) for path in done.contents) == names
    with written_apart(done) as rewritten:
        home = tmp_path / "home"
        home.mkdir()
        place = Place(home, rewritten, project)
        assert place.inside(project / "data.txt").read_text() == "2"
        assert place.inside(project / "extra.py").read_text() == "NEW = True\n"
        assert place.inside(project / "net.py").read_text() == NET


def test_a_folder_without_the_script(project: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotInFolderError, match=r"has no main\.py"):
        rewritten_in(tmp_path / "empty", project / "scripts" / "main.py")
