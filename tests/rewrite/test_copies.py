"""Copies of a file in one project: each is read by itself."""

from __future__ import annotations

import ast
from pathlib import Path

from migrate.model.project.project import Project
from migrate.rewrite.folder import rewrite_folder

TRAIN = """
import torch
import torch.distributed as dist


def save(path, model, scaler, epoch):
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict(), "epoch": epoch}, path)


def main():
    dist.init_process_group("nccl")
    model = torch.nn.Linear(3, 3).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.cuda.amp.GradScaler()
    for epoch in range(3):
        for _ in range(4):
            loss = model(torch.ones(2, 3, device="cuda")).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if dist.get_rank() == 0:
            save("last.pt", model, scaler, epoch)


if __name__ == "__main__":
    main()
"""


def test_copies_have_no_call_in_common(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("first.py", "second.py")]
    for path in paths:
        path.write_text(TRAIN)
    modules = Project.of_files(tmp_path, paths).modules.values()
    first, second = ({id(n) for n in m.nodes if isinstance(n, ast.Call)} for m in modules)
    assert first
    assert not first & second


def test_each_copy_is_rewritten_as_it_is_alone(tmp_path: Path) -> None:
    alone, copies = tmp_path / "alone", tmp_path / "copies"
    for path in (alone / "train.py", copies / "a" / "train.py", copies / "b" / "train.py"):
        path.parent.mkdir(parents=True)
        path.write_text(TRAIN)
    (expected,) = rewrite_folder(alone, processes=1).files
    done = rewrite_folder(copies, processes=1).files
    assert [file.name.as_posix() for file in done] == ["a/train.py", "b/train.py"]
    assert b"scaler.scale" not in expected.after
    assert not expected.findings
    for file in done:
        assert file.after == expected.after
        assert not file.findings


def test_a_rewritten_script_beside_its_original_changes_nothing(tmp_path: Path) -> None:
    """`migrate rewrite train.py`, then `migrate rewrite . -o COPY`: the first result is in the folder."""
    (tmp_path / "train.py").write_text(TRAIN)
    (alone,) = rewrite_folder(tmp_path, processes=1).files
    (tmp_path / "train_xla.py").write_bytes(alone.after)
    done = {file.name.as_posix(): file for file in rewrite_folder(tmp_path, processes=1).files}
    assert done["train.py"].after == alone.after
    assert not done["train.py"].findings
