"""What is left by hand of the files that a script runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from migrate.assess.code import code_of
from migrate.assess.facts import Code
from migrate.check.manual_work import ManualWork
from migrate.rewrite.folder import rewrite_folder
from tests.assess import projects


def read(folder: Path) -> Code:
    return code_of(rewrite_folder(folder, processes=1), folder / "train.py")


def test_plain_ddp_has_nothing_that_blocks(tmp_path: Path) -> None:
    found = read(projects.plain(tmp_path))
    assert (found.files, found.rewritten, found.reached) == (2, 1, 2)
    assert found.edits > 3
    assert found.by_hand == found.blocking == ()


@pytest.mark.parametrize(
    ("project", "work", "place"),
    [
        (projects.deepspeed, ManualWork.FRAMEWORK, "train.py:3:1"),
        (projects.kernels, ManualWork.KERNELS, "op/fused.py:4:1"),
    ],
)
def test_what_no_tpu_has_blocks(
    project: Callable[[Path], Path], work: ManualWork, place: str, tmp_path: Path
) -> None:
    (one,) = read(project(tmp_path)).blocking
    assert (one.work, one.place) == (work, place)


def test_fsdp_is_more_than_a_call(tmp_path: Path) -> None:
    found = read(projects.sharded(tmp_path))
    assert {one.work for one in found.by_hand} == {ManualWork.SHARDING}
    assert len(found.by_hand) > 1


def test_what_is_imported_where_it_is_there_blocks_nothing(tmp_path: Path) -> None:
    found = read(projects.optional(tmp_path))
    assert found.blocking == ()
    (one,) = [one for one in found.todo if one.work is ManualWork.FRAMEWORK]
    assert not one.always
    # Triton, in a file that the script does not run.
    assert found.elsewhere == 1
