"""A save in one file, and the test of the rank around its call in another."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.project import check_paths
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style
from migrate.rewrite.results import FolderRewrite
from migrate.rewrite.rules.saving.saving import DECIDES_ALONE, ON_ALL_RANKS

ENVIRONMENT = """\
import torch.distributed as dist


class Environment:
    def __init__(self):
        self.chief = dist.get_rank() == 0
"""
STORE = """\
import os

import torch


def store(state, path):
    print("saving", path)
    torch.save(state, path)
    os.replace(path, path + ".last")
"""
TRAIN = """\
import cluster
from environment import Environment


def train(model, loader, optimizer, args):
    env = Environment()
    model.cuda()
    for step, x in enumerate(loader):
        model(x.cuda()).sum().backward()
        optimizer.step()
{save}
"""


def written(folder: Path, save: str, store: str = STORE) -> Path:
    (folder / "environment.py").write_text(ENVIRONMENT)
    (folder / "cluster.py").write_text(store)
    body = textwrap.indent(textwrap.dedent(save).strip(), 8 * " ")
    (folder / "train.py").write_text(TRAIN.format(save=body))
    return folder


def rewritten(folder: Path) -> tuple[FolderRewrite, dict[str, str]]:
    done = rewrite_folder(folder, processes=1)
    assert not [file.problem for file in done.files if file.problem]
    return done, {file.name.as_posix(): file.after.decode() for file in done.files}


def said(done: FolderRewrite) -> list[str]:
    """What is said of the saves of `train.py`."""
    (file,) = (one for one in done.files if one.name.name == "train.py")
    return [note.message for note in file.findings if note.rule == "save"]


def test_both_files_follow_from_the_two_together(tmp_path: Path) -> None:
    save = """
        if env.chief:
            print(step)
            path = f"{args.out}/{step}.pt"
            cluster.store({"model": model.state_dict()}, path)
    """
    done, after = rewritten(written(tmp_path, save))
    assert said(done) == []
    assert after["train.py"].endswith(
        "        if env.chief:\n"
        "            print(step)\n"
        '        path = f"{args.out}/{step}.pt"\n'
        '        cluster.store({"model": model.state_dict()}, path)\n'
    )
    assert after["cluster.py"].endswith(
        "def store(state, path):\n"
        "    if xm.is_master_ordinal(local=False):\n"
        '        print("saving", path)\n'
        "    xm.save(state, path, global_master=True)\n"
        "    if xm.is_master_ordinal(local=False):\n"
        '        os.replace(path, path + ".last")\n'
    )


def test_a_condition_inside_of_the_test_goes_out_with_the_save(tmp_path: Path) -> None:
    save = """
        if env.chief:
            print(step)
            if step % args.save_every == 0:
                path = "{}/{}.pt".format(args.out, step)
                cluster.store(model.state_dict(), path)
    """
    done, after = rewritten(written(tmp_path, save))
    assert said(done) == []
    assert after["train.py"].endswith(
        "            print(step)\n"
        "        if step % args.save_every == 0:\n"
        '            path = "{}/{}.pt".format(args.out, step)\n'
        "            cluster.store(model.state_dict(), path)\n"
    )


@pytest.mark.parametrize(
    ("save", "store"),
    [
        ("if env.chief:\n    cluster.store(model.state_dict(), 'a')\ncluster.store(1, 'b')", STORE),
        ("if env.chief:\n    cluster.store(model.state_dict(), 'a')", STORE + "    return path\n"),
        ("if env.chief and args.x < best():\n    cluster.store(model.state_dict(), 'a')", STORE),
        ("if env.chief:\n    done = cluster.store(model.state_dict(), 'a')", STORE),
        (
            "if env.chief:\n    cluster.outer(model.state_dict(), 'a')",
            STORE + "\n\ndef outer(state, path):\n    store(state, path)\n",
        ),
    ],
)
def test_what_cannot_move_is_reported_and_stays(save: str, store: str, tmp_path: Path) -> None:
    done, after = rewritten(written(tmp_path, save, store))
    (message,) = said(done)
    assert f"(cluster.py:8) {ON_ALL_RANKS}" in message
    assert save.partition("\n")[0] in after["train.py"]


KINDS = """\
import torch


def store(model, path):
    print("saving", path)
    if hasattr(model, "module"):
        state = model.module.state_dict()
    else:
        state = model.state_dict()
    torch.save(state, path)
