"""Programs that `migrate train` and `migrate port` wrote stay as they are in the project around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import DEFAULT
from migrate.written import RECORD

DATA = "import bitsandbytes\nimport torch.distributed as dist\n\ndist.init_process_group('gloo')\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path in (tmp_path / "train.py", tmp_path / "jax_program" / "data.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(DATA)
    (tmp_path / "jax_program" / RECORD).write_text("{}")
    return tmp_path


def test_a_written_program_is_not_rewritten_with_the_project(project: Path) -> None:
    done = rewrite_folder(project, options=DEFAULT, processes=1)
    assert [file.name.as_posix() for file in done.changed] == ["train.py"]
    (project / "jax_program" / RECORD).unlink()
    assert len(rewrite_folder(project, options=DEFAULT, processes=1).changed) == 2


def test_a_written_program_is_not_checked_unless_it_is_named(project: Path) -> None:
    found = check_paths([project], Config())
    assert {finding.path.name for finding in found.findings} == {"train.py"}
    assert check_paths([project / "jax_program"], Config()).findings
