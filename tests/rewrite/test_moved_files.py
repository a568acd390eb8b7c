"""Files that are renamed, removed or copied after a save in which all replicas take part."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.rules.saving.saving import STAYS_ON_FIRST

UTILS = """
    import os
    import shutil

    import torch
    import torch.distributed as dist


    def checkpoint(model, optimizer=None, path="a.pt", old="", best=False):
        if optimizer is not None:
            temporary = path + ".tmp"
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, temporary)
            AFTER
            print(dist.get_world_size())
            return None
        return torch.load(path, map_location="cpu")
"""
TRAIN = """
    import torch
    import torch.distributed as dist
    from utils import checkpoint


    def main():
        dist.init_process_group("nccl")
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if dist.get_rank() == 0:
            checkpoint(model, optimizer)


    if __name__ == "__main__":
        main()
"""
FIRST = {
    "native": "xm.is_master_ordinal(local=False)",
    "portable": "shims.is_main()",
}


def rewritten(folder: Path, after: str, style: Style = "native") -> tuple[str, list[str]]:
    (folder / "utils.py").write_text(dedent(UTILS).lstrip().replace("AFTER", after))
    (folder / "train.py").write_text(dedent(TRAIN).lstrip())
    files = rewrite_folder(folder, options=RewriteOptions(style=style), processes=1).files
    text = {file.name.name: file.after.decode() for file in files}["utils.py"]
    messages = [note.message for file in files for note in file.findings if note.rule == "save"]
    return text, messages


def is_left_to_the_first(messages: list[str]) -> bool:
    """Whether a message says that the first replica changes the file."""
    return any(STAYS_ON_FIRST in message for message in messages)


@pytest.mark.parametrize(
    "after",
    [
        "os.replace(temporary, path)",
        "os.rename(temporary, path)",
        "shutil.move(str(temporary), path)",
        "shutil.copyfile(temporary, path)",
        "temporary.rename(path)",
    ],
)
@pytest.mark.parametrize("style", ["native", "portable"])
def test_the_first_replica_moves_its_file(tmp_path: Path, after: str, style: Style) -> None:
    text, messages = rewritten(tmp_path, after, style)
    assert "torch.save(" not in text
    lines = text.splitlines()
    at = lines.index(f"            {after}")
    assert lines[at - 1].startswith("        if ")
    assert "main" in lines[at - 1] or "master" in lines[at - 1]
    assert is_left_to_the_first(messages)


def test_below_a_condition(tmp_path: Path) -> None:
    text, _ = rewritten(tmp_path, "if best:\n            shutil.copyfile(temporary, 'best.pt')")
    assert "        if best and xm.is_master_ordinal(local=False):\n" in text


@pytest.mark.parametrize(
    "after",
    [
        "os.replace(old, path)",  # another file
        "print(temporary)",
        "if dist.get_rank() == 0:\n            os.replace(temporary, path)",
    ],
)
def test_what_stays(tmp_path: Path, after: str) -> None:
    text, messages = rewritten(tmp_path, after)
    assert "is_master_ordinal" not in text
    assert f"        {after}\n" in text
    assert not is_left_to_the_first(messages)
