"""XLA885: torch.distributed under Accelerate, which joins no process group on XLA."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.codes import code_of

SCRIPT = """\
import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    accelerator = Accelerator()
    {line}
    dist.barrier()


if __name__ == "__main__":
    main()
"""


def found(folder: Path, line: str, other: str = "") -> list[tuple[str, int, str]]:
    (folder / "train.py").write_text(SCRIPT.format(line=line))
    if other:
        (folder / "other.py").write_text(other)
    files = {file.name.as_posix(): file for file in rewrite_folder(folder, processes=1).files}
    findings = files["train.py"].findings
    notes = [(code_of(f), f.line, f.message) for f in findings]
    return [note for note in notes if note[0] in ("XLA885", "XLA306")]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("rank = dist.get_rank()", "`accelerator.process_index`"),
        ("dist.all_reduce(torch.ones(2))", "`accelerator.reduce(x)`"),
        ("model = DDP(torch.nn.Linear(2, 2))", "`accelerator.prepare(model)`"),
    ],
)
def test_one_finding_names_all_lines(tmp_path: Path, line: str, instead: str) -> None:
    ((rule, at, message),) = found(tmp_path, line)
    assert (rule, at) == ("XLA885", 9)
    assert f"{instead}, `accelerator.wait_for_everyone()`" in message
    assert "`dist.barrier` (line 10)" in message


def test_a_project_that_joins_a_group_itself_is_left(tmp_path: Path) -> None:
    other = "import torch.distributed as dist\n\ndist.init_process_group('xla')\n"
    rules = [rule for rule, _, _ in found(tmp_path, "rank = dist.get_rank()", other)]
    assert rules == ["XLA306"]


def test_a_question_whether_there_is_a_group_is_left(tmp_path: Path) -> None:
    line = "if dist.is_initialized():\n        print(dist.get_rank())"
    assert "XLA885" not in [rule for rule, _, _ in found(tmp_path, line)]


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        (
            "dist.reduce_scatter(out, parts)",
            "accelerator.reduce(torch.stack(parts))[accelerator.process_index]",
        ),
        (
            "dist.reduce_scatter_tensor(out, x)",
            "accelerator.reduce(x).chunk(accelerator.num_processes)[accelerator.process_index]",
        ),
        (
            "dist.scatter_object_list(out, objects)",
            "accelerate.utils.broadcast_object_list(objects)[accelerator.process_index]",
        ),
    ],
)
def test_each_process_is_told_to_take_its_own_part(tmp_path: Path, line: str, instead: str) -> None:
    [(_, _, message)] = [note for note in found(tmp_path, line) if note[0] == "XLA885"]
    assert f"`{instead}`" in message


STATE_ALONE = """\
import torch
import torch.distributed as dist
from accelerate import PartialState
from torch.nn.parallel import DistributedDataParallel as DDP


def main(loader):
    state = PartialState()
    {joins}
    torch.cuda.set_device(device := state.local_process_index)
    model = DDP(torch.nn.Linear(2, 2).to(device), device_ids=[device])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x in loader:
        optimizer.zero_grad()
        model(x.to(device)).mean().backward()
        optimizer.step()
    dist.barrier()


main([])
"""


@pytest.mark.parametrize(
    ("joins", "lines"), [("pass", [11]), ("dist.init_process_group('nccl')", [])]
)
def test_the_state_alone_joins_no_group_either(
    tmp_path: Path, joins: str, lines: list[int]
) -> None:
    (tmp_path / "train.py").write_text(STATE_ALONE.format(joins=joins))
    (file,) = rewrite_folder(tmp_path, processes=1).files
    found = [note for note in file.findings if code_of(note) == "XLA885"]
    assert [note.line for note in found] == lines
    assert all("init_process_group('xla', init_method='xla://')" in note.message for note in found)
