"""A script that trains for several replicas and gets no launch says so."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.left.launch_and_steps import SWITCHED_OFF
from migrate.rewrite.options import RewriteOptions, Style

LIBRARY = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel


    def run(loader, optimizer):
        {join}
        model = torch.nn.Linear(2, 2).cuda()
        model = {wrapped}
        for x in loader:
            loss = model(x.cuda()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
"""
DISTRIBUTED = LIBRARY.format(
    join='dist.init_process_group("nccl")', wrapped="DistributedDataParallel(model)"
)
ONE = LIBRARY.format(join="print('one device')", wrapped="torch.nn.Sequential(model)")


def findings(folder: Path, files: dict[str, str]) -> dict[str, list[str]]:
    """Return what is said of launches, by file."""
    for name, text in files.items():
        (folder / name).write_text(textwrap.dedent(text).lstrip())
    done = rewrite_folder(folder, processes=1)
    assert not done.problems
    return {
        file.name.as_posix(): [n.message for n in file.findings if "nothing in it" in n.message]
        for file in done.files
    }


def test_a_script_whose_training_another_file_runs_at_import(tmp_path: Path) -> None:
    said = findings(tmp_path, {"library.py": DISTRIBUTED, "train.py": START})
    assert len(said["train.py"]) == 1
    assert "torch_xla.launch" in said["train.py"][0]
    assert not said["library.py"]


@pytest.mark.parametrize(
    ("call", "launched"), [("pass", False), ("dist.init_process_group()", True)]
)
def test_a_library_that_asks_for_a_group_that_nothing_joins(
    tmp_path: Path, call: str, launched: bool
) -> None:
    asks = DISTRIBUTED.replace('dist.init_process_group("nccl")', "several = dist.is_initialized()")
    asks = asks.replace(
        "DistributedDataParallel(model)", "DistributedDataParallel(model) if several else model"
    )
    start = f"import torch.distributed as dist\nfrom library import run\n\n{call}\nrun([], None)\n"
    said = findings(tmp_path, {"library.py": asks, "train.py": start})
    assert bool(said["train.py"]) is launched


START = "from library import run\n\nrun([], None)\n"


def test_a_script_for_one_device_needs_none(tmp_path: Path) -> None:
    said = findings(tmp_path, {"library.py": ONE, "train.py": START})
    assert not any(said.values())


def test_a_script_that_gets_its_launch_needs_no_word(tmp_path: Path) -> None:
    guarded = 'from library import run\n\nif __name__ == "__main__":\n    run([], None)\n'
    said = findings(tmp_path, {"library.py": DISTRIBUTED, "train.py": guarded})
    assert not any(said.values())
    done = rewrite_folder(tmp_path, processes=1)
    train = next(file for file in done.files if file.name == Path("train.py"))
    assert "torch_xla.launch" in train.after.decode()


def test_a_script_whose_replicas_a_constant_switches_off(tmp_path: Path) -> None:
    text = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    def main(rank):
        distributed, size = (False, 1)
        model = torch.nn.Linear(2, 2).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if distributed:
            dist.init_process_group("nccl", rank=rank, world_size=size)
            model = DDP(model)
        for x in torch.randn(8, 2, 2):
            model(x.cuda()).mean().backward()
            optimizer.step()


    if __name__ == "__main__":
        main(0)
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text).lstrip())
    file = rewrite_folder(tmp_path, processes=1).files[0]
    assert b"launch" not in file.after
    messages = [note.message for note in file.findings if note.rule == "launch-main"]
    assert len(messages) == 1
    assert messages[0].startswith("a constant switches off what makes this script train")


