"""Modules of the script that the program's files would hide."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from migrate.train.write.shadow import guarded, hidden_modules
from migrate.train.write.texts import data_text

FILES = ("config", "data", "loss", "model", "optimizer", "train")


@pytest.mark.parametrize(
    ("source", "hidden", "late"),
    [
        ("import torch, loss", (), ""),
        ("from model import Net", ("model",), ""),
        ("from data.sets import Words", ("data",), ""),
        ("def batches():\n    from data.sets import Words", ("data",), "data"),
        ("from helper import words", ("config",), ""),
        ("from lazy import words", ("model",), "model"),
        ("import fine.inner", (), ""),
        ("import optimizer.lr", (), ""),
    ],
)
def test_modules_that_the_program_hides(
    tmp_path: Path, source: str, hidden: tuple[str, ...], late: str
) -> None:
    (tmp_path / "model.py").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "sets.py").write_text("")
    (tmp_path / "helper.py").write_text("import config\n")
    (tmp_path / "config.py").write_text("import helper\n")
    (tmp_path / "lazy.py").write_text("def words():\n    import model\n")
    (tmp_path / "fine").mkdir()
    (tmp_path / "fine" / "inner.py").write_text("from . import model\n")
    result = hidden_modules(source, tmp_path, FILES)
    assert (result.names, result.late) == (hidden, late)


def test_a_relative_import_of_a_function_in_a_hidden_package_is_late(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "__init__.py").write_text("def words():\n    from . import sets\n")
    assert hidden_modules("import data", tmp_path, FILES).late == "data"


def test_data_of_the_script_and_files_of_the_program_have_one_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, program = tmp_path / "script", tmp_path / "program"
    script.mkdir()
    program.mkdir()
    (script / "config.py").write_text("COUNT = 2\n")
    (script / "data.py").write_text("import config\nROWS = list(range(config.COUNT))\n")
    (program / "config.py").write_text("ARGV = []\n")
    source = (
        "import math\nfrom data import ROWS\nimport config as settings\n\n\n"
        "def micro_batches():\n    for row in ROWS:\n"
        "        yield {'x': row + settings.COUNT}\n        yield None"
    )
    hidden = hidden_modules(source, script, FILES).names
    text = data_text(
        guarded(source, script), "train.py", f"Path({str(script)!r})", restores=False, hidden=hidden
    )
    (program / "data.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(program), *sys.path])
    for name in ("data", "config"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import config  # type: ignore[import-not-found]
    import data  # type: ignore[import-not-found]

    assert [micro[0]["x"] for micro in data.batches()] == [2, 3]
    assert Path(data.__file__).parent == Path(config.__file__).parent == program
    assert sys.modules["data"] is data
    for name in ("data", "config"):
        monkeypatch.delitem(sys.modules, name)
