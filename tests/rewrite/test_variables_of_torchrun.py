"""Variables that torchrun sets, read where a launched replica has its rank and not these."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """\
import os

import torch.distributed as dist

{definitions}


def main():
{body}
    dist.init_process_group("nccl")


if __name__ == "__main__":
    main()
"""
BY_TORCHRUN = """
def by_torchrun():
    return os.environ.get("LOCAL_RANK") is not None


def master_port():
    if by_torchrun():
        return int(os.environ["MASTER_PORT"])
    return 29500
"""


def reports(body: str, definitions: str = "") -> list[str]:
    text = SCRIPT.format(
        body=textwrap.indent(textwrap.dedent(body).strip(), "    "),
        definitions=textwrap.dedent(definitions).strip(),
    )
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    return [note.message for note in done.findings if "this raises" in note.message]


@pytest.mark.parametrize(
    ("body", "definitions"),
    [
        ('os.environ["MASTER_PORT"] = str(master_port())', BY_TORCHRUN),
        ("port = master_port()\nos.environ['MASTER_PORT'] = str(port)", BY_TORCHRUN),
        ('os.environ.update(MASTER_PORT=f"{master_port()}")', BY_TORCHRUN),
        ('os.environ.setdefault("MASTER_PORT", str(master_port()))', BY_TORCHRUN),
        ("print(master_port())", BY_TORCHRUN),
        ('if "LOCAL_RANK" in os.environ:\n    print(os.environ["MASTER_ADDR"])', ""),
        ('if os.getenv("RANK"):\n    print(int(os.environ["GROUP_RANK"]))', ""),
        ('print(os.environ["MASTER_ADDR"] if "WORLD_SIZE" in os.environ else "here")', ""),
        ('"RANK" in os.environ and print(os.environ["MASTER_PORT"])', ""),
        ('port = os.environ["MASTER_PORT"]\nos.environ["MASTER_PORT"] = port', ""),
    ],
)
def test_a_variable_that_only_torchrun_sets_is_reported(body: str, definitions: str) -> None:
    assert len(reports(body, definitions)) == 1


@pytest.mark.parametrize(
    ("body", "definitions"),
    [
        ('if "MASTER_ADDR" in os.environ:\n    print(os.environ["MASTER_ADDR"])', ""),
        (
            "if by_torchrun():\n    print(os.environ['MASTER_ADDR'])",
            "def by_torchrun():\n    return 'TORCHELASTIC_RUN_ID' in os.environ",
        ),
        ('if dist.is_torchelastic_launched():\n    print(os.environ["MASTER_ADDR"])', ""),
        ('os.environ["MASTER_PORT"] = "1"\nprint(os.environ["MASTER_PORT"])', ""),
        (
            'os.environ["MASTER_PORT"] = "1"\nshow()',
            'def show():\n    print(os.environ["MASTER_PORT"])',
        ),
        ('print(os.environ.get("MASTER_PORT", "none"))', ""),
    ],
)
def test_a_variable_that_is_asked_for_or_set_before_is_not(body: str, definitions: str) -> None:
    assert reports(body, definitions) == []


def test_the_finding_where_it_is_set_says_that_both_go() -> None:
    text = SCRIPT.format(
        body='    os.environ["MASTER_PORT"] = str(master_port())', definitions=BY_TORCHRUN.strip()
    )
    done = rewrite_source(parse(text.encode(), Path("script.py")))
    assert any("MASTER_PORT is also read: remove both" in note.message for note in done.findings)
    assert not any("LOCAL_RANK" in note.message for note in done.findings)


RANKS = """\
import os


def by_torchrun():
    return os.environ.get("LOCAL_RANK") is not None


def local_rank():
    if by_torchrun():
        return int(os.environ["LOCAL_RANK"])
    return 0


def size():
    return int(os.environ["WORLD_SIZE"])
"""
TRAIN = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks import local_rank, size


def main():
    dist.init_process_group("nccl")
    print(DDP(torch.nn.Linear(2, 1).cuda()), local_rank(), size())


if __name__ == "__main__":
    main()
"""
SHOW = """\
import torch

from ranks import {name}


def main():
    print({name}(), torch.nn.Linear(2, 1).cuda())


if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(("name", "lines"), [("local_rank", []), ("size", [15])])
def test_a_script_of_one_process_needs_no_rank_where_it_asks_first(
    tmp_path: Path, name: str, lines: list[int]
) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "show.py").write_text(SHOW.format(name=name))
    files = {file.name.name: file for file in rewrite_folder(tmp_path).files}
    assert b"torch_xla.launch" in files["train.py"].after
    notes = files["ranks.py"].findings if "ranks.py" in files else ()
    found = [note.line for note in notes if note.rule in ("rank-environment", "XLA710")]
    assert found == lines


LOOP = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ranks import local_rank


def main():
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(2, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(4, 2).cuda()).mean() * (1 + local_rank())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
"""


def test_what_the_launcher_sets_is_not_reported_where_a_step_asks_for_it(tmp_path: Path) -> None:
    (tmp_path / "ranks.py").write_text(RANKS)
    (tmp_path / "train.py").write_text(LOOP)
    files = {file.name.name: file for file in rewrite_folder(tmp_path).files}
    assert b'os.environ["LOCAL_RANK"] = ' in files["train.py"].after
    notes = files["ranks.py"].findings if "ranks.py" in files else ()
    assert [note for note in notes if note.rule in ("rank-environment", "XLA710")] == []
