"""What Python warns of in the user's code is not said by us, once for each time that we read it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import migrate.reading
from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder

TRAIN = r"""
import re
import torch
import helper

NUMBER = re.compile("\d+" "\w")


def main():
    model = torch.nn.Linear(2, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(1, 2).cuda()).sum()
        loss.backward()
        optimizer.step()


main()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "helper.py").write_text(r'WORD = "\w"')
    return folder


# All warnings are errors in the tests.
def test_invalid_escapes_are_read_in_silence(project: Path) -> None:
    for path, files in ((project / "train.py", 1), (project, 2)):
        assert check_paths([path], Config()).files == files
    assert rb'"\d+" "\w"' in rewrite_file(project / "train.py").data
    assert [file.problem for file in rewrite_folder(project).files if file.problem] == []


def test_the_users_code_is_parsed_in_one_place() -> None:
    package = Path(migrate.reading.__file__).parents[1]
    places = [
        str(path.relative_to(package))
        for room in ("syntax", "catalogue", "model", "reading", "check", "rewrite")
        for path in (package / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ast.parse"
    ]
    assert places == ["syntax/interpreter.py"]