"""


def test_all_replicas_compute_what_is_saved(tmp_path: Path) -> None:
    save = "if env.chief:\n    cluster.store(model, 'a')"
    done, after = rewritten(written(tmp_path, save, KINDS))
    assert said(done) == []
    assert after["cluster.py"].endswith(
        "    if xm.is_master_ordinal(local=False):\n"
        '        print("saving", path)\n'
        '    if hasattr(model, "module"):\n'
        "        state = model.module.state_dict()\n"
        "    else:\n"
        "        state = model.state_dict()\n"
        "    xm.save(state, path, global_master=True)\n"
    )


@pytest.mark.parametrize(
    "made",
    [
        "kept = build(model)\n    kept.load(model.state_dict())",
        "from build import kept",
        "for kept in parts(model):\n        print(kept)",
        "base = build(model)\n    kept = base.state",
    ],
)
def test_what_only_the_first_replica_would_have_is_not_saved_by_all(
    made: str, tmp_path: Path
) -> None:
    store = f"import torch\n\n\ndef store(model, path):\n    {made}\n    torch.save(kept, path)\n"
    save = "if env.chief:\n    cluster.store(model, 'a')"
    done, after = rewritten(written(tmp_path, save, store))
    (message,) = said(done)
    assert ON_ALL_RANKS in message
    assert "    if env.chief:\n" in after["train.py"]
    assert made in after["cluster.py"]


@pytest.mark.parametrize("more", ["parser.add_argument('--chief')", "cluster.chief = True"])
def test_an_attribute_that_is_something_else_too_is_no_test(more: str, tmp_path: Path) -> None:
    save = f"{more}\nif env.chief:\n    cluster.store(model.state_dict(), 'a')"
    done, after = rewritten(written(tmp_path, save))
    assert said(done) == []
    assert "        if env.chief:\n            cluster.store(" in after["train.py"]


def test_a_script_alone_is_reported(tmp_path: Path) -> None:
    """The other file is not rewritten with it."""
    from migrate.rewrite.pipeline import rewrite_source
    from migrate.syntax.source import parse

    path = (
        written(tmp_path, "if env.chief:\n    cluster.store(model.state_dict(), 'a')") / "train.py"
    )
    done = rewrite_source(parse(path.read_bytes(), path))
    assert any("cluster.store (cluster.py:8)" in note.message for note in done.findings)
    assert b"        if env.chief:\n            cluster.store(" in done.data


def test_the_linter_sees_it(tmp_path: Path) -> None:
    save = "if env.chief:\n    cluster.store(model.state_dict(), 'a')"
    folder = written(tmp_path, save, STORE.replace("torch.save(state", "xm.save(state"))
    path = folder / "cluster.py"
    path.write_text("import torch_xla.core.xla_model as xm\n" + path.read_text())
    found = check_paths([folder], Config())
    assert [(f.path.name, f.line) for f in found.findings if f.code == "XLA301"] == [
        ("train.py", 12)
    ]


EXPORTS = """\
import torch


def export(state, path, version, name="plain"):
    if version == 0:
        with open(path, "wb") as file:
            file.write(bytes(state))
    elif version in (1, 2):
        torch.save(state, path)
    elif name != "plain":
        older(state, path)


def older(state, path):
    torch.save(state, path)
"""


@pytest.mark.parametrize(
    ("call", "saves"),
    [
        ("cluster.export(model.state_dict(), 'a', version=0)", False),
        ("cluster.export(model.state_dict(), 'a', 0, 'old')", False),
        ("cluster.export(model.state_dict(), 'a', -1)", False),
        ("cluster.export(model.state_dict(), 'a', -1, name='old')", True),
        ("cluster.export(model.state_dict(), 'a', version=2)", True),
        ("cluster.export(model.state_dict(), 'a', args.version)", True),
    ],
)
def test_a_call_saves_only_where_its_constants_lead_to_the_save(
    tmp_path: Path, call: str, saves: bool
) -> None:
    project = written(tmp_path, f"if env.chief:\n    {call}", EXPORTS)
    done, _ = rewritten(project)
    said = [note.message for name, note in done.left_to_do if name.name == "train.py"]
    assert any("this call saves" in one for one in said) is saves, said


STRIP = """\
import torch


def strip(path):
    kept = torch.load(path, map_location=torch.device("cpu"))
    kept["optimizer"] = None
    kept["model"] = kept["ema"]
    torch.save(kept, path)
"""


@pytest.mark.parametrize(("more", "is_said"), [("", False), ("    kept['x'] = x\n", True)])
def test_a_checkpoint_that_was_loaded_on_the_host_may_be_saved_by_one(
    more: str, is_said: bool, tmp_path: Path
) -> None:
    """YOLO's strip_optimizer, which rank 0 calls."""
    store = STRIP.replace("(path):", "(path, x=None):").replace(
        "    torch.save", f"{more}    torch.save"
    )
    folder = written(tmp_path, "if env.chief: cluster.strip(args.path)", store)
    done, after = rewritten(folder)
    assert "torch.save(kept, path)" in after["cluster.py"]
    found = [note.message for _, note in done.left_to_do]
    assert any(ON_ALL_RANKS in message for message in found) == is_said


