"""The index of the replica under a name that does not say so."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.pipeline import rewrite_source
from migrate.syntax.source import parse

SCRIPT = """
    import os

    import torch
    import torch.distributed as dist

    dist.init_process_group("nccl")
    me = {index}
    model = torch.nn.Linear(3, 3).cuda()
    if me == 0:
        torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.parametrize("index", ['int(os.environ["RANK"])', "dist.get_rank()"])
def test_a_save_of_one_replica_is_of_all(index: str) -> None:
    """It stayed under the test before, where the other replicas wait for it, and nothing was said."""
    script = dedent(SCRIPT.format(index=index))
    done = rewrite_source(parse(script.encode(), Path("train.py"))).data.decode()
    assert "if me == 0:" not in done
    assert "xm.save(" in done


TOOLS = """
    import os


    def place():
        return int(os.environ["RANK"])
"""
TRAINS = """
    import torch
    import torch.distributed as dist
    from tools import place


    class Runner:
        def __init__(self, model):
            self.me = place()
            self.model = model

        def run(self, total):
            me = place()
            {test}
                dist.all_reduce(total)
            {test}
                torch.save(self.model.state_dict(), "model.pt")


    dist.init_process_group("nccl")
    Runner(torch.nn.Linear(3, 3).cuda()).run(torch.ones(3).cuda())
"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    "test",
    [
        "if me == 0:",
        "if not me:",
        "if not self.me:",
        "if not bool(me):",
        "if not place():",
        "if me < 1:",
        "while not me:",
    ],
)
def test_the_truth_of_an_index_is_a_test_of_the_rank(
    tmp_path: Path, test: str, style: Style
) -> None:
    """A collective and a save below `if not me:` were written as if every replica came there."""
    (tmp_path / "tools.py").write_text(dedent(TOOLS).lstrip())
    (tmp_path / "main.py").write_text(dedent(TRAINS.format(test=test)).lstrip())
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    (main,) = [file for file in done.files if file.name.name == "main.py"]
    text = main.after.decode()
    reported = [(note.rule, note.line) for note in main.findings]
    assert ("XLA302", 14) in reported
    is_rewritten = "xm.save(" in text or "shims.save(" in text
    assert ("save", 16) in reported or (is_rewritten and text.count(test) == 1)


@pytest.mark.parametrize("test", ["if not self.few:", "if not few:", "if few:"])
def test_the_truth_of_another_number_is_none(tmp_path: Path, test: str) -> None:
    tools = 'import os\n\n\ndef place():\n    return int(os.environ["WORLD_SIZE"])\n'
    (tmp_path / "tools.py").write_text(tools)
    script = dedent(TRAINS.format(test=test)).replace("me = place()", "few = place()")
    (tmp_path / "main.py").write_text(script.lstrip())
    done = rewrite_folder(tmp_path, processes=1)
    (main,) = [file for file in done.files if file.name.name == "main.py"]
    assert [note.rule for note in main.findings if note.rule in ("XLA302", "save")] == []


MANAGER = """
    import contextlib

    import torch.distributed as dist


    @contextlib.contextmanager
    def one_only():
        yield dist.get_rank() {operator} 0
        dist.barrier()
"""
MANAGED = """
    import torch
    import torch.distributed as dist
    from managers import one_only


    def run(model, total):
        with one_only() as chosen:
            if {chosen}:
                dist.all_reduce(total)
        with one_only() as chosen:
            if {chosen}:
                torch.save(model.state_dict(), "model.pt")


    dist.init_process_group("nccl")
    run(torch.nn.Linear(3, 3).cuda(), torch.ones(3).cuda())
"""


@pytest.mark.parametrize("split", [True, False], ids=["two files", "one file"])
def test_what_a_context_manager_yields_is_a_test_of_the_rank(tmp_path: Path, split: bool) -> None:
    manager = dedent(MANAGER.format(operator="==")).lstrip()
    script = dedent(MANAGED.format(chosen="chosen")).lstrip()
    if split:
        (tmp_path / "managers.py").write_text(manager)
    else:
        script = manager + script.replace("from managers import one_only\n", "")
    (tmp_path / "main.py").write_text(script)
    files = rewrite_folder(tmp_path, processes=1).files
    (main,) = [file for file in files if file.name.name == "main.py"]
    assert [note.rule for note in main.findings if note.rule != "barrier"] == ["XLA302"]
    assert "as chosen:\n        xm.save(" in main.after.decode()


def test_a_context_manager_of_one_file_that_leaves_one_replica_out(tmp_path: Path) -> None:
    manager = dedent(MANAGER.format(operator="!=")).lstrip()
    script = dedent(MANAGED.format(chosen="not chosen")).lstrip()
    script = manager + script.replace("from managers import one_only\n", "")
    (tmp_path / "main.py").write_text(script)
    (main,) = rewrite_folder(tmp_path, processes=1).files
    assert "XLA302" in [note.rule for note in main.findings]


def test_a_context_manager_that_yields_something_else_is_no_test(tmp_path: Path) -> None:
    manager = dedent(MANAGER).replace("dist.get_rank() {operator} 0", "dist.is_nccl_available()")
    (tmp_path / "managers.py").write_text(manager.lstrip())
    (tmp_path / "main.py").write_text(dedent(MANAGED.format(chosen="chosen")).lstrip())
    files = rewrite_folder(tmp_path, processes=1).files
    (main,) = [file for file in files if file.name.name == "main.py"]
    assert "XLA302" not in [note.rule for note in main.findings]
