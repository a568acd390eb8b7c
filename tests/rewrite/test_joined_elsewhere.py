"""A process group that another file of the project joins, under whatever name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions

GROUP = """\
import torch


def start(device="cuda"):
    {body}


def _join():
    torch.distributed.init_process_group("nccl")
"""
TRAIN = """\
import torch

from lib import group


def main(model, loader, optimizer):
    {starts}
    model.cuda()
    for x in loader:
        model(x.cuda()).sum().backward()
        optimizer.step()


if __name__ == "__main__":
    main(None, [], None)
"""
AT_MODULE_LEVEL = """\
from lib.group import start

start()
model = make().cuda()
for x in loader:
    model(x.cuda()).sum().backward()
    optimizer.step()
"""
BY_COMMAND = """\
import click
import torch

from lib import group


@click.group()
def main():
    pass


@main.command()
def calc():
    group.start()
    print(torch.ones(3, device="cuda"))


if __name__ == "__main__":
    main()
"""
SUBMITTED = """\
import submitit
import torch

from lib import group


class Trainer:
    def __call__(self):
        group.start()
        print(torch.ones(3).cuda())


def main():
    print(submitit.AutoExecutor(folder="jobs").submit(Trainer()).job_id)


if __name__ == "__main__":
    main()
"""


def rewritten(folder: Path, script: str, body: str) -> str:
    (folder / "lib").mkdir()
    (folder / "lib/__init__.py").touch()
    (folder / "lib/group.py").write_text(GROUP.format(body=body))
    (folder / "train.py").write_text(script)
    done = rewrite_folder(folder, processes=1)
    assert not [file.problem for file in done.files if file.problem]
    return {file.name.as_posix(): file.after.decode() for file in done.files}["train.py"]


@pytest.mark.parametrize("body", ["_join()", 'torch.distributed.init_process_group("nccl")'])
def test_what_joins_is_found_by_what_it_calls(body: str, tmp_path: Path) -> None:
    done = rewritten(tmp_path, TRAIN.format(starts="group.start()"), body)
    assert done.endswith('if __name__ == "__main__":\n    torch_xla.launch(_mp_fn)\n')


def test_at_module_level(tmp_path: Path) -> None:
    done = rewritten(tmp_path, AT_MODULE_LEVEL, "_join()")
    assert 'torch_xla.launch(_mp_fn, start_method="fork")' in done


def test_in_a_command_of_a_group(tmp_path: Path) -> None:
    assert "torch_xla.launch(_mp_fn)" in rewritten(tmp_path, BY_COMMAND, "_join()")


def test_what_joins_nothing_launches_nothing(tmp_path: Path) -> None:
    done = rewritten(tmp_path, TRAIN.format(starts="group.start()"), "torch.manual_seed(1)")
    assert "launch" not in done


def test_what_is_handed_to_a_cluster_runs_there(tmp_path: Path) -> None:
    done = rewritten(tmp_path, SUBMITTED, "_join()")
    assert "launch" not in done


LAUNCH = """\
import torch.multiprocessing as mp


def launch(worker, count, args):
    if count > 1:
        mp.spawn(_work, nprocs=count, args=(worker, args))
    else:
        worker(*args)


def _work(rank, worker, args):
    worker(*args)
"""
LAUNCHED = """\
import torch
from torch.nn.parallel import DistributedDataParallel

from launching import launch


def main(model, loader):
    model = DistributedDataParallel(model.cuda())
    for x in loader:
        print(model(x.cuda()))


if __name__ == "__main__":
    launch(main, 2, (None, []))
"""


def test_a_launcher_of_another_file_is_the_only_one(tmp_path: Path) -> None:
    (tmp_path / "launching.py").write_text(LAUNCH)
    (tmp_path / "evaluate.py").write_text(LAUNCHED)
    done = rewrite_folder(tmp_path, processes=1)
    after = {file.name.name: file.after.decode() for file in done.files}
    assert "torch_xla.launch(_work" in after["launching.py"]
    assert after["evaluate.py"].endswith(
        'if __name__ == "__main__":\n    launch(main, 2, (None, []))\n'
    )
    assert "_mp_fn" not in after["evaluate.py"]


ABSENT = """\
import torch
{line}
from lib.net import Net


def train(args):
    {call}(args)
    model = Net().cuda()
    return torch.nn.parallel.DistributedDataParallel(model, device_ids=[args.gpu])
"""


@pytest.mark.parametrize(
    ("line", "call", "module"),
    [
        ("import other.misc as misc", "misc.init_distributed_mode", "other.misc"),
        ("from other.misc import init_distributed_mode", "init_distributed_mode", "other.misc"),
        ("from other.start import setup_ddp as begin", "begin", "other.start"),
        ("import lib.misc as misc", "misc.init_distributed_mode", ""),
        ("import lib.misc as misc", "misc.prepare", ""),
    ],
)
@pytest.mark.parametrize("style", ["native", "portable"])
def test_a_group_that_a_package_joins_which_is_not_there(
    line: str, call: str, module: str, style: Literal["native", "portable"], tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/__init__.py").write_text("")
    (tmp_path / "lib/net.py").write_text(
        "import torch\n\n\nclass Net(torch.nn.Linear):\n    pass\n"
    )
    (tmp_path / "lib/misc.py").write_text(
        "import torch.distributed as dist\n\n\ndef init_distributed_mode(args):\n"
        "    dist.init_process_group('nccl')\n\n\ndef prepare(args):\n    init_distributed_mode(args)\n"
    )
    (tmp_path / "train.py").write_text(ABSENT.format(line=line, call=call))
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    messages = [
        note.message
        for at, note in done.left_to_do
        if at.name == "train.py" and note.rule == "init-process-group"
    ]
    if not module:
        assert messages == []
    else:
        assert len(messages) == 1
        assert f"`{module}` is no file of this project" in messages[0]


NAMED = """\
import torch.distributed as dist


def set_up(backend, port="1234"):
    print("joins by", port)
    dist.init_process_group(backend)


class Group:
    def __init__(self, backend):
        dist.init_process_group(backend)
"""


@pytest.mark.parametrize("call", ['set_up("nccl", port=5)', 'Group("nccl")'])
def test_a_backend_by_position_for_a_function_of_another_file(call: str, tmp_path: Path) -> None:
    (tmp_path / "named.py").write_text(NAMED)
    (tmp_path / "main.py").write_text(
        "import torch\n\nfrom named import Group, set_up\n\n"
        f'if __name__ == "__main__":\n    {call}\n    torch.ones(1).cuda()\n'
    )
    done = rewrite_folder(tmp_path, processes=1)
    after = {file.name.as_posix(): file.after.decode() for file in done.files}
    assert call.replace("nccl", "xla") in after["main.py"]
