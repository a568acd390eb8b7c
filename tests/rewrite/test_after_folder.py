"""The report of a rewritten folder names what its steps run in other files, at the original's lines."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.report.text.rewrite import rewrite_summary
from migrate.rewrite.check_findings import findings_of
from migrate.rewrite.file import rewrite_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions

TRAIN = """
import torch
from metrics import accuracy


def train(model, loader, criterion, optimizer):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        out = model(x)
        loss = criterion(out, y)
        right = accuracy(out, y)
        loss.backward()
        optimizer.step()
    return right
"""
METRICS = """
def accuracy(output, target):
    right = output.argmax(1) == target
    return right.sum().item() / len(target)
"""


def test_a_read_in_a_function_of_another_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(inspect.cleandoc(TRAIN) + "\n")
    (tmp_path / "metrics.py").write_text(inspect.cleandoc(METRICS) + "\n")
    done = rewrite_folder(tmp_path, processes=1)
    (found,) = [(name, note) for name, note in done.left_to_do if note.rule == "XLA201"]
    name, note = found
    assert (str(name), note.line, note.column) == ("metrics.py", 3, 12)
    assert note.message.endswith("(called from train.py:10)")
    assert [str(file.name) for file in done.changed] == ["train.py"]


def test_what_is_not_in_a_step_is_not(tmp_path: Path) -> None:
    script = TRAIN.replace("        right = accuracy(out, y)\n", "")
    script = script.replace("return right", "return accuracy(out, y)")
    (tmp_path / "train.py").write_text(inspect.cleandoc(script) + "\n")
    (tmp_path / "metrics.py").write_text(inspect.cleandoc(METRICS) + "\n")
    done = rewrite_folder(tmp_path, processes=1)
    assert [note for _, note in done.left_to_do if note.rule.startswith("XLA2")] == []


def test_a_single_script_names_the_files_that_only_the_folder_form_looks_into(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(inspect.cleandoc(TRAIN) + "\n")
    (tmp_path / "metrics.py").write_text(inspect.cleandoc(METRICS) + "\n")
    done = rewrite_file(script)
    assert done.elsewhere == (tmp_path.resolve() / "metrics.py",)
    *_, last = rewrite_summary(done, None)
    assert "it imports metrics.py, which may need edits too" in str(last)
    assert f"migrate rewrite {tmp_path} -o COPY" in str(last)
    beside = [script, tmp_path / "metrics.py"]  # named in the same command
    assert not any("may need edits" in str(line) for line in rewrite_summary(done, None, beside))
    script.write_text(inspect.cleandoc(TRAIN).replace("accuracy(out, y)", "out") + "\n")
    assert rewrite_file(script).elsewhere == ()
    (tmp_path / "metrics.py").write_text("def place(x):\n    return x.cuda()\n")
    assert rewrite_file(script).elsewhere == (tmp_path.resolve() / "metrics.py",)
    (tmp_path / "metrics.py").write_text("def collate(rows):\n    return max(map(len, rows))\n")
    assert rewrite_file(script).elsewhere == (tmp_path.resolve() / "metrics.py",)


@pytest.mark.parametrize("style", ["native", "portable"])
def test_reads_of_a_helper_and_a_short_last_batch_are_mentioned(tmp_path: Path, style: str) -> None:
    (tmp_path / "utils.py").write_text(
        "def compute(output, target):\n"
        "    right = (output.argmax(1) == target).float().mean()\n"
        "    return right.item()\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "from torch.utils.data import DataLoader\n"
        "from utils import compute\n\n\n"
        "def train(model, data, optimizer, history):\n"
        "    loader = DataLoader(data, batch_size=8, shuffle=True)\n"
        "    for x, y in loader:\n"
        "        x, y = x.cuda(), y.cuda()\n"
        "        output = model(x)\n"
        "        loss = torch.nn.functional.cross_entropy(output, y)\n"
        "        loss.backward()\n"
        "        optimizer.step()\n"
        "        optimizer.zero_grad()\n"
        "        accuracy = compute(output, y)\n"
        "        history.append(accuracy)\n"
    )
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    found = {(note.rule, note.line): note for _, note in done.left_to_do}
    loaders = {("XLA210", 8)} if style == "native" else set()
    assert found.keys() == {("XLA108", 7), ("XLA208", 15)} | loaders
    assert "compute (utils.py:1)" in found["XLA208", 15].message
    assert not done.fails()


OF_ALL = """
class Trainer:
    def __init__(self, model, loader):
        self.model = model
        self.loader = loader

    def run_step(self, data):
        pass

    def run(self):
        for data in self.loader:
            self.log = self.run_step(data)
"""
OF_ONE = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from base import Trainer


class Average(Trainer):
    def __init__(self, model, loader, device):
        super().__init__(DDP(model.cuda(), device_ids=[device]), loader)
        self.is_master = dist.get_rank() == 0
        self.average = [p.detach().clone() for p in self.model.parameters()]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def run_step(self, data):
        self.optimizer.zero_grad()
        loss = self.model(data.cuda()).mean()
        loss.backward()
        value = loss.item()
        self.optimizer.step()
        if self.is_master:
            for mine, p in zip(self.average, self.model.parameters()):
                mine.mul_(0.9).add_(p, alpha=0.1)
        return value
"""


def test_a_file_whose_lines_move_in_a_later_turn_keeps_its_findings(tmp_path: Path) -> None:
    # base.py is done before the sync and its import are written into average.py.
    (tmp_path / "base.py").write_text(inspect.cleandoc(OF_ALL) + "\n")
    (tmp_path / "average.py").write_text(inspect.cleandoc(OF_ONE) + "\n")
    done = rewrite_folder(tmp_path, processes=1)
    by_name = {str(file.name): file.after.decode() for file in done.files}
    assert "torch_xla.sync()" in by_name["average.py"]
    reads = [(str(name), note.line) for name, note in done.left_to_do if note.rule == "XLA201"]
    assert reads == [("average.py", 18)]


