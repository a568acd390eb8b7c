"""Processes that one file starts and that join a process group in another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.results import FileRewrite

DIST = """\
import torch.distributed as dist


def init_distributed(rank, world_size):
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    return rank


class Trainer:
    def run(self, rank):
        init_distributed(rank, 2)
"""
MAIN = """\
{imports}

from dist import Trainer, init_distributed


def work(rank, size):
    init_distributed(rank, size)
    print(rank)


def shard(number):
    print(number)


{definitions}
if __name__ == "__main__":
    size = 2
{body}
"""
TORCH = "import torch.multiprocessing as mp"
LOOP = """\
    for rank in range(size):
        {call}.start()
"""


def rewritten(
    folder: Path, body: str, imports: str = TORCH, definitions: str = ""
) -> FileRewrite | None:
    (folder / "dist.py").write_text(DIST)
    (folder / "main.py").write_text(
        MAIN.format(imports=imports, body=body, definitions=definitions)
    )
    return next((f for f in rewrite_folder(folder).files if f.name.name == "main.py"), None)


def reports(file: FileRewrite | None) -> list[str]:
    assert file is not None
    return [note.message for note in file.findings if note.rule == "mp-process"]


@pytest.mark.parametrize(
    "imports",
    [TORCH, "import multiprocessing as mp", "import torch.multiprocessing as mp\nimport os"],
)
def test_a_loop_whose_worker_joins_by_another_file(tmp_path: Path, imports: str) -> None:
    body = LOOP.format(call="mp.Process(target=work, args=(rank, size))")
    file = rewritten(tmp_path, body, imports)
    assert file is not None
    assert b"torch_xla.launch(work)" in file.after
    assert b"Process" not in file.after


@pytest.mark.parametrize(
    ("call", "imports", "definitions"),
    [
        ("Process(target=Trainer().run, args=(rank,))", "from multiprocessing import Process", ""),
        (
            "context.Process(target=work, args=(rank, size))",
            TORCH,
            'context = mp.get_context("spawn")',
        ),
        ('mp.get_context("spawn").Process(target=work, args=(rank, size))', TORCH, ""),
        (
            "mp.Process(target=partial(work, rank), args=(size,))",
            f"from functools import partial\n\n{TORCH}",
            "",
        ),
        ("mp.Process(None, init_distributed, args=(rank, size))", TORCH, ""),
        ("mp.Process(target=work, kwargs=dict(rank=rank, size=size))", TORCH, ""),
        (
            "Started(target=work, args=(rank, size))",
            "from multiprocessing import Process as Started",
            "",
        ),
        (
            "Worker(rank)",
            TORCH,
            "class Worker(mp.Process):\n    def __init__(self, rank):\n        super().__init__()\n"
            "        self.rank = rank\n\n    def run(self):\n        work(self.rank, 2)\n\n",
        ),
    ],
)
def test_processes_that_are_made_otherwise_are_reported_or_launched(
    tmp_path: Path, call: str, imports: str, definitions: str
) -> None:
    file = rewritten(tmp_path, LOOP.format(call=call), imports, definitions)
    assert file is not None
    assert b"torch_xla.launch" in file.after or len(reports(file)) == 1


@pytest.mark.parametrize(
    "call",
    [
        "mp.Process(target=shard, args=(rank,))",
        "mp.Process(target=print, args=(rank,))",
        "mp.Pool(2).map(shard, range(8))",
    ],
)
def test_processes_that_join_no_group_stay(tmp_path: Path, call: str) -> None:
    file = rewritten(tmp_path, LOOP.format(call=call))
    assert file is None or not (file.changed or reports(file))


@pytest.mark.parametrize(
    "line",
    [
        "[mp.Process(target=work, args=(rank, size)) for rank in range(size)]",
        "mp.Pool(size).starmap(work, [(rank, size) for rank in range(size)])",
        "ProcessPoolExecutor(size).submit(work, 0, size)",
    ],
)
def test_several_processes_at_once(tmp_path: Path, line: str) -> None:
    imports = f"from concurrent.futures import ProcessPoolExecutor\n\n{TORCH}"
    (message,) = reports(rewritten(tmp_path, f"    done = {line}\n", imports))
    assert "torch_xla.launch(work, args=(…))" in message


def test_a_process_that_loads_data_does_not_keep_a_script_from_its_launch(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("""\
import multiprocessing as mp

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def prepare(shard):
    print(shard)


def main():
    loader = mp.Process(target=prepare, args=(0,))
    loader.start()
    dist.init_process_group("nccl")
    model = DDP(torch.nn.Linear(2, 1).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = model(torch.ones(4, 2).cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loader.join()


if __name__ == "__main__":
    main()
""")
    (file,) = rewrite_folder(tmp_path).files
    assert b"torch_xla.launch(_mp_fn)" in file.after
    assert b"mp.Process(target=prepare, args=(0,))" in file.after


def test_a_spawn_whose_worker_joins_by_another_file(tmp_path: Path) -> None:
    file = rewritten(tmp_path, "    mp.spawn(work, args=(size,), nprocs=size)\n")
    assert file is not None
    assert b"torch_xla.launch(work)" in file.after


@pytest.mark.parametrize("line", ["Worker(rank).start()", "p = Worker(rank)\n        p.start()"])
def test_a_class_of_another_file_in_a_file_that_says_nothing_of_torch(
    tmp_path: Path, line: str
) -> None:
    (tmp_path / "dist.py").write_text(DIST)
    (tmp_path / "workers.py").write_text("""\
from multiprocessing import Process

from dist import init_distributed


class Worker(Process):
    def __init__(self, rank):
        super().__init__()
        self.rank = rank

    def run(self):
        init_distributed(self.rank, 2)
""")
    (tmp_path / "main.py").write_text(
        "from workers import Worker\n\nif __name__ == '__main__':\n"
        f"    for rank in range(2):\n        {line}\n"
    )
    file = next(one for one in rewrite_folder(tmp_path).files if one.name.name == "main.py")
    assert len(reports(file)) == 1
