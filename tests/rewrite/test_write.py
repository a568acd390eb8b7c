"""Writing the rewritten script: where it goes, and what is never lost."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from converters.errors import OutputError
from migrate.rewrite.pipeline import rewrite
from migrate.rewrite.temporary import rewritten_with_imports, written_apart
from migrate.rewrite.write import NotWritableError, WouldOverwriteError, beside, write

BEFORE = "import torch\nx = torch.zeros(3).cuda()\n"
AFTER = 'import torch\nimport torch_xla\n\nx = torch.zeros(3).to("xla")\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BEFORE)
    return path


def test_beside_the_untouched_original_with_its_permissions(script: Path) -> None:
    script.chmod(0o755)
    target = beside(script)
    assert target.name == "train_xla.py"
    assert write(rewrite(script), target)
    assert (script.read_text(), target.read_text()) == (BEFORE, AFTER)
    assert stat.S_IMODE(target.stat().st_mode) == 0o755
    assert not write(rewrite(script), target)  # nothing to do the second time


def test_another_file_is_not_overwritten(script: Path) -> None:
    target = beside(script)
    target.write_text("# edited by hand\n")
    with pytest.raises(WouldOverwriteError, match=r"train_xla\.py: already exists"):
        write(rewrite(script), target)
    assert target.read_text() == "# edited by hand\n"
    assert write(rewrite(script), target, force=True)
    assert target.read_text() == AFTER


def test_in_place(script: Path) -> None:
    assert write(rewrite(script), script, in_place=True)
    assert script.read_text() == AFTER


def test_read_only_and_missing_targets(script: Path, tmp_path: Path) -> None:
    script.chmod(0o444)
    with pytest.raises(NotWritableError, match=r"train\.py: is read-only"):
        write(rewrite(script), script, force=True)
    with pytest.raises(NotWritableError, match="no such folder"):
        write(rewrite(script), tmp_path / "missing" / "x.py")
    with pytest.raises(NotWritableError, match="is a directory"):
        write(rewrite(script), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_is_refused_without_waiting_for_its_other_end(
    force: bool, script: Path, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NotWritableError, match="pipe: not a file"):
        write(rewrite(script), tmp_path / "pipe", force=force)


def test_an_interrupted_write_leaves_nothing(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OutputError, match="No space left"):
        write(rewrite(script), beside(script))
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_the_temporary_rewrite_is_removed_whatever_happens(script: Path, tmp_path: Path) -> None:
    def interrupted() -> None:
        with written_apart(rewritten_with_imports(script)) as path:
            folders.append(path.parent)
            assert path.read_text() == AFTER
            assert [one.name for one in tmp_path.iterdir()] == ["train.py"]
            raise KeyboardInterrupt

    folders: list[Path] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [folder.exists() for folder in folders] == [False]
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