NEIGHBOR = """
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def train_it(self, loader, optimizer):
        for x in loader:
            optimizer.zero_grad()
            self.layer(x.cuda()).mean().backward()
            optimizer.step()

    def score(self, x):
        y = self.layer(x)
        return y.max().item() if y.sum().item() > 1 else float(y.mean())
"""
SCORED = """
import torch
from net import Net


def main():
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x in torch.randn(8, 2, 4):
        x = x.cuda()
        optimizer.zero_grad()
        net.layer(x).mean().backward()
        optimizer.step()
        print(net.score(x))


main()
"""


def test_lines_of_another_file_are_those_of_its_original(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NEIGHBOR)
    (tmp_path / "train.py").write_text(SCORED)
    done = rewrite_folder(tmp_path, processes=1)
    line = NEIGHBOR.splitlines().index("    def score(self, x):") + 1
    assert {file.name.name for file in done.changed} == {"net.py", "train.py"}
    (message,) = [note.message for _, note in done.left_to_do if note.rule == "XLA208"]
    assert message.startswith(f"score (net.py:{line}) reads")


SHARED = """
import torch
import torch.distributed as dist


def place(x):
    return x.cuda()


def share(x):
    dist.all_reduce(x)
    return x


def total(x):
    return share(x)
"""
SOME = """
import torch
import torch.distributed as dist
from one.parts import place, total


def start(rank):
    dist.init_process_group("nccl")
    x = place(torch.ones(2))
    total(x)
    if rank == "line 3":
        print(x)
    if dist.get_rank() == 0:
        print(total(x))


if __name__ == "__main__":
    start(0)
"""


def test_lines_of_two_files_with_one_name_are_those_of_the_original(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        text = inspect.cleandoc(SHARED) + "\n"
        (tmp_path / folder / "parts.py").write_text(
            text if folder == "one" else f"import os\n{text}"
        )
    (tmp_path / "train.py").write_text(inspect.cleandoc(SOME) + "\n")
    done = rewrite_folder(tmp_path, processes=1)
    (note,) = [note for name, note in done.left_to_do if note.rule == "XLA302"]
    assert "total (parts.py:14)" in note.message
    assert [(related.path, related.line) for related in note.related] == [
        ((tmp_path / "one" / "parts.py").resolve(), 14),
        (None, 12),
    ]


EPISODE = """
import torch


def keep(x, path):
    torch.save(x.cuda(), path)
    return path
"""
KEEPING = """
import torch
import torch.distributed as dist
from episode import keep


def train(model, loader, optimizer, path):
    for step, x in enumerate(loader):
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(keep(x, path))
            best = keep(x, path)  IGNORE
    if dist.get_rank() == 0:
        return keep(x, path)
"""


@pytest.mark.parametrize(
    ("comment", "lines", "named"),
    [("", [12], [[13, 15]]), ("# migrate: ignore[XLA301]", [12], [[15]])],
)
def test_one_finding_for_all_calls_of_a_file_that_lead_to_one_save(
    tmp_path: Path, comment: str, lines: list[int], named: list[list[int]]
) -> None:
    (tmp_path / "episode.py").write_text(inspect.cleandoc(EPISODE) + "\n")
    text = inspect.cleandoc(KEEPING).replace("IGNORE", comment) + "\n"
    (tmp_path / "train.py").write_text(text)
    done = rewrite_folder(tmp_path, processes=1)
    notes = [note for _, note in done.left_to_do if note.rule in ("save", "XLA301")]
    assert [note.line for note in notes] == lines
    own = [[related.line for related in note.related if related.path is None] for note in notes]
    assert own == named
    assert [related.path for related in notes[0].related][:1] == [tmp_path.resolve() / "episode.py"]


KEPT = """
import torch
import torch.distributed as dist


def keep(model, loss, best):
    BODY
    return best


def train(model, loader, optimizer):
    best = None
    for x in loader:
        loss = model(x.cuda()).sum()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            best = keep(model, 1.0, best)
"""


@pytest.mark.parametrize(
    "body", ["torch.save(model.state_dict(), 'a')", "if best is None: torch.save(model, 'a')"]
)
def test_a_save_of_the_first_replica_alone_is_not_reported_where_it_is_called(
    tmp_path: Path, body: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(inspect.cleandoc(KEPT).replace("BODY", body) + "\n")
    done = rewrite_file(script)
    assert [note.line for note in done.findings if note.rule in ("save", "XLA301")] == []
    found = [found for found in findings_of([script], Config())[1] if found.code == "XLA301"]
    assert {finding.line for finding in found} == {6, 16, 17}


def test_the_folder_that_is_named_has_the_files(tmp_path: Path) -> None:
    for name in ("run", "parts"):
        (tmp_path / name).mkdir()
    script = tmp_path / "run" / "train.py"
    text = TRAIN.replace("from metrics", "from parts.metrics")
    script.write_text(inspect.cleandoc(text) + "\n")
    (tmp_path / "parts" / "metrics.py").write_text(inspect.cleandoc(METRICS) + "\n")
    (tmp_path / "setup.py").write_text("")
    done = rewrite_file(script)
    *_, last = rewrite_summary(done, None)
    named = str(last).partition("migrate rewrite ")[2].removesuffix(" -o COPY")
    assert Path(named).resolve() == tmp_path.resolve()
