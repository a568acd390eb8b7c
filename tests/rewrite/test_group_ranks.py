"""Saves below a test of the index in a group, which a function of another file makes."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder

RANKS = """
    import torch.distributed as dist

    _GROUP = None


    def enable(ranks):
        global _GROUP
        dist.init_process_group("nccl")
        _GROUP = dist.new_group(ranks)


    def get_rank(group=None):
        return dist.get_rank(group=group)


    def group():
        return _GROUP


    def is_main_process():
        return RANK == 0
"""
TRAIN = """
    import ranks as distributed
    import torch


    def main(folder):
        distributed.enable([0, 1])
        model = torch.nn.Linear(2, 2).cuda()
        main = distributed.is_main_process()
        if TEST:
            torch.save(model.state_dict(), folder + "/a.pt")
"""


def rewritten(folder: Path, rank: str, test: str) -> tuple[str, list[str]]:
    (folder / "ranks.py").write_text(dedent(RANKS).lstrip().replace("RANK ==", f"{rank} =="))
    (folder / "train.py").write_text(dedent(TRAIN).lstrip().replace("TEST", test))
    files = rewrite_folder(folder, processes=1).files
    text = {file.name.name: file.after.decode() for file in files}["train.py"]
    return text, [n.message for file in files for n in file.findings if n.rule == "save"]


def saves_by_group(messages: list[str]) -> bool:
    """Whether a message says that one replica of each group saves."""
    return any("one replica of each group" in message for message in messages)


@pytest.mark.parametrize("test", ["distributed.is_main_process()", "main"])
@pytest.mark.parametrize(
    "rank", ["dist.get_rank(group=_GROUP)", "dist.get_rank(_GROUP)", "get_rank(group=group())"]
)
def test_one_replica_of_each_group_saves(tmp_path: Path, rank: str, test: str) -> None:
    text, messages = rewritten(tmp_path, rank, test)
    assert "xm.save" not in text
    assert saves_by_group(messages)


@pytest.mark.parametrize(
    "rank",
    ["dist.get_rank()", "dist.get_rank(group=dist.group.WORLD)", "get_rank()", "get_rank(None)"],
)
def test_the_first_of_all_saves(tmp_path: Path, rank: str) -> None:
    text, messages = rewritten(tmp_path, rank, "distributed.is_main_process()")
    assert "xm.save(model.state_dict()" in text
    assert messages == []


CHANGED = """
    import torch
    import torch.distributed as dist


    class Switched:
        def __init__(self, group):
            self.group = group
            self._old = None

        def __enter__(self):
            self._old = self.group
            self.group = NEW

        def __exit__(self, *error):
            self.group = self._old

        def save(self, model):
            if dist.get_rank(self.group) == 0:
                torch.save(model.state_dict(), "a.pt")


    def main():
        dist.init_process_group("nccl")
        Switched(dist.new_group([0, 1])).save(torch.nn.Linear(2, 2).cuda())
"""


@pytest.mark.parametrize(("new", "several"), [("None", False), ("dist.new_group([0])", True)])
def test_a_group_that_is_kept_and_put_back(tmp_path: Path, new: str, several: bool) -> None:
    (tmp_path / "train.py").write_text(dedent(CHANGED).lstrip().replace("NEW", new))
    (file,) = rewrite_folder(tmp_path, processes=1).files
    messages = [finding.message for finding in file.findings if finding.rule == "save"]
    assert saves_by_group(messages) == several
