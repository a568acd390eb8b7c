"""The work by hand for torch_xla and for torch_tpu, and which of them needs less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from migrate.assess.code import code_of
from migrate.assess.facts import Code
from migrate.assess.hours import read_hours
from migrate.assess.targets import efforts
from migrate.catalogue.target import TARGETS, Target
from migrate.check.config import Config
from migrate.check.manual_work import ManualWork
from migrate.report.text.assess import code_sentence, target_lines
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions
from tests.assess.sample_assessments import assessment, code, todo

STEP = todo(ManualWork.STEP)
KERNELS = todo(ManualWork.KERNELS)


@pytest.mark.parametrize(
    ("on_xla", "on_tpu", "easier"),
    [
        (code(STEP), code(), "torch_tpu"),
        (code(), code(STEP), "torch_xla"),
        (code(STEP), code(STEP), None),
        (code(STEP), code(todo(ManualWork.CALLS)), "torch_tpu"),
        # A place to look at is a few minutes.
        (code(STEP, todo(look=True)), code(STEP), None),
        # What keeps every run from a TPU decides before the hours.
        (
            code(KERNELS),
            code(*(replace(STEP, place=f"a.py:{n}:1") for n in range(999))),
            "torch_tpu",
        ),
    ],
)
def test_less_by_hand(on_xla: Code, on_tpu: Code, easier: Target | None) -> None:
    found = assessment(left=on_xla, on_tpu=on_tpu)
    assert found.decision.easier == easier
    *_, said = target_lines(found)
    assert said.startswith(f"{easier or 'both targets'} need")


@pytest.mark.parametrize(
    ("files", "rewritten", "edits", "says"),
    [
        (3, 1, 9, "3 files, 9 edits in 1 of them are made by `migrate rewrite`"),
        (3, 3, 9, "3 files, 9 edits in all 3 are made by `migrate rewrite`"),
        (1, 1, 1, "1 file, 1 edit in it is made by `migrate rewrite`"),
        (4, 0, 0, "4 files, nothing in them is left to `migrate rewrite`"),
    ],
)
def test_files_and_edits_in_words(files: int, rewritten: int, edits: int, says: str) -> None:
    assert code_sentence(replace(code(), files=files, rewritten=rewritten, edits=edits)) == says


def test_places_of_one_target_only_are_named() -> None:
    other = replace(STEP, place="other.py:3:1")
    first, second, _ = target_lines(assessment(left=code(STEP, other), on_tpu=code(STEP)))
    assert first.startswith("torch_xla: 2 places by hand, 0 places to look at, 9 edits")
    assert first.endswith("not for the other target: other.py:3:1")
    assert second.startswith("torch_tpu: 1 place by hand")
    assert "other.py" not in second


SCRIPT = """
import torch
from torch.distributed.fsdp import fully_shard

model = fully_shard(torch.nn.Linear(4, 4).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(2, 4).cuda()).sum().backward()
    optimizer.step()
"""


def test_fsdp_is_work_for_torch_xla_only(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    by_target = {
        target: code_of(
            rewrite_folder(tmp_path, options=RewriteOptions(config=Config(target=target))),
            tmp_path / "train.py",
        )
        for target in TARGETS
    }
    known = assessment(left=by_target["torch_xla"], on_tpu=by_target["torch_tpu"]).known
    on_xla, on_tpu = efforts(known, read_hours())
    assert {entry.work for entry in on_xla.only} == {ManualWork.SHARDING}
    assert on_tpu.only == ()
