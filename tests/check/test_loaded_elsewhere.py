"""Tensors of a checkpoint that another file loads, or that another file uses."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from migrate.check.config import Config
from migrate.check.file import check_file
from migrate.rewrite.folder import rewrite_folder
from migrate.rewrite.options import RewriteOptions, Style

HELPERS = """
    import torch


    def scale(x, table, sign=None):
        return torch.where(x > 0, x, table)


    def shift(x, *, by):
        return torch.cat([x, by])


    def plain(x, table):
        table = table.to(x.device)
        return torch.where(x > 0, x, table)


    def load_two(path):
        state = torch.load(path, map_location="cpu")
        return state["mean"], 3, state["std"]
"""
TRAIN = """
    import torch
    import torch.nn.functional as F
    from helpers import load_two, plain, scale, shift


    def train(model, optimizer, loader, path):
        table = torch.load(path, map_location="cpu")
        mean, count, std = load_two(path)
        pair = load_two(path)
        for x, y in loader:
            x, y = x.to("{device}"), y.to("{device}")
            loss = scale(model(x), table).mean() + shift(x, by=table["by"]).mean()
            loss = loss + plain(model(x), table).mean()
            loss = loss + F.mse_loss(x, mean)  # here
            loss = loss + F.mse_loss(x, std.float())  # here
            loss = loss + F.mse_loss(x, pair[2])  # here
            loss = loss + torch.clamp(x, count).mean() + F.mse_loss(x, mean.to("{device}"))
            loss.backward()
            optimizer.step()


    train(torch.nn.Linear(2, 2).to("{device}"), None, [], "model.pt")
"""


def written(folder: Path, device: str) -> dict[str, str]:
    texts = {
        "helpers.py": textwrap.dedent(HELPERS),
        "train.py": textwrap.dedent(TRAIN.replace("{device}", device)),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    return texts


def test_a_tuple_of_another_file(tmp_path: Path) -> None:
    texts = written(tmp_path, "xla")
    lines = texts["train.py"].splitlines()
    expected = [number for number, line in enumerate(lines, 1) if line.endswith("# here")]
    hits = check_file(tmp_path / "train.py", Config())
    assert [hit.line for hit in hits if hit.code == "XLA830"] == expected


def test_an_argument_of_a_function_of_another_file(tmp_path: Path) -> None:
    written(tmp_path, "cuda")
    done = rewrite_folder(tmp_path)
    findings = {
        str(file.name): [note.line for note in file.findings if note.rule == "XLA830"]
        for file in done.files
    }
    assert findings["helpers.py"] == [6, 10]
    assert len(findings["train.py"]) == 3


AVERAGE = """
    class Average:
        def __init__(self, parameters):
            self.count = 0
            self.kept = [p.clone().detach() for p in parameters]

        def update(self, parameters):
            for mine, other in zip(self.kept, parameters):
                mine.sub_(0.1 * (mine - other.detach()))

        def copy_to(self, parameters):
            for mine, other in zip(self.kept, parameters):
                other.data.copy_(mine.data)

        def load_state_dict(self, state):
            self.count = state["count"]
            {load}
"""
RESTORE = """
    import torch


    def restore(path, state, device):
        loaded = torch.load(path, map_location=device)
        state["model"].load_state_dict(loaded["model"])
        state["average"].load_state_dict(loaded["average"])
"""
TRAINING = """
    import torch
    from average import Average
    from restore import restore


    def main(loader):
        model = torch.nn.Linear(2, 2).to("cuda")
        average = Average(model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        {restore}
        for x in loader:
            model(x.to("cuda")).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            average.{use}(model.parameters())


    main([])
"""
KEEPS = 'self.kept = state["kept"]'
WHOLE = 'restore("c.pt", {"model": model, "average": average}, "cuda")'
HERE = """loaded = torch.load("c.pt", map_location="cuda")
        average.load_state_dict(loaded["average"])"""


@pytest.mark.parametrize("style", ["native", "portable"])
@pytest.mark.parametrize(
    ("load", "restore", "use", "at"),
    [
        (KEEPS, WHOLE, "update", ("restore.py", 8)),
        ('self.kept = list(state.get("kept"))', WHOLE, "update", ("restore.py", 8)),
        (
            KEEPS,
            'state = dict(model=model, average=average)\n        restore("c.pt", state, "cuda")',
            "update",
            ("restore.py", 8),
        ),
        (KEEPS, HERE, "update", ("train.py", 0)),
        (KEEPS, HERE, "copy_to", None),
        ("pass", WHOLE, "update", None),
        ('self.kept = [x.to("cuda") for x in state["kept"]]', WHOLE, "update", None),
        ('[a.copy_(b) for a, b in zip(self.kept, state["kept"])]', WHOLE, "update", None),
    ],
)
def test_a_class_that_keeps_what_it_is_given(
    tmp_path: Path, load: str, restore: str, use: str, at: tuple[str, int] | None, style: Style
) -> None:
    """The average stayed on the host, and each step fetched the weights, or raised."""
    texts = {
        "average.py": AVERAGE.replace("{load}", load),
        "restore.py": RESTORE,
        "train.py": TRAINING.replace("{restore}", restore).replace("{use}", use),
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    done = rewrite_folder(tmp_path, options=RewriteOptions(style=style), processes=1)
    hits = [
        (file.name.name, note.line, note.message)
        for file in done.files
        for note in file.findings
        if note.rule == "XLA830"
    ]
    assert len(hits) == (at is not None)
    for name, line, message in hits:
        assert at is not None
        assert name == at[0]
        assert line == at[1] or not at[1]
        assert "(average.py:" in message


STATUS = """
    import torch


    def main(loader, resume, path):
        device = torch.device("cuda")
        net = torch.nn.Linear(4, 1).to(device)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        status = torch.load(path, map_location="cpu") if resume else {made}
        if status is None:
            status = {made}
        for batch in loader:
            batch = batch.to(device)
            net(batch["x"]).mean().backward()
            optimizer.step()
            for item in batch["indexes"]:
                status[item["name"]][item["worker"]] = item["index"]
"""


@pytest.mark.parametrize(("made", "count"), [("{}", 0), ("torch.zeros(4, 4)", 1)])
def test_a_dictionary_is_not_indexed_by_a_tensor(made: str, count: int, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(STATUS.replace("{made}", made)))
    findings = check_file(path, Config())
    assert len([finding for finding in findings if finding.code == "XLA830"]) == count