@pytest.mark.parametrize("said", ["hvd.rank() == 0", "size > 1"])
def test_a_flag_for_the_first_that_a_class_is_made_with(tmp_path: Path, said: str) -> None:
    """once-for-all: its manager, made with `is_root=(hvd.rank() == 0)`, saved on one replica and hung."""
    manager = """\
        import torch


        class Manager:
            def __init__(self, net, first=False):
                self.net = net
                self.first = first
                self.net.cuda()

            def save(self, path):
                if self.first:
                    state = self.net.state_dict()
                    torch.save(state, path)

            def train(self, loader, optimizer):
                for x in loader:
                    self.net(x.cuda()).sum().backward()
                    optimizer.step()
    """
    main = f"""\
        import horovod.torch as hvd

        from manager import Manager

        size = hvd.size()
        manager = Manager(make(), first=({said}))
        manager.save("net.pt")
    """
    (tmp_path / "manager.py").write_text(textwrap.dedent(manager))
    (tmp_path / "main.py").write_text(textwrap.dedent(main))
    done, text = rewritten(tmp_path)
    guarded = "        if self.first:\n" in text["manager.py"]
    notes = [n for file in done.files for n in file.findings if file.name.name == "manager.py"]
    told = any(note.rule == "save" for note in notes)
    assert (told or not guarded) == (said == "hvd.rank() == 0")


CALLERS = {
    "a wrapper for the first replica": """
        import torch
        import torch.distributed as dist


        def keep(*args, **kwargs):
            if dist.get_rank() == 0:
                torch.save(*args, **kwargs)
    """,
    "a plain save": """
        import torch


        def keep(state, path):
            torch.save(state, path)
    """,
    "a helper of a helper": """
        import torch


        def keep(state, path):
            write({"model": state}, path)


        def write(state, path):
            torch.save(state, path)
    """,
}
EPOCHS = """
import torch
import torch.distributed as dist
from store import keep


def train(model, loader, optimizer):
    dist.init_process_group("nccl")
    best = 1e9
    for epoch in range(3):
        total = torch.zeros(1, device="cuda")
        for x in loader:
            loss = model(x.cuda()).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        {equal}
        if {test}:
            best = total.item()
            {call}
"""


@pytest.mark.parametrize("store", CALLERS.values(), ids=CALLERS)
@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("test", "call"),
    [
        ("total.item() < best", 'keep(model.state_dict(), "best.pt")'),
        ("torch.isnan(total).any()", 'keep(model.state_dict(), "nan.pt")'),
        (
            "total.item() < best",
            'if dist.get_rank() == 0:\n                keep(model.state_dict(), "best.pt")',
        ),
    ],
)
def test_a_save_elsewhere_that_each_replica_decides_is_reported(
    tmp_path: Path, store: str, style: Style, test: str, call: str
) -> None:
    (tmp_path / "store.py").write_text(textwrap.dedent(store).lstrip())
    script = EPOCHS.format(test=test, call=call, equal="dist.barrier()")
    (tmp_path / "train.py").write_text(script)
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    notes = [note for name, note in done.left_to_do if name.name == "train.py"]
    (note,) = [note for note in notes if note.rule == "save"]
    assert DECIDES_ALONE in note.message
    assert "keep (store.py:" in note.message
    assert script.splitlines()[note.line - 1].strip().startswith("keep(")
    script = EPOCHS.format(test=test, call=call, equal="dist.all_reduce(total)")
    (tmp_path / "train.py").write_text(script)
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    assert not [note for _, note in done.left_to_do if DECIDES_ALONE in note.message]


COUNTED = """\
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from cluster import store


def train(data, model, optimizer, args, first):
    dist.init_process_group("nccl")
    model.cuda()
    loader = DataLoader(data, sampler=DistributedSampler(data))
    for count, x in enumerate(loader, START):
        step = count // args.every
        model(x.cuda()).sum().backward()
        optimizer.step()
        store(model.state_dict(), f"{args.out}/{step}.pt")
"""


@pytest.mark.parametrize(
    ("start", "divides"), [("first + 1", False), ("0", False), ("dist.get_rank()", True)]
)
def test_the_counter_of_a_share_divides_no_files(tmp_path: Path, start: str, divides: bool) -> None:
    (tmp_path / "cluster.py").write_text(STORE)
    (tmp_path / "train.py").write_text(COUNTED.replace("START", start))
    done, _ = rewritten(tmp_path)
    messages = [note.message for file in done.files for note in file.findings]
    assert any("files of its own" in message for message in messages) is divides


WRITER = """\
from torch.utils.tensorboard import SummaryWriter


class Board:
    def __init__(self, distributed, rank):
        self.writer = None
        self.is_off = distributed and rank != 0

    def open(self):
        if not self.is_off:
            self.writer = SummaryWriter("logs")
"""
RUNNER = """\
import torch
import torch.distributed as dist

from board import Board


class Runner:
    def __init__(self):
        dist.init_process_group("nccl")
        self.model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
        self.board = Board(True, dist.get_rank())
        self.board.open()

    def learn(self):
        for turn in range(4):
            if self.board.writer is not None and turn % 2 == 0:
                self.save(f"model_{turn}.pt")

    def save(self, path):
        torch.save(self.model.state_dict(), path)


Runner().learn()
"""


def test_a_save_of_the_replica_whose_writer_another_file_makes(tmp_path: Path) -> None:
    (tmp_path / "board.py").write_text(WRITER)
    (tmp_path / "runner.py").write_text(RUNNER)
    done = rewrite_folder(tmp_path, options=RewriteOptions(), processes=1)
    runner = next(file for file in done.files if file.name.name == "runner.py")
    messages = [note.message for note in runner.findings if note.rule == "save"]
    assert any(DECIDES_ALONE in message for message in messages)