@pytest.mark.parametrize(("arguments", "launches"), [("None", False), ("None, 0, 4", True)])
def test_constants_of_the_call_switch_the_replicas_off(
    tmp_path: Path, arguments: str, launches: bool
) -> None:
    """One entry point trains alone; another file may call the same function in replicas."""
    text = f"""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    def train(options, rank=None, world_size=None):
        options = options or {{}}
        ddp = True if world_size else False
        if ddp:
            dist.init_process_group("nccl", rank=rank, world_size=world_size)
        model = torch.nn.Linear(2, 2).cuda()
        if ddp:
            model = DDP(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(8, 2, 2):
            model(x.cuda()).mean().backward()
            optimizer.step()


    if __name__ == "__main__":
        train({arguments})
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text).lstrip())
    file = rewrite_folder(tmp_path, processes=1).files[0]
    assert (b"launch" in file.after) is launches
    messages = [note.message for note in file.findings if note.rule == "launch-main"]
    assert (
        any(message.startswith(SWITCHED_OFF.partition("{")[0]) for message in messages)
        is not launches
    )


@pytest.mark.parametrize(
    ("assignment", "test"),
    [
        ('backend = "nccl"', 'backend == "nccl"'),
        ("size = world_size or 4", "size == 4"),
        ("size = 4 if rank is None else 1", "size == 4"),
        ("modes = ('ddp', 'plain')", '"ddp" in modes'),
    ],
)
def test_a_local_variable_keeps_its_value(tmp_path: Path, assignment: str, test: str) -> None:
    """A variable that is set to something true is not True: the test below it may hold."""
    text = f"""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    def train(rank=None, world_size=None):
        {assignment}
        model = torch.nn.Linear(2, 2).cuda()
        if {test}:
            dist.init_process_group("nccl")
            model = DDP(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(8, 2, 2):
            model(x.cuda()).mean().backward()
            optimizer.step()


    if __name__ == "__main__":
        train()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text).lstrip())
    assert b"launch" in rewrite_folder(tmp_path, processes=1).files[0].after


def test_a_parameter_that_is_set_later_is_tested_before(tmp_path: Path) -> None:
    text = """
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel as DDP


    def train(parallel=True, rank=None):
        model = torch.nn.Linear(2, 2).cuda()
        if parallel:
            dist.init_process_group("nccl")
            model = DDP(model)
        parallel = False
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in torch.randn(8, 2, 2):
            model(x.cuda()).mean().backward()
            optimizer.step()


    if __name__ == "__main__":
        train()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(text).lstrip())
    assert b"launch" in rewrite_folder(tmp_path, processes=1).files[0].after


OPTIONAL = """
    import argparse

    import {framework}
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel


    def main(args):
        model = DistributedDataParallel(torch.nn.Linear(4, 4).cuda())
        print(dist.get_world_size(), model)


    {guard}
        args = argparse.ArgumentParser().parse_args()
        if args.framework:
            {framework}.init_distributed()
        else:
            {join}
        main(args)
"""
GUARD = 'if __name__ == "__main__":'


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("framework", "guard", "join", "count"),
    [
        ("deepspeed", GUARD, 'dist.init_process_group("nccl")', 1),
        ("colossalai", GUARD, "dist.init_process_group()", 1),
        ("deepspeed", "if True:", 'dist.init_process_group("nccl")', 1),
        ("deepspeed", GUARD, "import groups; groups.join_group()", 1),
        ("deepspeed", GUARD, "pass", 0),  # the framework joins
        ("submitit", GUARD, 'dist.init_process_group("nccl")', 0),  # it starts them
    ],
)
def test_a_launch_that_is_withheld_is_reported(
    tmp_path: Path, framework: str, guard: str, join: str, count: int, style: Style
) -> None:
    text = OPTIONAL.format(framework=framework, guard=guard, join=join)
    (tmp_path / "train.py").write_text(textwrap.dedent(text).lstrip())
    if "groups" in join:
        lines = "import torch.distributed as dist\n\n\ndef join_group():\n    dist.init_process_group()\n"
        (tmp_path / "groups.py").write_text(lines)
    files = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1).files
    (file,) = [file for file in files if file.name.name == "train.py"]
    reported = [n.message for n in file.findings if n.rule == "launch-main"]
    assert len(reported) == count, reported
    assert all(framework in message for message in reported)


@pytest.mark.parametrize(
    "top",
    [
        *("from run.losses import *", "from run.of.losses import *", "import run.of.losses"),
        *("import lib\n\nlib.run = 1", "import lib\n\nlib.start(run=1)"),
    ],
)
def test_a_name_in_an_import_or_of_another_object_runs_no_function(
    tmp_path: Path, top: str
) -> None:
    (tmp_path / "engine.py").write_text(f"{top}\n{textwrap.dedent(DISTRIBUTED)}")
    (tmp_path / "main.py").write_text(
        'from engine import run\n\nif __name__ == "__main__":\n    run([], None)\n'
    )
    done = rewrite_folder(tmp_path, processes=1)
    launching = {str(file.name) for file in done.files if b"torch_xla.launch(" in file.after}
    assert launching == {"main.py"}
